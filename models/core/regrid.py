"""Interpolation to another grid: by Fourier series on periodic domains, piecewise linear between nodes.

Reasons and accuracy: docs/explanation/decisions/accuracy.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Fields = NDArray[np.float32]
Values = NDArray[np.float64]
Boundary = Literal["periodic", "nodes"]


def at_points(fields: Fields, size: Sequence[int], boundary: Boundary) -> Fields:
    """The fields interpolated to a grid of `size`; values at points of both grids do not change.

    Args:
        fields: float32 [n, channels, *grid]; computed in float64.
        size: the new grid.
        boundary: see `GridSpec`.

    Returns:
        float32 [n, channels, *size]; `fields` itself if the grid does not change. Infinite where the interpolation of
        values near the largest float32 exceeds it.
    """
    return _each(fields, size, boundary, aliasing=True)


def band_limited(fields: Fields, size: Sequence[int], boundary: Boundary) -> Fields:
    """As `at_points`, but on periodic domains without the frequencies above a coarser grid's Nyquist limit.

    They would alias into low frequencies of the network's input.
    """
    return _each(fields, size, boundary, aliasing=False)


def _each(fields: Fields, size: Sequence[int], boundary: Boundary, *, aliasing: bool) -> Fields:
    target = tuple(size)
    if fields.shape[2:] == target:
        return fields
    answer = np.empty((*fields.shape[:2], *target), np.float32)
    # One by one, to hold only one field in float64 at a time.
    for source, result in zip(fields, answer, strict=True):
        values: Values = source.astype(np.float64)
        for axis, points in enumerate(target, start=1):
            if values.shape[axis] == points:
                continue
            if boundary == "nodes":
                values = _linear(values, axis, points)
            else:
                values = _fourier(values, axis, points, aliasing=aliasing)
        with np.errstate(over="ignore"):
            result[...] = values
    return answer


def _linear(values: Values, axis: int, points: int) -> Values:
    """Both ends are nodes. Integer arithmetic keeps the values at nodes of both grids exact."""
    spacings, cells = values.shape[axis] - 1, max(points - 1, 1)
    left, rest = np.divmod(np.arange(points) * spacings, cells)
    weight = (rest / cells).reshape(-1, *[1] * (values.ndim - 1 - axis))
    below = values.take(left, axis)
    return below + weight * (values.take(np.minimum(left + 1, spacings), axis) - below)


def _fourier(values: Values, axis: int, points: int, *, aliasing: bool) -> Values:
    size = values.shape[axis]
    if aliasing and points < size:
        # interpolate to a finer grid that contains the coarse one, then take its points
        every = -(-size // points)
        if size != every * points:
            values = _fourier(values, axis, every * points, aliasing=False)
        return values.take(np.arange(points) * every, axis)
    spectrum = np.moveaxis(np.fft.rfft(values, axis=axis), axis, -1)
    common = min(size, points)
    spectrum = spectrum[..., : common // 2 + 1].copy()
    if common % 2 == 0:
        # The Nyquist frequency of an even grid has one coefficient for both signs.
        spectrum[..., -1] *= 0.5 if points > size else 2.0
    field = np.fft.irfft(spectrum, n=points, axis=-1) * (points / size)
    return np.moveaxis(field, -1, axis)
