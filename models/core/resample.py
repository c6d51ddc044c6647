"""Resampling of a skip connection in a layer that changes the resolution, as in neuraloperator."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F

from turbofno_ops.fft import transforms_for


def resample(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """[batch, channels, *grid] -> [batch, channels, *size].

    Linear in 1D, bicubic in 2D (both with aligned corners), through the spectrum in 3D: of each axis the first and
    last `m // 2` rows are copied, m being the smaller size. On odd axes that is one row too few in front and
    one too many at the back; neuraloperator does so, and networks were trained with it.
    """
    target = list(size)
    if len(target) == 1:
        # as one row of a plane: on a GPU PyTorch's linear interpolation runs a thread for each point, over all channels
        of_plane = F.interpolate(
            x.unsqueeze(-2), size=[1, *target], mode="bilinear", align_corners=True
        )
        return of_plane.squeeze(-2)
    if len(target) == 2:
        return F.interpolate(x, size=target, mode="bicubic", align_corners=True)
    axes = list(range(2, x.ndim))
    transforms = transforms_for(x)
    spectrum = transforms.rfftn(x, dim=axes, norm="forward")
    half = [*target[:-1], target[-1] // 2 + 1]
    *rows, columns = (min(pair) for pair in zip(half, spectrum.shape[2:], strict=True))
    filled = spectrum.new_zeros(*spectrum.shape[:2], *half)
    ends = [(slice(m // 2), slice(-m // 2, None)) for m in rows]
    for corner in itertools.product(*ends):
        place = (..., *corner, slice(columns))
        filled[place] = spectrum[place]
    field: torch.Tensor = transforms.irfftn(filled, s=target, dim=axes, norm="forward")
    return field
