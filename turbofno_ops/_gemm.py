"""Truncated transforms as real matrix products in plain torch: fast on CPUs, right on any device.

For K kept modes of N points, K << N, a truncated DFT is a product with a fixed table. Truncation and
zero padding cost nothing, any N will do (primes too), and input and output grids may differ.

Complex intermediates are planar: [2, n, rest] holds the real part, then the imaginary part, of n
points or modes of the axis being transformed. Then a complex transform of that axis is one real
product with the block table [[cos, sin], [-sin, cos]], and nothing is recombined afterwards.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from turbofno_ops._modes import column_weights, frequencies

_MAX_TABLES = 256


def _angles(count: int, size: int, *, both_signs: bool) -> torch.Tensor:
    """2 pi k n / size, reduced exactly in integers first. Float64 [count, size]."""
    k = torch.tensor(frequencies(count, both_signs=both_signs), dtype=torch.int64)
    n = torch.arange(size, dtype=torch.int64)
    return torch.outer(k, n).remainder(size).to(torch.float64) * (2 * math.pi / size)


@lru_cache(maxsize=_MAX_TABLES)
def _real_axis_analysis(
    size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[size, 2 * count]: columns cos | -sin, divided by size."""
    with torch.inference_mode(False):
        angles = _angles(count, size, both_signs=False)
        table = torch.cat([angles.cos(), -angles.sin()]).T / size
        return table.contiguous().to(device, dtype)


@lru_cache(maxsize=_MAX_TABLES)
def _real_axis_synthesis(
    size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[2 * count, size]: rows cos | -sin, times how often the column stands in the full spectrum.

    The sine of the DC and Nyquist columns is zero at every point, so their imaginary parts drop out
    by construction; exact zeros, because the angles are reduced in integers, but for Nyquist's pi.
    """
    with torch.inference_mode(False):
        angles = _angles(count, size, both_signs=False)
        weights = column_weights(count, size, dtype=torch.float64, device=angles.device)[:, None]
        sines = angles.sin()
        if size % 2 == 0 and count == size // 2 + 1:
            sines[-1] = 0.0
        return torch.cat([angles.cos() * weights, -sines * weights]).to(device, dtype)


@lru_cache(maxsize=_MAX_TABLES)
def _complex_axis_analysis(
    size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[2 * count, 2 * size]: the block table of exp(-i angle) / size, acting on planar values."""
    with torch.inference_mode(False):
        angles = _angles(count, size, both_signs=True)
        cos, sin = angles.cos(), angles.sin()
        table = torch.cat([torch.cat([cos, sin], 1), torch.cat([-sin, cos], 1)]) / size
        return table.to(device, dtype)


@lru_cache(maxsize=_MAX_TABLES)
def _complex_axis_synthesis(
    size: int, count: int, dtype: torch.dtype, device: torch.device
) -> torch.Tensor:
    """[2 * size, 2 * count]: the block table of exp(+i angle), acting on planar values."""
    with torch.inference_mode(False):
        angles = _angles(count, size, both_signs=True).T
        cos, sin = angles.cos(), angles.sin()
        return torch.cat([torch.cat([cos, -sin], 1), torch.cat([sin, cos], 1)]).to(device, dtype)


def analyze(x: torch.Tensor, modes: Sequence[int]) -> torch.Tensor:
    """Fourier coefficients of the kept modes: real [batch, channels, *size] -> complex [*modes, batch, channels].

    Scaled by 1 / prod(size), so that a coefficient does not depend on the grid.
    """
    batch, channels, *size = x.shape
    fields, last = batch * channels, modes[-1]
    table = _real_axis_analysis(size[-1], last, x.dtype, x.device)
    rows = (x.reshape(-1, size[-1]) @ table).view(fields, *size[:-1], 2, last)
    # planar [2, *size[:-1], fields, last]; each turn replaces one grid axis by its modes, from the last
    planar = rows.permute(len(size), *range(1, len(size)), 0, len(size) + 1)
    for axis in reversed(range(1, len(size))):
        planar = planar.movedim(axis, 1)
        rest = planar.shape[2:]
        table = _complex_axis_analysis(planar.shape[1], modes[axis - 1], x.dtype, x.device)
        planar = (table @ planar.reshape(table.shape[1], -1)).view(2, modes[axis - 1], *rest)
        planar = planar.movedim(1, axis)
    real, imag = planar.movedim(-1, -2).reshape(2, *modes, batch, channels)
    return torch.complex(real, imag)


def synthesize(
    z: torch.Tensor, size: Sequence[int], *, onto: torch.Tensor | None = None
) -> torch.Tensor:
    """The real field on `size` points of the given coefficients, as irfftn defines it.

    Complex [*modes, batch, channels] -> real [batch, channels, *size]. With `onto`, a contiguous
    tensor of that shape, the field is added to it in place.
    """
    n_dim = len(size)
    *modes, batch, channels = z.shape
    fields, last = batch * channels, modes[-1]
    planar = torch.view_as_real(z.reshape(*modes, fields)).movedim(-1, 0).movedim(-1, -2)
    for axis in range(1, n_dim):
        planar = planar.movedim(axis, 1)
        rest = planar.shape[2:]
        table = _complex_axis_synthesis(
            size[axis - 1], modes[axis - 1], planar.dtype, planar.device
        )
        planar = (table @ planar.reshape(table.shape[1], -1)).view(2, size[axis - 1], *rest)
        planar = planar.movedim(1, axis)
    # planar [2, *size[:-1], fields, last] -> rows [(fields, *size[:-1]), (2, last)]
    rows = planar.permute(n_dim, *range(1, n_dim), 0, n_dim + 1).reshape(-1, 2 * last)
    table = _real_axis_synthesis(size[-1], last, rows.dtype, rows.device)
    if onto is None:
        return (rows @ table).view(batch, channels, *size)
    onto.view(-1, size[-1]).addmm_(rows, table)
    return onto
