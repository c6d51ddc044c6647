"""Truncated transforms as real matrix products in plain torch, on any device. Fast on CPUs.

For K kept modes of N points, K << N, a truncated DFT is a product with a fixed table. Truncation and zero
padding are free, N is arbitrary (primes too), and input and output grids may differ.

All products are real. The last axis gives cos and -sin sums, one interleaved complex number per mode. On every
other axis k and -k share their cosine and sine sums C and S over |k| = 0 .. half: the coefficient of k is
C - iS, that of -k is C + iS.

    analysis    field -> last axis -> other axes (26 real rows for 24 modes) -> butterflies -> coefficients
    synthesis   the reverse

Only spectra are permuted, never fields.
"""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from functools import wraps
from typing import Any, ParamSpec, Protocol, TypeVar

import torch
from torch.utils._python_dispatch import _disable_current_modes

from turbofno_ops._modes import Rows, column_weights
from turbofno_ops._table_use import note_use


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


P = ParamSpec("P")
T = TypeVar("T", bound=_Sized)

MAX_TABLE_BYTES = 128 * 2**20
_MANY_COLUMNS = 16


class _Tables:
    """LRU cache of tables and of plans with tables, bounded in bytes because clients choose the grids."""

    def __init__(self) -> None:
        self._kept: OrderedDict[Hashable, Any] = OrderedDict()
        self._lock = threading.Lock()
        self.nbytes = 0

    def cached(self, make: Callable[P, T]) -> Callable[P, T]:
        @wraps(make)
        def table(*args: P.args, **kwargs: P.kwargs) -> T:
            key = (make, args, *kwargs.values())
            with self._lock:
                found: T | None = self._kept.get(key)
                if found is not None:
                    self._kept.move_to_end(key)
                    return note_use(found)
            # later calls use the table, so what traces or fakes this one must not; nor does torch's default device matter
            with _disable_current_modes(), torch.device("cpu"):
                made = make(*args, **kwargs)
            with self._lock:
                if key not in self._kept:
                    self._kept[key] = made
                    self.nbytes += made.nbytes
                while self.nbytes > MAX_TABLE_BYTES:
                    _, oldest = self._kept.popitem(last=False)
                    self.nbytes -= oldest.nbytes
            return note_use(made)

        return table


_tables = _Tables()


def _angles(count: int, size: int) -> torch.Tensor:
    """Return 2 pi k n / size for k = 0 .. count - 1, reduced modulo 2 pi exactly. Float64 [count, size]."""
    product = torch.outer(torch.arange(count), torch.arange(size))
    return product.remainder(size).to(torch.float64) * (2 * math.pi / size)


@_tables.cached
def _last_axis_analysis(
    size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return [size, 2 * count]: interleaved columns cos, -sin, divided by size."""
    with torch.inference_mode(False):
        angles = _angles(count, size).T
        table = torch.stack([angles.cos(), -angles.sin()], dim=-1).reshape(size, 2 * count) / size
        return table.to(device, dtype)


@_tables.cached
def _last_axis_synthesis(
    size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """Return [2 * count, size]: interleaved rows cos, -sin, times the `column_weights`.

    The sine rows of the DC and Nyquist columns are exactly zero, so that their imaginary parts are ignored, as in
    irfftn.
    """
    with torch.inference_mode(False):
        angles = _angles(count, size)
        sines = angles.sin()
        if size % 2 == 0 and count == size // 2 + 1:
            sines[-1] = 0.0
        weights = column_weights(count, size, dtype=torch.float64, device=angles.device)
        table = torch.stack([angles.cos(), -sines], dim=1) * weights[:, None, None]
        return table.reshape(2 * count, size).to(device, dtype)


@_tables.cached
def _other_axis(
    rows: Rows, count: int, dtype: torch.dtype, device: torch.device, *, analysis: bool
) -> torch.Tensor:
    """Return cos |k|, then sin |k|, |k| = 0 .. half, at some points: [2 * (half + 1), rows] / points, or its transpose."""
    with torch.inference_mode(False):
        angles = _angles(count // 2 + 1, rows.points)[:, rows.first : rows.stop]
        table = torch.cat([angles.cos(), angles.sin()])
        return (table / rows.points if analysis else table.T.contiguous()).to(device, dtype)


def _sums_to_frequencies(sums: torch.Tensor, axis: int, count: int) -> torch.Tensor:
    """Convert cosine and sine sums along `axis` to coefficients of the `count` kept frequencies in FFT order."""
    cosine, sine = sums.chunk(2, dim=axis)
    sine = sine * 1j
    below = count // 2
    above = cosine.narrow(axis, 0, count - below) - sine.narrow(axis, 0, count - below)
    if below == 0:
        return above
    negative = cosine.narrow(axis, 1, below) + sine.narrow(axis, 1, below)
    return torch.cat([above, negative.flip(axis)], dim=axis)


def _frequencies_to_sums(z: torch.Tensor, axis: int) -> torch.Tensor:
    """Return the factors of cosine and sine of |k| along `axis`: z[k] + z[-k] and i (z[k] - z[-k])."""
    count = z.shape[axis]
    below = count // 2
    above = z.narrow(axis, 0, count - below)
    negative = z.narrow(axis, count - below, below).flip(axis)
    rows = count // 2 + 1
    shape = list(z.shape)
    shape[axis] = rows
    even, odd = z.new_zeros(shape), z.new_zeros(shape)
    even.narrow(axis, 0, count - below).copy_(above)
    odd.narrow(axis, 0, count - below).copy_(above)
    even.narrow(axis, 1, below).add_(negative)
    odd.narrow(axis, 1, below).sub_(negative)
    return torch.cat([even, odd * 1j], dim=axis)


def analyze_last(x: torch.Tensor, count: int) -> torch.Tensor:
    """Return the first `count` coefficients of the last axis: real [.., n] -> complex [.., count]."""
    table = _last_axis_analysis(x.shape[-1], count, x.dtype, x.device)
    rows = x.reshape(-1, x.shape[-1])
    # BLAS on CPUs is slow with few columns, and several times faster with as many rows.
    sums = rows @ table if 2 * count >= _MANY_COLUMNS else (table.T @ rows.T).T.contiguous()
    return torch.view_as_complex(sums.view(*x.shape[:-1], count, 2))


def _axes(sizes: Sequence[int], first: Rows | None) -> list[Rows]:
    whole = [Rows.whole(size) for size in sizes]
    return whole if first is None else [first, *whole[1:]]


def analyze_others(
    spectra: torch.Tensor, others: Sequence[int], first: Rows | None = None
) -> torch.Tensor:
    """Analyse the axes before the last: complex [batch, channels, *sizes, last] -> [*modes, batch, channels].

    If only the rows `first` of the first axis are given, the result is their part of the sum.
    """
    batch, channels, *sizes, last = spectra.shape
    axes = _axes(sizes, first)
    sums = torch.view_as_real(spectra).reshape(batch * channels, *sizes, 2 * last)
    for axis in reversed(range(len(others))):
        table = _other_axis(axes[axis], others[axis], sums.dtype, sums.device, analysis=True)
        before, after = sums.shape[: axis + 1], sums.shape[axis + 2 :]
        flat = sums.reshape(math.prod(before), sizes[axis], math.prod(after))
        sums = torch.matmul(table, flat).view(*before, table.shape[0], *after)
    z = torch.view_as_complex(sums.view(*sums.shape[:-1], last, 2))
    for axis, count in enumerate(others, start=1):
        z = _sums_to_frequencies(z, axis, count)
    return z.movedim(0, -1).reshape(*others, last, batch, channels)


def analyze(x: torch.Tensor, modes: Sequence[int]) -> torch.Tensor:
    """Return the Fourier coefficients of the kept modes: real [batch, channels, *size] -> complex [*modes, batch, channels].

    Scaled by 1 / prod(size), so that coefficients do not depend on the grid.
    """
    *others, last = modes
    return analyze_others(analyze_last(x, last), others)


def synthesize_others(
    z: torch.Tensor, sizes: Sequence[int], first: Rows | None = None
) -> torch.Tensor:
    """Synthesize the axes before the last: complex [*modes, batch, channels] -> [batch, channels, *sizes, last].

    `first`: only these rows of the first axis, sizes[0] of them.
    """
    *others, last, batch, channels = z.shape
    axes = _axes(sizes, first)
    z = z.reshape(*others, last, batch * channels).movedim(-1, 0)
    for axis in range(1, len(others) + 1):
        z = _frequencies_to_sums(z, axis)
    sums = torch.view_as_real(z.contiguous()).flatten(-2)
    for axis, count in enumerate(others):
        table = _other_axis(axes[axis], count, sums.dtype, sums.device, analysis=False)
        before, after = sums.shape[: axis + 1], sums.shape[axis + 2 :]
        flat = sums.reshape(math.prod(before), table.shape[1], math.prod(after))
        sums = torch.matmul(table, flat).view(*before, sizes[axis], *after)
    return torch.view_as_complex(sums.reshape(batch, channels, *sizes, last, 2))


def synthesize_last(
    spectra: torch.Tensor, points: Rows, *, onto: torch.Tensor | None = None
) -> torch.Tensor:
    """Synthesize points of the last axis: complex [.., count] -> real [.., points], added to `onto` if given."""
    *shape, last = spectra.shape
    rows = torch.view_as_real(spectra).reshape(-1, 2 * last)
    table = _last_axis_synthesis(points.points, last, rows.dtype, rows.device)
    if points.count < points.points:
        table = table[:, points.first : points.stop]
    if onto is None:
        return (rows @ table).view(*shape, points.count)
    onto.view(-1, points.count).addmm_(rows, table)
    return onto


def synthesize(
    z: torch.Tensor, size: Sequence[int], *, onto: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the real field on `size` points, as irfftn defines it.

    Complex [*modes, batch, channels] -> real [batch, channels, *size]. The field is added in place to `onto`, a
    contiguous tensor of that shape, if given.
    """
    *sizes, last = size
    return synthesize_last(synthesize_others(z, sizes), Rows.whole(last), onto=onto)
