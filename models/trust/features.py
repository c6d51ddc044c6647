"""What a field looks like in a few numbers, on any grid: mean, longest waves, variance, energy in octaves of wavenumber."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor

from turbofno.models.trust.tables import remembered

FLOOR = 1e-4
"""Energy, as a share of the channel's variance in training, below which features do not tell fields apart."""
_MOST_POINTS = {1: 16384, 2: 128, 3: 32}
"""Of an axis, in transforms: every second, third, ... point of a finer grid is looked at."""


def linear_features(n_dim: int) -> int:
    """How many features, the first ones, grow with the field: its mean, and the waves with all |k_i| <= 1."""
    return int(3**n_dim)


def octaves(grid: tuple[int, ...]) -> int:
    """How many octaves [1, 2), [2, 4), ... of wavenumber, counted along the axes, that grid can tell."""
    return max(0, (min(grid) // 2).bit_length() - 1)


def features(field: Tensor, scale: Tensor) -> Tensor:
    """Features [n, channels, count] of fields [n, channels, *grid]; `scale` [channels] is each channel's deviation.

    First the linear ones; then logarithms of the variance, and of the part of it in each octave of max |k_i|.
    """
    field = _thinned(field)
    axes = tuple(range(2, field.ndim))
    spectrum = torch.view_as_real(torch.fft.rfftn(field, dim=axes, norm="forward")).flatten(2)
    linear, weights = _tables(tuple(field.shape[2:]), field.dtype, field.device)
    energies = spectrum.square() @ weights + (FLOOR * scale.square()).unsqueeze(-1)
    return torch.cat([spectrum[..., linear], energies.log_()], dim=-1)


def distance(found: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Root mean square, [n], of (features - mean) / deviation; octaves that one of both does not have are left out."""
    count = min(found.shape[-1], mean.shape[-1])
    apart = (found[..., :count] - mean[..., :count]) / deviation[..., :count]
    return torch.linalg.vector_norm(apart, dim=(1, 2)) / math.sqrt(apart[0].numel())


def _thinned(field: Tensor) -> Tensor:
    most = _MOST_POINTS[field.ndim - 2]
    for axis in range(2, field.ndim):
        stride = math.ceil(field.shape[axis] / most)
        if stride > 1:
            field = field[(slice(None),) * axis + (slice(None, None, stride),)]
    return field


@remembered(64)
def _tables(
    grid: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Of rfftn's spectrum as real numbers: where the linear features lie, and what each adds to variance and octaves.

    By Parseval a coefficient adds its square, and that of its conjugate where rfftn leaves that out.
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
    return _linear_places(grid).to(device), weights.to(device, dtype)


def _linear_places(grid: tuple[int, ...]) -> Tensor:
    """The mean, then real and imaginary part of one wave of each pair {k, -k} with all |k_i| <= 1."""
    sizes = (*grid[:-1], grid[-1] // 2 + 1)
    places = [0]
    for k in itertools.product((-1, 0, 1), repeat=len(grid)):
        if k[::-1] > (0,) * len(grid):
            flat = 0
            for step, size in zip(k, sizes, strict=True):
                flat = flat * size + step % size
            places += [2 * flat, 2 * flat + 1]
    return torch.tensor(places)
