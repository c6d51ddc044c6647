"""The one place where a backend is chosen, and the record of which one ran and why."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch

from turbofno_ops import _cuda_layer

BACKENDS = ("reference", "gemm", "cuda")

_log = logging.getLogger("turbofno_ops")

# How many operations in matrix products cost as much as one in an FFT, which pays for strided passes
# over memory (several axes), for the modes that are thrown away and for zero filling. Read off
# benchmarks/results/crossover.jsonl (`python -m benchmarks.ops --crossover`), where the two take the
# same time; being off by a third there changes the time by a tenth.
_WORTH_ONE_FFT_FLOP = {1: 3.0, 2: 5.0, 3: 4.0}
# FFTs are made of passes for small prime factors; others take several times longer.
_LARGEST_FAST_FACTOR = 13
_WORTH_OF_SLOW_FACTORS = 4.0


@dataclass(frozen=True, slots=True)
class Choice:
    """Which backend, and the reason in words."""

    backend: str
    reason: str


_ran = threading.local()
_PASSED_OVER = "the CUDA kernels do not run this layer: "
_logged: set[str] = set()


def gemm_flops(modes: Sequence[int], size: Sequence[int]) -> float:
    """Operations of one truncated transform of one channel as matrix products, last axis first."""
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
    """Operations of one real FFT of one channel: 2.5 N log2 N."""
    points = math.prod(size)
    return 2.5 * points * math.log2(max(points, 2))


def _largest_prime_factor(n: int) -> int:
    factor = 2
    while factor * factor <= n:
        if n % factor == 0:
            n //= factor
        else:
            factor += 1
    return n


def choose(
    modes: Sequence[int],
    size: Sequence[int],
    out_size: Sequence[int],
    *,
    requested: str = "auto",
    cuda_refusal: str | None = "x is not on a GPU",
) -> Choice:
    """Pick the backend for one layer: kept modes, input grid, output grid, an entry an axis.

    `cuda_refusal` is why the CUDA kernels do not take the layer, None if they do.

    Raises:
        ValueError: `requested` is neither 'auto' nor the name of a backend, or is 'cuda' and refused.
    """
    if requested != "auto":
        if requested not in BACKENDS:
            raise ValueError(f"backend must be 'auto' or one of {BACKENDS}, got {requested!r}")
        if requested == "cuda" and cuda_refusal is not None:
            raise ValueError(f"backend 'cuda' cannot run this layer: {cuda_refusal}")
        return Choice(requested, "asked for by the caller")
    if cuda_refusal is None:
        return Choice("cuda", "x is on a GPU and the CUDA kernels serve this shape")
    return _cheapest(tuple(modes), tuple(size), tuple(out_size))


@lru_cache(maxsize=1024)
def _cheapest(modes: tuple[int, ...], size: tuple[int, ...], out_size: tuple[int, ...]) -> Choice:
    gemm = gemm_flops(modes, size) + gemm_flops(modes, out_size)
    fft = fft_flops(size) + fft_flops(out_size)
    ratio = gemm / fft
    worth = _WORTH_ONE_FFT_FLOP[len(size)]
    if any(_largest_prime_factor(n) > _LARGEST_FAST_FACTOR for n in (*size, *out_size)):
        worth *= _WORTH_OF_SLOW_FACTORS
    compared = (
        f"matrix products need {ratio:.1f} times the operations of the FFTs, "
        f"worth it up to {worth:g} for grid {'x'.join(map(str, size))}"
    )
    return Choice("gemm" if ratio <= worth else "reference", compared)


def explain(
    x: torch.Tensor,
    weight: torch.Tensor,
    *,
    out_size: Sequence[int] | None = None,
    backend: str = "auto",
    precision: str = "fp32",
) -> Choice:
    """What `spectral_conv` would run with these arguments, and why. Runs nothing."""
    return choose_for(
        x, weight, tuple(out_size or x.shape[2:]), requested=backend, precision=precision
    )


def choose_for(
    x: torch.Tensor,
    weight: torch.Tensor,
    out_size: Sequence[int],
    *,
    requested: str,
    precision: str,
) -> Choice:
    """`choose` for these tensors; on a GPU the reason says why the CUDA kernels were passed over."""
    refused = _cuda_layer.refusal(x, weight, out_size, precision)
    choice = choose(
        weight.shape[2:], x.shape[2:], out_size, requested=requested, cuda_refusal=refused
    )
    if precision != "fp32":
        choice = Choice(choice.backend, f"{choice.reason}; {_computed_in(choice, precision)}")
    if requested != "auto" or refused is None or not x.is_cuda:
        return choice
    return Choice(choice.backend, f"{_PASSED_OVER}{refused}; {choice.reason}")


def _computed_in(choice: Choice, precision: str) -> str:
    if choice.backend == "cuda":
        return f"in {precision}"
    return f"in x's own precision, which is finer than {precision}"


def log_fallback(choice: Choice) -> None:
    """Log, once for each reason, that a layer on a GPU does not run on the CUDA kernels."""
    why = choice.reason.split(";", 1)[0]
    if why.startswith(_PASSED_OVER) and why not in _logged:
        _logged.add(why)
        _log.warning("%s; backend %r runs instead", why, choice.backend)


def record(choice: Choice) -> None:
    """Remember what ran in this thread."""
    _ran.choice = choice


def last_choice() -> Choice | None:
    """The choice of the last spectral op that ran in this thread, or None if none has."""
    return getattr(_ran, "choice", None)


def last_backend() -> str:
    """Name of the backend of the last spectral op that ran in this thread, or 'none'."""
    choice = last_choice()
    return choice.backend if choice is not None else "none"
