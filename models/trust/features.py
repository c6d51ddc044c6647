"""Features of a field on any grid: mean, longest waves, variance, energy per octave of wavenumber."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from turbofno.models.trust.tables import cached_table
from turbofno_ops.fft import transforms_for

FLOOR = 1e-4
"""Added to every energy, as a share of the channel's training variance, so that its logarithm is bounded below."""
_MOST_POINTS = {1: 16384, 2: 128, 3: 32}
"""Largest transform along an axis, by dimension; finer grids are subsampled."""


def linear_features(n_dim: int) -> int:
    """Number of linear features, which come first: the mean, and the waves with all |k_i| <= 1."""
    return int(3**n_dim)


def octaves(grid: tuple[int, ...]) -> int:
    """Number of octaves [1, 2), [2, 4), ... of wavenumber that the grid resolves along every axis."""
    return max(0, (min(grid) // 2).bit_length() - 1)


def features(field: Tensor, scale: Tensor) -> Tensor:
    """Features [n, channels, count] of fields [n, channels, *grid]; `scale` [channels] is each channel's deviation.

    The linear ones come first, then the logarithms of the variance and of its part in each octave of max |k_i|.
    """
    field = _subsampled(field)
    axes = tuple(range(2, field.ndim))
    coefficients = transforms_for(field, in_graph=True).rfftn(field, dim=axes, norm="forward")
    spectrum = torch.view_as_real(coefficients).flatten(2)
    linear, weights = _tables(tuple(field.shape[2:]), field.dtype, field.device)
    energies = spectrum.square() @ weights + (FLOOR * scale.square()).unsqueeze(-1)
    return torch.cat([spectrum[..., linear], energies.log_()], dim=-1)


def distance(found: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Root mean square [n] of (features - mean) / deviation, over the features that both have."""
    count = min(found.shape[-1], mean.shape[-1])
    apart = (found[..., :count] - mean[..., :count]) / deviation[..., :count]
    return torch.linalg.vector_norm(apart, dim=(1, 2)) / math.sqrt(apart[0].numel())


def _subsampled(field: Tensor) -> Tensor:
    most = _MOST_POINTS[field.ndim - 2]
    for axis in range(2, field.ndim):
        stride = math.ceil(field.shape[axis] / most)
        if stride > 1:
            field = field[(slice(None),) * axis + (slice(None, None, stride),)]
    return field


@cached_table(64)
def _tables(
    grid: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Indices of the linear features in rfftn's real-valued spectrum, and each entry's weight in variance and octaves.

    By Parseval, a coefficient contributes its square, twice if rfftn omits its conjugate.
    """
    *others, last = grid
    kept = last // 2 + 1
    counts = torch.full((kept,), 2.0, dtype=torch.float64)
    counts[0] = 1.0
    if last % 2 == 0:
        counts[-1] = 1.0
    wavenumber = torch.arange(kept, dtype=torch.float64)
    for axis, size in enumerate(others):
        k = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64).abs()
        shape = [1] * len(grid)
        shape[axis] = size
        wavenumber = torch.maximum(wavenumber, k.view(shape))
    in_band = [wavenumber >= 1] + [
        (wavenumber >= 2**octave) & (wavenumber < 2 ** (octave + 1))
        for octave in range(octaves(grid))
    ]
    weights = torch.stack([(counts * band).flatten() for band in in_band], dim=1)
    weights = weights.repeat_interleave(2, dim=0)
    return _linear_indices(grid).to(device), weights.to(device, dtype)


def _linear_indices(grid: tuple[int, ...]) -> Tensor:
    """Indices of the mean, then of real and imaginary part of one wave of each pair {k, -k} with all |k_i| <= 1."""
    sizes = (*grid[:-1], grid[-1] // 2 + 1)
    indices = [0]
    for k in itertools.product((-1, 0, 1), repeat=len(grid)):
        if k[::-1] > (0,) * len(grid):
            flat = 0
            for step, size in zip(k, sizes, strict=True):
                flat = flat * size + step % size
            indices += [2 * flat, 2 * flat + 1]
    return torch.tensor(indices)
