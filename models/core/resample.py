"""Bringing a skip connection to the grid of a layer that changes the resolution, as neuraloperator does it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F


def resample(x: torch.Tensor, size: Sequence[int]) -> torch.Tensor:
    """[batch, channels, *grid] -> [batch, channels, *size].

    Linear in one dimension, bicubic in two (corners on corners), through the spectrum in three. There the
    corners of the two spectra are copied, `m // 2` rows at the front and at the back with m the smaller
    size: on odd axes a row too few at the front and one too many at the back, which is what networks
    were trained with.
    """
    target = list(size)
    if len(target) == 1:
        return F.interpolate(x, size=target, mode="linear", align_corners=True)
    if len(target) == 2:
        return F.interpolate(x, size=target, mode="bicubic", align_corners=True)
    axes = list(range(2, x.ndim))
    spectrum = torch.fft.rfftn(x, dim=axes, norm="forward")
    half = [*target[:-1], target[-1] // 2 + 1]
    *rows, columns = (min(pair) for pair in zip(half, spectrum.shape[2:], strict=True))
    filled = spectrum.new_zeros(*spectrum.shape[:2], *half)
    ends = [(slice(m // 2), slice(-m // 2, None)) for m in rows]
    for corner in itertools.product(*ends):
        place = (..., *corner, slice(columns))
        filled[place] = spectrum[place]
    return torch.fft.irfftn(filled, s=target, dim=axes, norm="forward")
