"""DFT tables of the CUDA kernels, in the operand layouts of the tensor cores."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

from turbofno_ops._gemm import _angles, _last_axis_analysis, _last_axis_synthesis, _tables
from turbofno_ops._modes import Rows, frequencies

SYNTHESIS_EXPONENT = 13
"""A synthesis table, with values up to 2, is scaled by 2 to this power."""

_TERMS, _COLUMNS, _POINTS, _CHUNK = 32, 16, 16, 64
_TILE_ROWS, _STEP_TERMS = 16, 8
_FOLDED_TERMS = 8
_BATCHED_FREQUENCIES, _BATCHED_COLUMNS = 16, 32
_BATCHED_TRUNCATED = 1.5 * 2.0**-24


def analysis_exponent(points: int) -> int:
    """Return the exponent of the power of two that scales a row analysis table, with values up to 1 / points."""
    return 13 + (points - 1).bit_length()


@_tables.cached
def row_analysis(
    points: int, modes: int, segment: int, precision: str, device: torch.device, first: int = 0
) -> torch.Tensor:
    """Return the table of `Analyze` for the row's first `segment` points as uint8.

    It has one B operand for every 16 points and 16 columns (cos, -sin, ..).
    """
    with torch.inference_mode(False):
        table = _last_axis_analysis(points, first + modes, torch.float64, torch.device("cpu"))
        table = table[:segment, 2 * first :]
        table = F.pad(table, (0, -2 * modes % _COLUMNS, 0, -segment % _POINTS))
        tiles, pairs = table.shape[0] // _POINTS, table.shape[1] // _COLUMNS
        tile, pair, lane, fragment, half, at = _axes(table.device, tiles, pairs, 32, 2, 2, 2)
        point = _POINTS * tile + 8 * half + 2 * (lane % 4) + at
        values = table[point, _COLUMNS * pair + 8 * fragment + lane // 4]
        if precision != "bf16":
            values = values * 2.0 ** analysis_exponent(points)
        return _words(values, precision, lane_axis=2).to(device)


@_tables.cached
def field_analysis(points: int, modes: int, precision: str, device: torch.device) -> torch.Tensor:
    """Return the table of csrc/kernels/analyze_rows.cu as uint8: one B operand for every 64 points and 8 columns.

    A matrix is 8 columns by 8 points. Columns are (re, im) of modes; of 16 columns the first fragment has the even modes.
    """
    with torch.inference_mode(False):
        table = _last_axis_analysis(points, modes, torch.float64, torch.device("cpu"))
        table = F.pad(table, (0, -2 * modes % _COLUMNS, 0, -points % _CHUNK))
        chunks, pairs = table.shape[0] // _CHUNK, table.shape[1] // _COLUMNS
        chunk, pair, fragment, step, half, mode, part, at = _axes(
            table.device, chunks, pairs, 2, _CHUNK // 16, 2, 4, 2, 8
        )
        point = _CHUNK * chunk + 16 * step + 8 * half + at
        values = table[point, _COLUMNS * pair + 4 * mode + 2 * fragment + part]
        if precision != "bf16":
            values = values * 2.0 ** analysis_exponent(points)
        return _words(values, precision, lane_axis=4).to(device)


@_tables.cached
def row_synthesis(
    points: int, modes: int, segment: int, precision: str, device: torch.device
) -> torch.Tensor:
    """Return the table of `Synthesis` for the row's first `segment` points as uint8.

    It has one A operand for every 16 points and 16 terms (cos, -sin, ..).
    """
    with torch.inference_mode(False):
        table = _last_axis_synthesis(points, modes, torch.float64, torch.device("cpu"))
        table = table[:, :segment]
        table = F.pad(table, (0, -segment % _POINTS, 0, -2 * modes % _TERMS))
        tiles, chunks = table.shape[1] // _POINTS, table.shape[0] // _TERMS
        tile, chunk, step, lane, half, upper, at = _axes(
            table.device, tiles, chunks, 2, 32, 2, 2, 2
        )
        term = _TERMS * chunk + 16 * step + 8 * half + 2 * (lane % 4) + at
        values = table[term, _POINTS * tile + lane // 4 + 8 * upper]
        if precision != "bf16":
            values = values * 2.0**SYNTHESIS_EXPONENT
        return _words(values, precision, lane_axis=3).to(device)


@_tables.cached
def segment_phases(
    points: int, modes: int, segment: int, device: torch.device, first: int = 0
) -> torch.Tensor:
    """Return exp(2 pi i k p / points), p the first point of a segment, k = first .. first + modes - 1.

    Complex64 [ceil(points / segment), modes].
    """
    with torch.inference_mode(False):
        at = torch.outer(torch.arange(0, points, segment), torch.arange(first, first + modes))
        angles = at.remainder(points).to(torch.float64) * (2 * math.pi / points)
        return torch.polar(torch.ones_like(angles), angles).to(device, torch.complex64)


def _axes(device: torch.device, *sizes: int) -> list[torch.Tensor]:
    """Return one broadcastable index per axis of an array of these sizes."""
    return [
        torch.arange(size, device=device).view([-1 if i == axis else 1 for i in range(len(sizes))])
        for axis, size in enumerate(sizes)
    ]


def _words(values: torch.Tensor, precision: str, *, lane_axis: int) -> torch.Tensor:
    """Return halves as bytes. For fp32 an axis before `lane_axis` has the high parts of what follows, then the low parts."""
    if precision == "bf16":
        parts = [values.to(torch.bfloat16)]
    else:
        high = values.to(torch.float16)
        parts = [high]
        if precision == "fp32":
            parts.append((values - high.double()).to(torch.float16))
    return torch.stack(parts, dim=lane_axis).contiguous().flatten().view(torch.uint8)


@_tables.cached
def folded_axis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Return (cos, sin) of 2 pi k n / points, k = 0 .. modes // 2, n = 0 .. points // 2.

    Float32 [modes // 2 + 1, pitch, 2], zero padded, as csrc/kernels/spectral_product.cu reads it for both directions.
    """
    with torch.inference_mode(False):
        at = _angles(modes // 2 + 1, points)[:, : points // 2 + 1]
        table = torch.stack([at.cos(), at.sin()], dim=-1)
        # 2 frequencies times 8 neighbouring numbers are in different banks of shared memory
        padding = -(table.shape[1] - _FOLDED_TERMS) % (2 * _FOLDED_TERMS)
        return F.pad(table, (0, 0, 0, padding)).to(device, torch.float32)


def axis_analysis(
    points: int, modes: int, device: torch.device, of: int | None = None
) -> torch.Tensor:
    """Return the table from columns of `points` to `modes` coefficients in FFT order, divided by `points`.

    Columns may be neighbouring points of an axis `of` more points; then the table is divided by these, and the coefficients
    lack the factor `phase_of` the middle.
    """
    return _axis_table(points, modes, device, analysis=True, of=of)


def axis_synthesis(
    points: int, modes: int, device: torch.device, of: int | None = None
) -> torch.Tensor:
    """Return the table from `modes` coefficients in FFT order to columns of `points`.

    Columns may be neighbouring points of an axis `of` more points; then the coefficients are divided by `phase_of`
    the middle before.
    """
    return _axis_table(points, modes, device, analysis=False, of=of)


def phase_of(rows: Rows, modes: int, device: torch.device, *, middle: bool) -> torch.Tensor:
    """Return exp(-2 pi i k m / points), complex64 [modes], of `modes` frequencies k in FFT order; m: first row, or the middle."""
    with torch.inference_mode(False):
        k = torch.tensor(frequencies(modes, both_signs=True))
        at = (k * (2 * rows.first + middle * rows.count)).remainder(2 * rows.points)
        phase = at.to(torch.float64) * (-math.pi / rows.points)
        return torch.polar(torch.ones_like(phase), phase).to(device, torch.complex64)


def _angles_from_middle(count: int, rows: int, points: int) -> torch.Tensor:
    """Return 2 pi k (n - rows / 2) / points for k = 0 .. count - 1, n = 0 .. rows // 2. Float64 [count, rows // 2 + 1]."""
    product = torch.outer(torch.arange(count), 2 * torch.arange(rows // 2 + 1) - rows)
    return product.remainder(2 * points).to(torch.float64) * (math.pi / points)


@_tables.cached
def _axis_table(
    points: int, modes: int, device: torch.device, *, analysis: bool, of: int | None
) -> torch.Tensor:
    """Return cos and -sin (analysis) or sin of frequencies 0 .. modes // 2 at points 0 .. points // 2.

    Angles count from point 0: the kernels fold n and -n, which on the whole axis is points - n. Of a part of an axis they
    count from its middle, where n and points - n lie opposite to each other.

    Rows are outputs, terms are summed over. Float32 [tiles of 16 rows, k-tiles of 8 terms, cos and sin,
    high and low TF32 part, 8, 4, 2, 2] as csrc/kernels/transform_axis.cu reads it; the last four axes are row,
    term, term // 4, row // 8. Zero padded.
    """
    with torch.inference_mode(False):
        if of is None:
            at = _angles(modes // 2 + 1, points)[:, : points // 2 + 1]
        else:
            at = _angles_from_middle(modes // 2 + 1, points, of)
        at, scale, sign = (at, 1 / (of or points), -1.0) if analysis else (at.T, 1.0, 1.0)
        rows, terms = at.shape
        tiles, steps = -(-rows // _TILE_ROWS), -(-terms // _STEP_TERMS)
        table = torch.zeros(2, tiles * _TILE_ROWS, steps * _STEP_TERMS, dtype=torch.float64)
        table[0, :rows, :terms] = at.cos() * scale
        table[1, :rows, :terms] = at.sin() * (sign * scale)
        high = _tf32(table)
        parts = torch.stack([high, _tf32(table - high)], dim=1)
        parts = parts.view(2, 2, tiles, 2, 8, steps, 2, 4).permute(2, 5, 0, 1, 4, 7, 6, 3)
        return parts.contiguous().to(device)


@_tables.cached
def batched_analysis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Return cos and -sin of 2 pi k n / points, k = 0 .. 15, divided by `points`, for csrc/kernels/batched_spectral_product.cu.

    Terms are points, columns 16 cosines and 16 sines; those beyond modes // 2 are zero.
    """
    with torch.inference_mode(False):
        at = _angles(modes // 2 + 1, points)
        table = torch.zeros(
            -(-points // _POINTS) * _POINTS, 2, _BATCHED_FREQUENCIES, dtype=torch.float64
        )
        table[:points, 0, : len(at)] = at.T.cos() / points
        table[:points, 1, : len(at)] = -at.T.sin() / points
        return _batched_table(table.flatten(1)).to(device)


@_tables.cached
def batched_synthesis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Return cos and sin of 2 pi k n / points, k = 0 .. modes // 2, for the same kernel.

    Columns are points, 32 at once; terms 8 frequencies' cosines, then their sines.
    """
    with torch.inference_mode(False):
        at = _angles(modes // 2 + 1, points)
        groups, chunks = -(-len(at) // _STEP_TERMS), -(-points // _BATCHED_COLUMNS)
        table = torch.zeros(2, groups * _STEP_TERMS, chunks * _BATCHED_COLUMNS, dtype=torch.float64)
        table[0, : len(at), :points] = at.cos()
        table[1, : len(at), :points] = at.sin()
        table = table.view(2, groups, _STEP_TERMS, chunks, _BATCHED_COLUMNS).permute(3, 1, 0, 2, 4)
        return _batched_table(table.reshape(-1, _BATCHED_COLUMNS)).to(device)


def _batched_table(table: torch.Tensor) -> torch.Tensor:
    """Return a matrix [terms, 32 columns] as TF32 B operands of wgmma: [8 terms, high and low, 2, 4, 8 columns, 4 terms].

    With what tensor cores truncate: of the two tables together on average 3 * 2^-24 of a result, measured on an H100.
    """
    high = _tf32(table)
    parts = torch.stack([high, _tf32(table * (1 + _BATCHED_TRUNCATED) - high)])
    parts = parts.view(
        2, -1, 2, 4, _BATCHED_COLUMNS // 8, 8
    )  # part, step, half, term, fragment, column
    return parts.permute(1, 0, 2, 4, 5, 3).contiguous()


def _tf32(values: torch.Tensor) -> torch.Tensor:
    """Round to the 11 significant bits of TF32; returns float32."""
    bits = values.to(torch.float32).view(torch.int32)
    return ((bits + 0x1000) & ~0x1FFF).view(torch.float32)
