"""A request for gradients on its way to the device: rows of an input field and the cotangent of its output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from turbofno.service.engine.interface import Fields


class VjpShapes(NamedTuple):
    """What the two parts of each row are: flattened, one after the other."""

    input: tuple[int, ...]
    """[in_channels, *grid]: the input field; in the answer the gradient."""
    output: tuple[int, ...]
    """[out_channels, *grid]: the cotangent; in the answer the output."""

    @property
    def split(self) -> tuple[int, int]:
        """Numbers in each part."""
        return math.prod(self.input), math.prod(self.output)


def join(fields: Fields, cotangents: Fields) -> tuple[Fields, VjpShapes]:
    """float32 [n, in_channels, *grid] and [n, out_channels, *grid] as rows, C-contiguous, in memory of their own."""
    shapes = VjpShapes(fields.shape[1:], cotangents.shape[1:])
    n = len(fields)
    return np.concatenate([fields.reshape(n, -1), cotangents.reshape(n, -1)], axis=1), shapes


def part(rows: Fields, shapes: VjpShapes) -> tuple[Fields, Fields]:
    """Both parts of every row, as views."""
    first, second = np.split(rows, [shapes.split[0]], axis=1)
    return first.reshape(-1, *shapes.input), second.reshape(-1, *shapes.output)
