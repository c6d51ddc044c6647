"""Features of a field on any grid: mean, longest waves, variance, energy per octave of wavenumber."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool1d, adaptive_avg_pool2d, adaptive_avg_pool3d

from turbofno.models.trust.tables import cached_table
from turbofno_ops import _torch_fft, fft
from turbofno_ops._octaves import octave_energies

FLOOR = 1e-4
"""Added to every energy, as a share of the channel's training variance, so that its logarithm is bounded below."""
_MOST_POINTS = {1: 16384, 2: 1024, 3: 128}
"""Largest transform along an axis, by dimension; finer fields are averaged over blocks of points."""
_AVERAGES: dict[int, Callable[..., Tensor]] = {
    1: adaptive_avg_pool1d,
    2: adaptive_avg_pool2d,
    3: adaptive_avg_pool3d,
}
_DAMPED = 0.01
"""Share of their energy that long waves may lose by this averaging, and by blocks of unequal size."""
_MOST_OCTAVES = 16
"""More than any of these transforms has."""


def linear_features(n_dim: int) -> int:
    """Number of linear features, which come first: the mean, and the waves with all |k_i| <= 1."""
    return int(3**n_dim)


def octaves(grid: tuple[int, ...]) -> int:
    """Number of octaves [1, 2), [2, 4), ... of wavenumber that the grid resolves along every axis."""
    return max(0, (min(grid) // 2).bit_length() - 1)


def resolved_features(grid: tuple[int, ...]) -> int:
    """Number of features that the grid shows in full: all but the octaves that not every axis resolves.

    If fields on the grid are averaged over blocks, it is one octave less: averaging damps its waves.
    """
    transformed = _transformed(grid)
    full = octaves(transformed) - (transformed != grid)
    return linear_features(len(grid)) + 1 + max(0, full)


class Spectrum(NamedTuple):
    """What rfftn gives for fields on a grid."""

    coefficients: Tensor
    """[n, channels, *grid but for the last axis, last // 2 + 1]."""
    factor: float
    """Times this, the coefficients are those of norm "forward"."""
    grid: tuple[int, ...]

    def low(self, modes: tuple[int, ...]) -> Tensor:
        """Coefficients [n, channels, *modes] of fields of one or two axes for the smallest wavenumbers, in the order of rfftn."""
        *rows, columns = modes
        low = self.coefficients[..., :columns]
        return (lowest_rows(low, rows[0]) if rows else low) * self.factor


def lowest_rows(spectrum: Tensor, count: int) -> Tensor:
    """Of an axis before the last, transformed whole, the odd number of coefficients for the smallest wavenumbers."""
    return torch.cat([spectrum[..., : (count + 1) // 2, :], spectrum[..., -(count // 2) :, :]], -2)


def spectrum_of(field: Tensor) -> Spectrum:
    """The spectrum of fields [n, channels, *grid], on their grid or on that of averages over blocks."""
    axes = tuple(range(2, field.ndim))
    grid = _transformed(tuple(field.shape[2:]))
    if grid != field.shape[2:]:
        field = _AVERAGES[len(grid)](field, grid)
    if fft.is_preferred(field, in_graph=True):
        # torch.fft, if it runs, multiplies in a pass of its own
        backend = backend_of("rfftn", field, dim=axes)
        return Spectrum(fft.rfftn(field, dim=axes, backend=backend), 1 / math.prod(grid), grid)
    return Spectrum(_torch_fft.rfftn(field, dim=axes, norm="forward"), 1.0, grid)


def backend_of(
    name: str, x: Tensor, *, dim: tuple[int, ...] | None = None, modes: int | None = None
) -> str:
    """The backend of a transform of `turbofno_ops.fft`: its kernels wherever they run, even if torch.fft is as fast.

    cuFFT makes a plan for each batch size and grid, which delays the first batch.
    """
    try:
        fft.explain(name, x, dim=dim, modes=modes, backend="kernels")
    except ValueError:
        return "torch"
    return "kernels"


def features(field: Tensor, scale: Tensor, spectrum: Spectrum | None = None) -> Tensor:
    """Features [n, channels, count] of fields [n, channels, *grid]; `scale` [channels] is each channel's deviation.

    The linear ones come first, then the logarithms of the variance and of its part in each octave of max |k_i|, up to
    the largest on the grid. Every point counts: energy that averaging over blocks removes is in the last octave.
    `spectrum` is theirs, if it is known.
    """
    coefficients, factor, grid = spectrum or spectrum_of(field)
    energies = _energies(coefficients, factor, grid)
    if grid != field.shape[2:]:
        axes = tuple(range(2, field.ndim))
        left = (1 + _DAMPED) * energies[..., 0]
        removed = (field.var(axes, correction=0) - left).clamp_min_(0)
        energies[..., 0] += removed
        energies[..., -1] += removed
    energies.addcmul_(scale[:, None], scale[:, None], value=FLOOR)
    values = torch.view_as_real(coefficients).flatten(2)
    linear = values.index_select(2, _linear_indices(grid, values.device)).mul_(factor)
    return torch.cat([linear, energies.log_()], dim=-1)


def _energies(coefficients: Tensor, factor: float, grid: tuple[int, ...]) -> Tensor:
    """The variance and its part in each octave [n, channels, 1 + octaves], by Parseval."""
    if fft.is_preferred(coefficients, in_graph=True) and coefficients.is_cuda:
        place_octaves = _place_octaves(grid[:-1], coefficients.device)
        octaves = (max(grid) // 2).bit_length()
        energies = octave_energies(
            coefficients, place_octaves, points=grid[-1], octaves=octaves, factor=factor
        )
        return energies.view(*coefficients.shape[:2], -1)
    values = torch.view_as_real(coefficients).flatten(2)
    last, others = _weights(grid, values.dtype, values.device)
    # first along the last axis, so that the product has many rows: few long ones leave a GPU idle
    sums = values.square().unflatten(2, (len(others) // 2, -1)) @ last
    return (sums.view(*sums.shape[:2], *others.shape) * others).sum(2) * factor**2


def with_finer_octaves(mean: Tensor, deviation: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of features [channels, known] with the octaves that follow; see `distance`.

    Expected there is the energy of the last known octave, or, where energy rises with the wavenumber as in white noise,
    that of a rise which goes on.
    """
    rise = (mean[..., -1:] - mean[..., -2:-1]).clamp_min(0)
    steps = torch.arange(1, _MOST_OCTAVES + 1, dtype=mean.dtype, device=mean.device)
    last = deviation[..., -1:].expand(*deviation.shape[:-1], _MOST_OCTAVES)
    return torch.cat([mean, mean[..., -1:] + rise * steps], -1), torch.cat([deviation, last], -1)


def distance(found: Tensor, mean: Tensor, deviation: Tensor, resolved: int) -> Tensor:
    """Root mean square [n] of (features - mean) / deviation over the first `resolved`; see `with_finer_octaves`.

    These are the features that both grids show in full, that of `found` and that of the training data. Of the octaves
    after them, energy above the mean is added: there must not be more than in the last known octave.
    """
    count = found.shape[-1]
    apart = (found - mean[..., :count]) / deviation[..., :count]
    apart[..., resolved:].clamp_(min=0)
    return torch.linalg.vector_norm(apart, dim=(1, 2)) / math.sqrt(apart.shape[1] * resolved)


def _transformed(grid: tuple[int, ...]) -> tuple[int, ...]:
    """The grid of the transform: the same, or that of averages over blocks."""
    most = _MOST_POINTS[len(grid)]
    return tuple(math.ceil(size / math.ceil(size / most)) for size in grid)


@cached_table(64)
def _weights(
    grid: tuple[int, ...], dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """The weights of squares in rfftn's real-valued spectrum.

    By Parseval, a coefficient contributes its square, twice if rfftn omits its conjugate. The largest |k_i| is in a band if
    either that of the last axis is and the others are not above it, or the others' is and the last is below it. The weights
    of both cases are those of a coefficient's place on the last axis [2 * kept, 2 * bands] times those of its place on the
    others [places * 2, bands].
    """
    last = grid[-1]
    kept = last // 2 + 1
    counts = torch.full((kept, 1), 2.0, dtype=torch.float64)
    counts[0] = 1.0
    if last % 2 == 0:
        counts[-1] = 1.0
    on_last = torch.arange(kept, dtype=torch.float64)[:, None]
    on_others = _largest_wavenumbers(grid[:-1])[:, None]
    # the variance, then the octaves
    low = torch.tensor([1.0, *(2.0**octave for octave in range((max(grid) // 2).bit_length()))])
    high = torch.cat([torch.tensor([math.inf]), 2 * low[1:]])
    of_last = torch.cat([(on_last >= low) & (on_last < high), on_last < low], dim=1) * counts
    within = on_others < high
    of_others = torch.stack([within, within & (on_others >= low)], dim=1).flatten(0, 1)
    of_last = of_last.repeat_interleave(2, dim=0)
    return of_last.to(device, dtype), of_others.to(device, dtype)


@cached_table(64)
def _place_octaves(others: tuple[int, ...], device: torch.device) -> Tensor:
    """Octave of the largest |k_i| on the axes but the last, int32 [places]; -1 where all are 0."""
    largest = _largest_wavenumbers(others)
    return largest.clamp_min(0.5).log2().floor().int().to(device)


def _largest_wavenumbers(sizes: tuple[int, ...]) -> Tensor:
    """The largest |k_i| of coefficients on axes of these sizes, float64, flattened; a single 0 without axes."""
    largest = torch.zeros(1, dtype=torch.float64)
    for size in sizes:
        k = torch.fft.fftfreq(size, 1 / size, dtype=torch.float64).abs()
        largest = torch.maximum(largest[:, None], k).flatten()
    return largest


@cached_table(64)
def _linear_indices(grid: tuple[int, ...], device: torch.device) -> Tensor:
    """Indices in rfftn's real-valued spectrum of the mean, then of real and imaginary part of one wave of each pair {k, -k} with all |k_i| <= 1."""
    sizes = (*grid[:-1], grid[-1] // 2 + 1)
    indices = [0]
    for k in itertools.product((-1, 0, 1), repeat=len(grid)):
        if k[::-1] > (0,) * len(grid):
            flat = 0
            for step, size in zip(k, sizes, strict=True):
                flat = flat * size + step % size
            indices += [2 * flat, 2 * flat + 1]
    return torch.tensor(indices, device=device)
