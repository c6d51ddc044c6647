"""Fields on another grid: through their Fourier series on periodic domains, piecewise linear between nodes.

Why these two, and what they cost in accuracy: docs/decisions/0020-any-resolution.md.
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
    """What the fields are at the points of a grid of `size`: unchanged at points that both grids have.

    Args:
        fields: float32 [n, channels, *grid]; computed on in float64.
        size: the new grid.
        boundary: as `GridSpec` has it.

    Returns:
        float32 [n, channels, *size]; the fields themselves if that is their grid. Infinite where a Fourier series
        through values near the largest float32 passes it.
    """
    return _each(fields, size, boundary, aliasing=True)


def band_limited(fields: Fields, size: Sequence[int], boundary: Boundary) -> Fields:
    """As `at_points`, but on a periodic domain without the frequencies that a coarser grid cannot hold.

    At its points they would look like low frequencies, which a network would take for real.
    """
    return _each(fields, size, boundary, aliasing=False)


def _each(fields: Fields, size: Sequence[int], boundary: Boundary, *, aliasing: bool) -> Fields:
    target = tuple(size)
    if fields.shape[2:] == target:
        return fields
    answer = np.empty((*fields.shape[:2], *target), np.float32)
    # One after another: only one field's float64 values are held at a time.
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
    """Both ends are nodes. Integer arithmetic, so that a node that both grids have is met exactly."""
    spacings, cells = values.shape[axis] - 1, max(points - 1, 1)
    left, rest = np.divmod(np.arange(points) * spacings, cells)
    weight = (rest / cells).reshape(-1, *[1] * (values.ndim - 1 - axis))
    below = values.take(left, axis)
    return below + weight * (values.take(np.minimum(left + 1, spacings), axis) - below)


def _fourier(values: Values, axis: int, points: int, *, aliasing: bool) -> Values:
    size = values.shape[axis]
    if aliasing and points < size:
        # a finer grid that contains the coarse one
        every = -(-size // points)
        if size != every * points:
            values = _fourier(values, axis, every * points, aliasing=False)
        return values.take(np.arange(points) * every, axis)
    spectrum = np.moveaxis(np.fft.rfft(values, axis=axis), axis, -1)
    common = min(size, points)
    spectrum = spectrum[..., : common // 2 + 1].copy()
    if common % 2 == 0:
        # The highest frequency of an even grid stands once for itself and its negative.
        spectrum[..., -1] *= 0.5 if points > size else 2.0
    field = np.fft.irfft(spectrum, n=points, axis=-1) * (points / size)
    return np.moveaxis(field, -1, axis)
