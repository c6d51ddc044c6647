"""Reference of the split fields of the CUDA kernels (csrc/api/turbofno.h) in plain torch."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from turbofno_ops._tile_program import ChannelsLast

_TILE_POINTS = 16


def split_field(field: ChannelsLast) -> ChannelsLast:
    """Split a float32 field: two float16 a value, times the scale of 16 points of a row."""
    points, pitch = field.data.shape[-2:]
    tiles = F.pad(field.data, (0, 0, 0, -points % _TILE_POINTS)).unflatten(-2, (-1, _TILE_POINTS))
    # the largest magnitude becomes 2^14 to 2^15
    scales = (tiles.abs().amax((-2, -1)).log2().floor().clamp(-100, 100) - 14).exp2()
    scaled = (tiles / scales[..., None, None]).flatten(-3, -2)[..., :points, :]
    high = scaled.half()
    low = (scaled - high.float()).half()
    fours = torch.stack([part.unflatten(-1, (pitch // 4, 4)) for part in (high, low)], dim=-2)
    data = fours.flatten(-3).view(torch.float32)
    return replace(field, data=data.contiguous(), scales=scales.contiguous())
