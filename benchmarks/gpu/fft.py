"""Fourier transforms: `turbofno_ops.fft` against torch.fft, 2^26 values each, in floors.

A floor is the time to read what is given and to write what is kept once, at the bandwidth of a copy on the same card. Both
sides run as CUDA graphs on inputs that are not in the cache, and are checked against float64 on the CPU, on the inputs that
they are timed on. Each of our kernels that supports a transform is timed, and the host's time for a call of two lines or planes.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.gpu.candidates import checked_error
from benchmarks.gpu.device import Call, ends, in_graph, milliseconds
from benchmarks.gpu.tcfft import tcfft_milliseconds
from turbofno_ops import _gemm
from turbofno_ops import fft as ours
from turbofno_ops._table_use import used_tables
from turbofno_ops.fft import _plan
from turbofno_ops.fft._rule import HALF, KERNELS, WHOLE_PLANES

VALUES = 2**26
QUICK_VALUES = 2**22
LINES = (61, 64, 85, 128, 141, 211, 256, 421, 512, 1024, 4096, 2**17)
RULED = (
    16, 24, 32, 36, 45, 60, 75, 96, 100, 120, 121, 144, 169, 180,
    192, 200, 221, 225, 240, 300, 385, 420, 500, 625, 768, 1000,
)  # fmt: skip
"""Sizes between which the rule of `auto` changes (turbofno_ops/fft/_rule.py)."""
PLANES = (
    (64, 64),
    (85, 85),
    (128, 128),
    (141, 141),
    (211, 211),
    (256, 256),
    (421, 421),
    (512, 256),
)
RULED_PLANES = ((16, 16), (32, 32), (48, 48), (96, 96), (100, 100), (121, 121), (128, 64))
"""Sizes that say which planes are transformed at once."""
HALF_LINES = tuple(2**k for k in range(8, 18))
HALF_PLANES = ((256, 256), (512, 256))
_CALLS = 100  # in a row, without waiting for the GPU
LARGEST_ERROR = {"fp32": 2e-6, "fp16": 3e-3}
_EACH = (HALF, WHOLE_PLANES, *KERNELS)


@dataclass(frozen=True)
class Case:
    """A transform over the last axes, of `size` points; with `modes`, truncated."""

    name: str
    size: tuple[int, ...]
    precision: str = "fp32"
    modes: tuple[int, ...] | None = None

    @property
    def label(self) -> str:
        """Name, points, kept modes and precision."""
        kept = f" keep {_product(self.modes)}" if self.modes is not None else ""
        return f"{self.name} {_product(self.size)}{kept} {self.precision}"

    @property
    def inverse(self) -> bool:
        """True for an inverse transform."""
        return self.name.startswith("i")

    @property
    def spectrum(self) -> tuple[int, ...]:
        """Values of each axis of the spectrum."""
        if self.modes is not None:
            return self.modes
        *others, last = self.size
        return (*others, last // 2 + 1) if "r" in self.name else self.size

    @property
    def given(self) -> tuple[int, ...]:
        """Values of each axis of the input."""
        return self.spectrum if self.inverse else self.size

    @property
    def sizes_and_modes(self) -> tuple[Any, Any]:
        """`s` and `modes` of a transform over several axes, `n` and `modes` of one."""
        if len(self.size) > 1:
            return self.size, self.modes
        return self.size[0], None if self.modes is None else self.modes[0]


def _product(size: Sequence[int]) -> str:
    return "x".join(map(str, size))


CASES = (
    *(Case(name, (n,)) for name in ("fft", "ifft", "rfft", "irfft") for n in LINES),
    *(Case(name, (n,)) for name in ("fft", "rfft", "irfft") for n in RULED),
    *(
        Case(name, size)
        for name in ("rfft2", "irfft2", "fft2", "ifft2")
        for size in (*PLANES, *RULED_PLANES)
    ),
    *(Case("fft", (n,), "fp16") for n in HALF_LINES),
    *(Case("fft2", size, "fp16") for size in HALF_PLANES),
    *(Case(name, (1024,), modes=(64,)) for name in ("rfft", "irfft")),
    *(Case(name, (421, 421), modes=(24, 12)) for name in ("rfft2", "irfft2")),
    *(Case(name, (128, 128), modes=(21, 11)) for name in ("rfft2", "irfft2")),
)


def _drawn(case: Case, values: int) -> torch.Tensor:
    batch = max(2, values // math.prod(case.size))
    real = case.name.startswith("r")
    x = torch.randn(
        batch, *case.given, dtype=torch.float32 if real else torch.complex64, device="cuda"
    )
    if case.precision == "fp32":
        return x
    return x.half() if real else x.to(torch.complex32)


def _own(case: Case, backend: str) -> Call:
    """Our transform."""
    transform, (sizes, modes) = getattr(ours, case.name), case.sizes_and_modes

    def call(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = transform(
            x, sizes, modes=modes, precision=case.precision, backend=backend
        )
        return result

    return call


def _torch(case: Case) -> Call:
    """The same with torch.fft: truncated after a whole transform, filled with zeros before one."""
    axes = len(case.size)
    base = case.name.rstrip("2")
    transform = getattr(torch.fft, f"{base}n")
    dims = tuple(range(-axes, 0))

    def forward(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = transform(x, dim=dims)
        return result

    if case.modes is None and base != "irfft":
        return forward
    *others, last = case.spectrum
    whole = (*case.size[:-1], case.size[-1] // 2 + 1)
    rows = [slice((m + 1) // 2) for m in others], [slice(-(m // 2), None) for m in others]

    def truncated(x: torch.Tensor) -> torch.Tensor:
        y = forward(x)[..., :last]
        return y.contiguous() if not others else torch.cat([y[:, *part] for part in rows], dim=1)

    def filled(x: torch.Tensor) -> torch.Tensor:
        if case.modes is not None:
            z = x.new_zeros(len(x), *whole)
            for part in rows:
                z[:, *part, :last] = x[:, *part] if others else x
            x = z
        result: torch.Tensor = transform(x, s=case.size, dim=dims)
        return result

    return filled if case.inverse else truncated


def _truth(case: Case, x: torch.Tensor) -> torch.Tensor:
    """The transform in float64 on the CPU, of the first and the last batch element."""
    wide = ends(x).cpu()
    if case.precision == "fp16":
        wide = wide.to(torch.complex64 if wide.is_complex() else torch.float32)
    wide = wide.to(torch.complex128 if wide.is_complex() else torch.float64)
    sizes, modes = case.sizes_and_modes
    result: torch.Tensor = getattr(ours, case.name)(wide, sizes, modes=modes)
    return result


def _error(value: torch.Tensor, truth: torch.Tensor) -> float:
    """||value - truth|| / ||truth|| of the checked batch elements."""
    found = ends(value).cpu()
    if found.dtype == torch.complex32:
        found = found.to(torch.complex64)
    return float((found.to(truth.dtype) - truth).norm() / truth.norm())


@contextmanager
def _only(kernel: str) -> Iterator[None]:
    """Let only one of the kernels run."""

    def forget() -> None:
        _plan._considered.cache_clear()
        _plan._split.cache_clear()
        _gemm._tables._kept.clear()
        _gemm._tables.nbytes = 0

    def only(*_: object, **__: object) -> tuple[str]:
        if kernel == WHOLE_PLANES:
            # no list of kernels says that none takes a pass
            raise _plan._Refused("no whole plane")
        return (kernel,)

    forget()
    try:
        with (
            patch.object(_plan, "kernels", only),
            patch.object(_plan, "takes_planes", lambda _: kernel == WHOLE_PLANES),
        ):
            yield
    finally:
        forget()


def _each_kernel(
    case: Case, x: torch.Tensor, truth: torch.Tensor
) -> Iterator[tuple[str, Callable[[], object]]]:
    """Names of the kernels that support a case, and their calls as CUDA graphs."""
    for kernel in _EACH:
        with _only(kernel):
            call = _own(case, "kernels")
            try:
                error = _error(call(x), truth)
            except ValueError:
                continue
            checked_error(f"{case.label} {kernel}", error, LARGEST_ERROR[case.precision])
            yield kernel, in_graph(call, [x])


def _host_us(call: Call, x: torch.Tensor) -> float:
    """Microseconds that the host takes for a call: the median of several rows of calls."""
    taken = []
    for _ in range(7):
        torch.cuda.synchronize()
        began = time.perf_counter()
        for _ in range(_CALLS):
            call(x)
        taken.append((time.perf_counter() - began) / _CALLS)
    torch.cuda.synchronize()
    return 1e6 * median(taken)


def measure(
    case: Case, bandwidth: float, *, seconds: float, quick: bool, tcfft: Path | None
) -> Iterator[dict[str, object]]:
    """The row of a case, in float16 beside the programs of a checkout of tcFFT. Raises RuntimeError if our result is wrong."""
    # the graphs use the tables until they are timed
    with warnings.catch_warnings(), used_tables():
        warnings.filterwarnings("ignore", "ComplexHalf support", UserWarning)
        x = _drawn(case, QUICK_VALUES if quick else VALUES)
        truth = _truth(case, x)
        own, other = _own(case, "auto"), _torch(case)
        y = own(x)
        floor = (x.nbytes + y.nbytes) / bandwidth * 1e3
        error = checked_error(case.label, _error(y, truth), LARGEST_ERROR[case.precision])
        try:
            torch_error: float | None = _error(other(x), truth)
        except RuntimeError:  # cuFFT in float16 takes powers of two only
            torch_error = None
        del y
        sizes, modes = case.sizes_and_modes
        choice = ours.explain(case.name, x, sizes, modes=modes, precision=case.precision)
        runs: dict[str, Callable[[], object]] = {}
        if torch_error is not None:
            runs["torch"] = in_graph(other, [x])
        runs["auto"] = in_graph(own, [x])
        runs.update(_each_kernel(case, x, truth))
        times = dict(zip(runs, milliseconds(list(runs.values()), seconds=seconds), strict=True))
        few = x[:2].clone()
        calls = {
            name: _host_us(of, few)
            for name, of in (("auto", own), ("torch", other))
            if name in runs
        }
    peer = times.get("torch")
    row: dict[str, object] = {
        "transform": case.label,
        "backend": choice.backend,
        "ms": times["auto"],
        "floor ms": floor,
        "floors": times["auto"] / floor,
        "torch floors": None if peer is None else peer / floor,
        "speed-up": None if peer is None else peer / times["auto"],
        "relative L2 error": error,
        "torch error": torch_error,
        "call us": calls["auto"],
        "torch call us": calls.get("torch"),
    }
    row |= {f"{kernel} floors": times[kernel] / floor for kernel in _EACH if kernel in times}
    if tcfft is not None and case.precision == "fp16":
        its = tcfft_milliseconds(tcfft, case.size, len(x))
        row["tcFFT floors"] = None if its is None else its / floor
    yield row
