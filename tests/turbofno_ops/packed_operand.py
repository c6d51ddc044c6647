"""Reference of csrc/kernels/pack_operand.cu in plain torch, bitwise equal."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from turbofno_ops._cuda_tables import _COLUMNS, _TERMS, _axes, _words


def packed_operand(matrix: torch.Tensor, precision: str) -> torch.Tensor:
    """Pack a matrix [channels out, channels in] as a B operand (csrc/kernels/warp_mma.cuh). Returns uint8.

    Every 16 columns have their own scale. Its inverse, a float32, follows the words, once for every 32 terms.
    """
    columns, terms = matrix.shape
    padded = F.pad(matrix.detach().double(), (0, -terms % _TERMS, 0, -columns % _COLUMNS))
    chunks, pairs = padded.shape[1] // _TERMS, padded.shape[0] // _COLUMNS
    chunk, pair, step, lane, fragment, half, at = _axes(
        padded.device, chunks, pairs, 2, 32, 2, 2, 2
    )
    group, t = lane // 4, lane % 4
    column = _COLUMNS * pair + 4 * (group // 2) + group % 2 + 2 * fragment
    term = _TERMS * chunk + 16 * step + 4 * t + 2 * half + at
    blocks = padded[column, term]
    largest = blocks.abs().amax(dim=(0, 2, 3, 4, 5, 6))
    exponents = _exponents(largest, precision).expand(chunks, pairs)
    scaled = blocks * exponents.double().exp2().view(chunks, pairs, 1, 1, 1, 1, 1)
    words = (
        _enlarged_words(scaled, terms)
        if precision == "fp32"
        else _words(scaled, precision, lane_axis=3)
    )
    inverse_scales = (-exponents.float()).exp2().flatten()
    inverse_scales = F.pad(inverse_scales, (0, -len(inverse_scales) % 4))
    return torch.cat([words, inverse_scales.contiguous().view(torch.uint8)])


def _enlarged_words(scaled: torch.Tensor, terms: int) -> torch.Tensor:
    """Return high and low parts of values [chunk, pair, ..], larger by what tensor cores truncate, as bytes."""
    left = terms - _TERMS * torch.arange(len(scaled), device=scaled.device)
    share = torch.where(left > _TERMS // 2, 1.0, 0.625).double() * 2.0**-24
    high = scaled.to(torch.float16)
    low = (scaled - high.double() + share.view(-1, *[1] * (scaled.ndim - 1)) * scaled).float()
    return (
        torch.stack([high, low.to(torch.float16)], dim=3).contiguous().flatten().view(torch.uint8)
    )


def _exponents(largest: torch.Tensor, precision: str) -> torch.Tensor:
    """Return exponents that scale the largest magnitudes to 2^13 .. 2^14; 0 for zeros and for bfloat16."""
    if precision == "bf16":
        return torch.zeros_like(largest, dtype=torch.int32)
    exponents = 14 - torch.frexp(largest).exponent
    return torch.where(largest > 0, exponents.clamp(-100, 100), 0)
