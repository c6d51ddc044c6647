"""Tables of the dense discrete Fourier transforms, csrc/kernels/dense_dft.cu."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

_TERMS, _COLUMNS = 32, 8
_EXPONENT = 13
_COMPLEX_TO_REAL = 2
_FP32 = 0
_TRUNCATED = 2.0**-24
"""Tensor cores truncate when they accumulate: on average by this share of a product of 32 terms."""


def dense_table(points: int, kind: int, inverse: int, precision: int) -> torch.Tensor:
    """Return the table of a dense transform as uint8, computed in float64.

    Terms n and columns k are 0 .. points // 2. The cosines are the even part of the transform, the sines, with the
    transform's sign, its odd part; from complex to real both have the weight with which a half spectrum's values count.

    Args:
        points: Of the transformed line, 2 to 1024.
        kind: Value of `turbofno_transform_kind`.
        inverse: 1 if the exponent's sign is positive, else 0.
        precision: `turbofno_precision`: float32 has high and low halves of every value, float16 one.

    Returns:
        Halves [chunk of 32 terms, 8 columns, cos and sin, 16 terms, high and low, 8 terms, column, term] as bytes, zero padded.

    Example:
        >>> dense_table(61, kind=1, inverse=0, precision=0).numel()
        8192
    """
    with torch.inference_mode(False):
        cosines, sines = _parts(points, kind, inverse)
        count = points // 2 + 1
        table = torch.stack([cosines, sines]) * 2.0**_EXPONENT
        table = F.pad(table, (0, -count % _COLUMNS, 0, -count % _TERMS))
        chunks, fragments = table.shape[1] // _TERMS, table.shape[2] // _COLUMNS
        # terms: chunk, step, 4 (i / 2), half, i % 2; columns: fragment, upper half e, lane t of column 2t + e
        view = table.view(2, chunks, 2, 4, 2, 2, fragments, 2, 4)
        values = view.permute(1, 6, 0, 2, 4, 8, 7, 3, 5)
        high, planes = values.to(torch.float16), []
        planes.append(high)
        if precision == _FP32:
            planes.append((values * (1.0 + _TRUNCATED) - high.double()).to(torch.float16))
        return torch.stack(planes, dim=4).contiguous().flatten().view(torch.uint8)


def _parts(points: int, kind: int, inverse: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return cosines and sines, float64 [terms, columns], of angles reduced modulo 2 pi exactly."""
    numbers = torch.arange(points // 2 + 1)
    turns = torch.outer(numbers, numbers).remainder(points)
    angles = turns.to(torch.float64) * (2 * math.pi / points)
    cosines = angles.cos()
    sines = angles.sin().masked_fill(2 * turns % points == 0, 0.0)
    sign = 1.0 if inverse else -1.0
    if kind != _COMPLEX_TO_REAL:
        return cosines, sign * sines
    once = (numbers == 0) | (2 * numbers == points)
    weights = torch.where(once, 1.0, 2.0).to(torch.float64).unsqueeze(1)
    return weights * cosines, -sign * weights * sines
