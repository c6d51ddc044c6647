"""Memory that a network needs for its fields, computed from its architecture."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofno.models.core.architecture import FNOArchitecture

_FLOAT32_BYTES = 4.0


def activation_bytes(arch: FNOArchitecture, grid: tuple[int, ...]) -> float:
    """Bytes of float32 that all layers write for one field; infinity on overflow."""
    mlp = 0 if arch.channel_mlp is None else arch.channel_mlp.hidden_channels
    channels = arch.in_channels + arch.out_channels + arch.n_layers * (arch.hidden_channels + mlp)
    channels += sum((*arch.lifting_channels, *arch.projection_channels))
    try:
        return _FLOAT32_BYTES * channels * _most_points(arch, grid)
    except OverflowError:
        return math.inf


def _most_points(arch: FNOArchitecture, grid: tuple[int, ...]) -> float:
    """Grid points of the largest layer, with domain padding and resolution scaling."""
    points = [float(count) for count in grid]
    padding = arch.domain_padding
    if padding is not None:
        sides = 2 if padding.sides == "both" else 1
        added = padding.points or [
            count * share for count, share in zip(points, padding.fraction or (), strict=True)
        ]
        points = [count + sides * more for count, more in zip(points, added, strict=True)]
    most = math.prod(points)
    for scales in arch.resolution_scaling:
        points = [count * scale for count, scale in zip(points, scales, strict=True)]
        most = max(most, math.prod(points))
    return most
