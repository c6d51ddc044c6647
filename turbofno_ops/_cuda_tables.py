"""The tables that the CUDA kernels read, made in float64 and kept while they are used."""

from __future__ import annotations

import torch

from turbofno_ops._gemm import _angles, _tables

_TILE_ROWS, _STEP_TERMS = 16, 8


def column_analysis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Of columns of `points` to `modes` coefficients in FFT order, divided by `points`."""
    return _column_sums(points, modes, device, analysis=True)


def column_synthesis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Of `modes` coefficients in FFT order to columns of `points`."""
    return _column_sums(points, modes, device, analysis=False)


@_tables.cached
def _column_sums(points: int, modes: int, device: torch.device, *, analysis: bool) -> torch.Tensor:
    """cos and -sin (analysis) or sin of frequencies 0 .. modes // 2 at points 0 .. points // 2.

    Rows are what comes out, terms what is summed over. Float32 [tiles of 16 rows, steps of 8 terms,
    cos and sin, high and low TF32 part, 8, 4, 2, 2]: where csrc/kernels/columns.cu wants them, the last
    four axes being row, term, term // 4, row // 8. Zeros beyond the last row and term.
    """
    with torch.inference_mode(False):
        at = _angles(modes // 2 + 1, points)[:, : points // 2 + 1]
        at, scale, sign = (at, 1 / points, -1.0) if analysis else (at.T, 1.0, 1.0)
        rows, terms = at.shape
        tiles, steps = -(-rows // _TILE_ROWS), -(-terms // _STEP_TERMS)
        table = torch.zeros(2, tiles * _TILE_ROWS, steps * _STEP_TERMS, dtype=torch.float64)
        table[0, :rows, :terms] = at.cos() * scale
        table[1, :rows, :terms] = at.sin() * (sign * scale)
        high = _tf32(table)
        parts = torch.stack([high, _tf32(table - high)], dim=1)
        parts = parts.view(2, 2, tiles, 2, 8, steps, 2, 4).permute(2, 5, 0, 1, 4, 7, 6, 3)
        return parts.contiguous().to(device)


def _tf32(values: torch.Tensor) -> torch.Tensor:
    """Rounded to the 11 significant bits of TF32, as float32."""
    bits = values.to(torch.float32).view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
