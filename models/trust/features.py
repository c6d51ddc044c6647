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
    linear, last, others = _tables(tuple(field.shape[2:]), field.dtype, field.device)
    # first along the last axis, so that the product has many rows: few long ones leave a GPU idle
    sums = spectrum.square().unflatten(2, (len(others) // 2, -1)) @ last
    energies = (sums.view(*sums.shape[:2], *others.shape) * others).sum(2)
    energies += (FLOOR * scale.square()).unsqueeze(-1)
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
) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of the linear features in rfftn's real-valued spectrum, and the weights of the energies.

    By Parseval, a coefficient contributes its square, twice if rfftn omits its conjugate. The largest |k_i| is in a band if
    either that of the last axis is and the others are not above it, or the others' is and the last is below it. The weights
    of both cases are those of a coefficient's place on the last axis [2 * kept, 2 * bands] times those of its place on the
    others [places * 2, bands].
    """
    *others, last = grid
    kept = last // 2 + 1
    counts = torch.full((kept, 1), 2.0, dtype=torch.float64)
    counts[0] = 1.0
    if last % 2 == 0:
        counts[-1] = 1.0
    on_last = torch.arange(kept, dtype=torch.float64)[:, None]
    on_others = torch.zeros(1, dtype=torch.float64)
    for size in others:
        k = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64).abs()
        on_others = torch.maximum(on_others[:, None], k).flatten()
    on_others = on_others[:, None]
    # the variance, then the octaves
    low = torch.tensor([1.0, *(2.0**octave for octave in range(octaves(grid)))])
    high = torch.cat([torch.tensor([math.inf]), 2 * low[1:]])
    of_last = torch.cat([(on_last >= low) & (on_last < high), on_last < low], dim=1) * counts
    within = on_others < high
    of_others = torch.stack([within, within & (on_others >= low)], dim=1).flatten(0, 1)
    of_last = of_last.repeat_interleave(2, dim=0)
    return _linear_indices(grid).to(device), of_last.to(device, dtype), of_others.to(device, dtype)


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
