"""Reference of the split fields of the CUDA kernels (csrc/api/turbofno.h) in plain torch."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from turbofno_ops._tile_program import ChannelsLast

_TILE_POINTS = 16


def split_field(field: ChannelsLast) -> ChannelsLast:
    """Split a float32 field: two float16 a value, times the scale of 16 points of a row.

    All parts of a tile with a value that is not finite are NaN, and its scale is finite.
    """
    points, pitch = field.data.shape[-2:]
    tiles = F.pad(field.data, (0, 0, 0, -points % _TILE_POINTS)).unflatten(-2, (-1, _TILE_POINTS))
    largest = tiles.abs().amax((-2, -1))
    finite = largest.isfinite()
    # the largest magnitude becomes 2^14 to 2^15, unless it is very small
    exponents = torch.where(finite, largest, 1).frexp().exponent.clamp(min=-111)
    scales = torch.ldexp(torch.ones_like(largest), exponents - 15)
    tiles = torch.where(finite[..., None, None], tiles / scales[..., None, None], torch.nan)
    scaled = tiles.flatten(-3, -2)[..., :points, :]
    high = scaled.half()
    low = (scaled - high.float()).half()
    fours = torch.stack([part.unflatten(-1, (pitch // 4, 4)) for part in (high, low)], dim=-2)
    data = fours.flatten(-3).view(torch.float32)
    return replace(field, data=data.contiguous(), scales=scales.contiguous())
