"""Constant tables of the CUDA kernels, in the order in which tensor cores take their operands."""

from __future__ import annotations

import torch

from turbofno_ops._gemm import _angles, _last_axis_analysis, _last_axis_synthesis, _tables

CHUNK = 64
"""Points that a row kernel computes at once (csrc/plan/rows_plan.h)."""

SYNTHESIS_EXPONENT = 13

_TILE_ROWS, _STEP_TERMS = 16, 8


def analysis_exponent(points: int) -> int:
    """Power of two by which a row analysis table, of values up to 1 / points, is multiplied."""
    return 13 + (points - 1).bit_length()


@_tables.cached
def row_analysis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Table of turbofno_analyze_rows, and of turbofno_fourier_rows for the next layer. Int16 [words].

    For each 16 points and 16 columns (cos, -sin, ..) the right operands of two mma.m16n8k16, lane by
    lane; then the same as blocks for wgmma.
    """
    with torch.inference_mode(False):
        table = _last_axis_analysis(points, modes, torch.float64, torch.device("cpu"))
        table = _padded(table, CHUNK, 16)
        chunks = table.shape[0] // CHUNK
        chunk, step, pair, column, lane, register, half = _places(chunks, table.shape[1] // 16)
        point = CHUNK * chunk + 16 * pair + 4 * (lane % 4) + 2 * register + half
        operands = table[point, 16 * step + 8 * column + lane // 4]
        exponent = analysis_exponent(points)
        # all columns of 16 points side by side: for wgmma they are one operand
        blocks = _blocks(operands.transpose(1, 2), exponent)
        return torch.cat([_words(operands, exponent), blocks]).to(device)


@_tables.cached
def row_synthesis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Table of turbofno_fourier_rows. Int16 [words].

    For each 16 points and 16 rows (cos, -sin, ..) the right operands of two mma.m16n8k16, lane by lane,
    in the order of the points of csrc/kernels/row_quads.cuh; then the same as blocks for wgmma.
    """
    with torch.inference_mode(False):
        table = _last_axis_synthesis(points, modes, torch.float64, torch.device("cpu"))
        table = _padded(table, 16, CHUNK)
        chunks = table.shape[1] // CHUNK
        chunk, step, pair, column, lane, register, half = _places(chunks, table.shape[0] // 16)
        group = lane // 4
        point = CHUNK * chunk + 16 * pair + 4 * (group // 2) + 2 * column + group % 2
        operands = table[16 * step + 8 * register + 2 * (lane % 4) + half, point]
        exponent = SYNTHESIS_EXPONENT
        return torch.cat([_words(operands, exponent), _blocks(operands, exponent)]).to(device)


def _padded(table: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    """The table with zeros up to multiples of `rows` and `columns`."""
    below, right = -table.shape[0] % rows, -table.shape[1] % columns
    return torch.nn.functional.pad(table, (0, right, 0, below))


def _places(chunks: int, steps: int) -> list[torch.Tensor]:
    """Indices of the operands [chunks, steps, 4 pairs, 2 columns, 32 lanes, 2 registers, 2 halves]."""
    shape = (chunks, steps, CHUNK // 16, 2, 32, 2, 2)
    return [
        torch.arange(size).view([-1 if axis == i else 1 for i in range(len(shape))])
        for axis, size in enumerate(shape)
    ]


def _words(operands: torch.Tensor, exponent: int) -> torch.Tensor:
    """Operands as the kernels' bits: high and low float16, scaled, lane by lane; then bfloat16, unscaled."""
    split = _split(operands, exponent, dim=-3)  # [.., column, lane, high or low, register, half]
    single = operands.to(torch.bfloat16).movedim(3, 4)  # [.., lane, column, register, half]
    return torch.cat([split.flatten().view(torch.int16), single.flatten().view(torch.int16)])


def _blocks(operands: torch.Tensor, exponent: int) -> torch.Tensor:
    """The same as blocks of 8 columns and 8 terms, [column][term] (csrc/kernels/warpgroup.cuh)."""
    blocks = operands.movedim(4, 5)  # [.., column, register, lane, half]
    split = _split(blocks, exponent, dim=4)  # [.., column, high or low, register, lane, half]
    single = blocks.to(torch.bfloat16)
    return torch.cat([split.flatten().view(torch.int16), single.flatten().view(torch.int16)])


def _split(operands: torch.Tensor, exponent: int, *, dim: int) -> torch.Tensor:
    """Scaled float16 parts, high and low along a new axis."""
    scaled = operands * 2.0**exponent
    high = scaled.to(torch.float16)
    low = (scaled - high.to(torch.float64)).to(torch.float16)
    return torch.stack([high, low], dim=dim)


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
