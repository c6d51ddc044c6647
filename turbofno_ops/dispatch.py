"""Choice of the backend of a layer, and the record of the last choice."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from functools import lru_cache

import torch

from turbofno_ops import _cuda_layer
from turbofno_ops._choice import Choice, largest_prime_factor

BACKENDS = ("reference", "gemm", "cuda")

_log = logging.getLogger("turbofno_ops")

# Operations of matrix products that cost as much as one of an FFT, by number of grid axes. An FFT also pays for strided
# passes over memory, discarded modes and zero filling. Measured crossover: benchmarks/results/crossover.jsonl
# (`python -m benchmarks.ops --crossover`). An error of a third changes the time near the crossover by a tenth.
_GEMM_FLOPS_PER_FFT_FLOP = {1: 3.0, 2: 5.0, 3: 4.0}
# FFTs are fast for small prime factors; larger ones take several times longer.
_LARGEST_FAST_FACTOR = 13
_SLOW_FACTOR_PENALTY = 4.0


_ran = threading.local()
_CUDA_REFUSED = "the CUDA kernels do not run this layer: "
_logged: set[str] = set()


def gemm_flops(modes: Sequence[int], size: Sequence[int]) -> float:
    """Return the operations of one truncated transform of one channel by matrix products, last axis first."""
    *others, last = size
    rows = math.prod(others)
    total = 2.0 * rows * last * 2 * modes[-1]
    columns = 2 * modes[-1]
    for axis in reversed(range(len(others))):
        rows //= others[axis]
        sums = 2 * (modes[axis] // 2 + 1)
        total += 2.0 * rows * others[axis] * sums * columns
        columns *= sums
    return total


def fft_flops(size: Sequence[int]) -> float:
    """Return the operations of one real FFT of one channel: 2.5 N log2 N."""
    points = math.prod(size)
    return 2.5 * points * math.log2(max(points, 2))


def choose(
    modes: Sequence[int],
    size: Sequence[int],
    out_size: Sequence[int],
    *,
    requested: str = "auto",
    cuda_refusal: str | None = "x is not on a GPU",
) -> Choice:
    """Choose the backend of one layer.

    Args:
        modes: Kept modes per axis.
        size: Input grid.
        out_size: Output grid.
        requested: 'auto' or a name of `BACKENDS`.
        cuda_refusal: The reason why the CUDA kernels do not support the layer, or None if they do.

    Raises:
        ValueError: Unknown `requested`, or 'cuda' for a layer that the kernels do not support.
    """
    if requested != "auto":
        if requested not in BACKENDS:
            raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {requested!r}")
        if requested == "cuda" and cuda_refusal is not None:
            raise ValueError(f"backend 'cuda' cannot run this layer: {cuda_refusal}")
        return Choice(requested, "requested by the caller")
    if cuda_refusal is None:
        return Choice("cuda", "x is on a GPU and the CUDA kernels support this shape")
    return _cheapest(tuple(modes), tuple(size), tuple(out_size))


@lru_cache(maxsize=1024)
def _cheapest(modes: tuple[int, ...], size: tuple[int, ...], out_size: tuple[int, ...]) -> Choice:
    gemm = gemm_flops(modes, size) + gemm_flops(modes, out_size)
    fft = fft_flops(size) + fft_flops(out_size)
    ratio = gemm / fft
    worth = _GEMM_FLOPS_PER_FFT_FLOP[len(size)]
    if any(largest_prime_factor(n) > _LARGEST_FAST_FACTOR for n in (*size, *out_size)):
        worth *= _SLOW_FACTOR_PENALTY
    compared = (
        f"matrix products need {ratio:.1f} times the operations of the FFTs, "
        f"worth it up to {worth:g} for grid {'x'.join(map(str, size))}"
    )
    return Choice("gemm" if ratio <= worth else "reference", compared)


def choose_for(
    x: torch.Tensor,
    weight: torch.Tensor,
    out_size: Sequence[int],
    *,
    requested: str,
    precision: str,
) -> Choice:
    """Call `choose` for these tensors. On a GPU the reason of another backend says why the CUDA kernels do not run."""
    refused = _cuda_layer.refusal(x, weight, out_size, precision)
    choice = choose(
        weight.shape[2:], x.shape[2:], out_size, requested=requested, cuda_refusal=refused
    )
    if precision != "fp32":
        choice = Choice(choice.backend, f"{choice.reason}; {_computed_in(choice, precision)}")
    if requested != "auto" or refused is None or not x.is_cuda:
        return choice
    return Choice(choice.backend, f"{_CUDA_REFUSED}{refused}; {choice.reason}")


def _computed_in(choice: Choice, precision: str) -> str:
    if choice.backend == "cuda":
        return f"in {precision}"
    return f"in x's own precision, which is finer than {precision}"


def log_fallback(choice: Choice) -> None:
    """Log a layer on a GPU that does not run on the CUDA kernels, once per reason."""
    why = choice.reason.split(";", 1)[0]
    if why.startswith(_CUDA_REFUSED) and why not in _logged:
        _logged.add(why)
        _log.warning("%s; backend %r runs instead", why, choice.backend)


def record(choice: Choice) -> None:
    """Record the choice of the current thread, for `last_choice`."""
    _ran.choice = choice


def last_choice() -> Choice | None:
    """Return the choice of the last spectral op that ran in this thread, or None.

    Example:
        >>> from turbofno_ops import spectral_conv
        >>> y = spectral_conv(torch.randn(1, 2, 32), torch.randn(2, 2, 8, dtype=torch.complex64), backend="gemm")
        >>> last_choice()
        Choice(backend='gemm', reason='requested by the caller')
    """
    return getattr(_ran, "choice", None)


def last_backend() -> str:
    """Return the backend of the last spectral op that ran in this thread, or 'none'."""
    choice = last_choice()
    return choice.backend if choice is not None else "none"
