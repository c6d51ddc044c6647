"""The layout of gradient requests: rows of an input field and the cotangent of its output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from turbofno.service.engine.interface import Fields


class VjpShapes(NamedTuple):
    """Shapes of the two parts of each row, which are flattened and concatenated."""

    input: tuple[int, ...]
    """[in_channels, *grid]: input field; in the answer: gradient."""
    output: tuple[int, ...]
    """[out_channels, *grid]: cotangent; in the answer: output."""

    @property
    def split(self) -> tuple[int, int]:
        """Number of values in each part."""
        return math.prod(self.input), math.prod(self.output)


def join(fields: Fields, cotangents: Fields) -> tuple[Fields, VjpShapes]:
    """Copy float32 [n, in_channels, *grid] and [n, out_channels, *grid] into C-contiguous rows."""
    shapes = VjpShapes(fields.shape[1:], cotangents.shape[1:])
    n = len(fields)
    return np.concatenate([fields.reshape(n, -1), cotangents.reshape(n, -1)], axis=1), shapes


def part(rows: Fields, shapes: VjpShapes) -> tuple[Fields, Fields]:
    """Both parts of all rows, as views."""
    first, second = np.split(rows, [shapes.split[0]], axis=1)
    return first.reshape(-1, *shapes.input), second.reshape(-1, *shapes.output)
