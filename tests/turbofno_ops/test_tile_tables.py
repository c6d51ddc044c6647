"""Operands and tables of the tile program, multiplied by an emulation of the tensor cores' lanes."""

from __future__ import annotations

import math

import pytest
import torch

from tests.turbofno_ops.packed_operand import packed_operand
from turbofno_ops import PRECISIONS, _cuda_tables

CPU = torch.device("cpu")
GRIDS = [
    (1, 1),
    (2, 2),
    (8, 5),
    (16, 9),
    (64, 12),
    (85, 43),
    (130, 12),
    (421, 9),
    (256, 128),
    (1021, 24),
]
MATRICES = [(1, 1), (16, 32), (3, 5), (20, 33), (48, 64), (33, 100), (256, 256)]
# of products of two rounded operands, relative to the result's norm
ERRORS = {"fp32": 4e-7, "tf32": 1e-3, "bf16": 8e-3}
# of one rounded operand's elements; tf32 and bf16 keep 11 and 8 significant bits
ROUNDING = {"fp32": 2**-21, "tf32": 2**-11, "bf16": 2**-8}

LANES = torch.arange(32)
G, T = LANES // 4, LANES % 4


def a_lanes(matrix: torch.Tensor) -> torch.Tensor:
    """Arrange [.., 16 rows, 16 terms] as the A operand of mma.m16n8k16: [.., lane, register, half]."""
    pairs = 2 * T[:, None] + torch.arange(2)
    registers = [matrix[..., (G + row)[:, None], pairs + term] for term in (0, 8) for row in (0, 8)]
    return torch.stack(registers, dim=-2)


def b_lanes(matrix: torch.Tensor) -> torch.Tensor:
    """Arrange [.., 16 terms, 8 columns] as the B operand of mma.m16n8k16: [.., lane, register, half]."""
    pairs = 2 * T[:, None] + torch.arange(2)
    return torch.stack([matrix[..., pairs + term, G[:, None]] for term in (0, 8)], dim=-2)


def mma(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return the product [.., 16, 8] of operands in lanes, in float64."""
    a_matrix = torch.zeros(*a.shape[:-3], 16, 16, dtype=torch.float64)
    b_matrix = torch.zeros(*b.shape[:-3], 16, 8, dtype=torch.float64)
    for half in range(2):
        for register in range(4):
            row, term = G + 8 * (register % 2), 2 * T + half + 8 * (register // 2)
            a_matrix[..., row, term] = a[..., register, half].double()
        for register in range(2):
            b_matrix[..., 2 * T + half + 8 * register, G] = b[..., register, half].double()
    return a_matrix @ b_matrix


def test_the_emulated_tensor_core_multiplies() -> None:
    a, b = torch.randn(16, 16, dtype=torch.float64), torch.randn(16, 8, dtype=torch.float64)
    torch.testing.assert_close(mma(a_lanes(a), b_lanes(b)), a @ b)
    # lane 6 in the PTX manual: g = 1, t = 2
    assert a_lanes(a)[6].tolist() == [
        a[row, term : term + 2].tolist() for row, term in ((1, 4), (9, 4), (1, 12), (9, 12))
    ]
    assert b_lanes(b)[6].tolist() == [b[4:6, 1].tolist(), b[12:14, 1].tolist()]


def parts(values: torch.Tensor, precision: str) -> list[torch.Tensor]:
    """Split scaled values as the kernels do: high and, for fp32, low parts."""
    if precision == "bf16":
        return [values.to(torch.bfloat16)]
    high = values.to(torch.float16)
    return [high, (values - high.double()).to(torch.float16)][: 2 if precision == "fp32" else 1]


def scale(values: torch.Tensor, precision: str) -> torch.Tensor:
    """Return powers of two that scale the largest magnitude along the last axis to 2^14 .. 2^15."""
    largest = values.abs().amax(dim=-1, keepdim=True).clamp_min(1e-300)
    exponent = 15 - torch.frexp(largest).exponent if precision != "bf16" else torch.zeros(())
    return torch.exp2(exponent.double())


def products(a: list[torch.Tensor], b: list[torch.Tensor]) -> torch.Tensor:
    """Multiply split operands in lanes: low.high + high.low + high.high, or high.high only."""
    if len(a) == 1:
        return mma(a[0], b[0])
    return mma(a[1], b[0]) + mma(a[0], b[1]) + mma(a[0], b[0])


def halves(words: torch.Tensor, precision: str) -> torch.Tensor:
    return words.view(torch.bfloat16 if precision == "bf16" else torch.float16)


def planes_of(precision: str) -> int:
    return 2 if precision == "fp32" else 1


def channel_of(fragment: int) -> torch.Tensor:
    """Return the channels (of 16) of the columns of the even or odd fragment (csrc/kernels/warp_mma.cuh)."""
    column = torch.arange(8)
    return 4 * (column // 2) + column % 2 + 2 * fragment


def multiply(x: torch.Tensor, operand: torch.Tensor, columns: int, precision: str) -> torch.Tensor:
    """Multiply x [16 points, terms] by a B operand like `add_product`, 32 terms at a time. Returns [16, columns]."""
    chunks, pairs, planes = (
        math.ceil(x.shape[1] / 32),
        math.ceil(columns / 16),
        planes_of(precision),
    )
    count = chunks * pairs * 2 * planes * 32 * 16
    b = halves(operand[:count], precision).view(chunks, pairs, 2, planes, 32, 2, 2, 2)
    inverse_scales = operand[count:].view(torch.float32).double()
    assert len(inverse_scales) % 4 == 0, "whole 16-byte words"
    x = torch.nn.functional.pad(x.double(), (0, 32 * chunks - x.shape[1]))
    out = torch.zeros(16, 16 * pairs, dtype=torch.float64)
    # a lane has channels 4t .. 4t + 3 of 16: the first two are the terms 2t, 2t + 1, the others 2t + 8, 2t + 9
    order = torch.cat([channel_of(0), channel_of(1)])
    for chunk in range(chunks):
        terms = x[:, 32 * chunk : 32 * chunk + 32]
        to = scale(terms, precision)
        for pair in range(pairs):
            for fragment in range(2):
                total = torch.zeros(16, 8, dtype=torch.float64)
                for step in range(2):
                    ordered = (terms * to)[:, 16 * step + order]
                    a = [a_lanes(part) for part in parts(ordered, precision)]
                    lanes = b[chunk, pair, step, :, :, fragment].unbind(0)
                    total += products(a, list(lanes))
                back = inverse_scales[chunk * pairs + pair] / to if precision != "bf16" else 1.0
                out[:, 16 * pair + channel_of(fragment)] += total * back
    assert (out[:, columns:] == 0).all(), "padding columns are zero"
    return out[:, :columns]


def decoded(operand: torch.Tensor, columns: int, terms: int, precision: str) -> torch.Tensor:
    """Recover the matrix [columns, terms] of a B operand by products with unit vectors, which are exact."""
    units = torch.eye(16 * math.ceil(terms / 16), terms, dtype=torch.float64).split(16)
    return torch.cat([multiply(unit, operand, columns, precision) for unit in units])[:terms].T


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("columns", "terms"), MATRICES)
def test_an_operand_multiplies_as_its_matrix(columns: int, terms: int, precision: str) -> None:
    matrix, x = torch.randn(columns, terms), torch.randn(16, terms)
    want = x.double() @ matrix.double().T
    got = multiply(x, packed_operand(matrix, precision), columns, precision)
    assert (got - want).norm() <= ERRORS[precision] * want.norm()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("largest", [1e-18, 1.0, 1e25])
def test_an_operand_holds_matrices_of_any_size(largest: float, precision: str) -> None:
    matrix = torch.randn(40, 70) * largest
    matrix[:16] = 0
    matrix[16:32] *= 1e-6
    got = decoded(packed_operand(matrix, precision), 40, 70, precision)
    assert (got[:16] == 0).all()
    # 16 columns share a scale, so the error has a term relative to their largest magnitude
    for rows in torch.arange(40).split(16):
        block, found = matrix[rows].double(), got[rows]
        lost = 0 if precision == "bf16" else 2**-36 * block.abs().max()
        assert ((found - block).abs() <= ROUNDING[precision] * block.abs() + lost).all()


def test_a_float64_matrix_is_not_rounded_before_the_split() -> None:
    matrix = torch.randn(16, 32, dtype=torch.float64)
    got = decoded(packed_operand(matrix, "fp32"), 16, 32, "fp32")
    assert ((got - matrix).abs() <= 2**-21 * matrix.abs() + 2**-36 * matrix.abs().max()).all()


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("points", "modes"), GRIDS)
def test_analysis(points: int, modes: int, precision: str) -> None:
    """Emulates `analyze` in row_spectra.cuh: rows are 16 channels, terms 16 points, columns cos and -sin."""
    tiles, pairs, planes = math.ceil(points / 16), math.ceil(modes / 8), planes_of(precision)
    words = halves(_cuda_tables.row_analysis(points, modes, points, precision, CPU), precision)
    table = words.view(tiles, pairs, planes, 32, 2, 2, 2)
    assert table.abs().max() <= 2**14
    y = torch.randn(16, points, dtype=torch.float64)
    padded = torch.nn.functional.pad(y, (0, 16 * tiles - points)).view(16, tiles, 16)
    sums = torch.zeros(16, 16 * pairs, dtype=torch.float64)
    for tile in range(tiles):
        to = scale(padded[:, tile].flatten(), precision)
        a = [a_lanes(part) for part in parts(padded[:, tile] * to, precision)]
        for pair in range(pairs):
            for fragment in range(2):
                at = 16 * pair + 8 * fragment
                b = list(table[tile, pair, :, :, fragment].unbind(0))
                sums[:, at : at + 8] += products(a, b) / to
    if precision != "bf16":
        sums *= 2.0 ** -_cuda_tables.analysis_exponent(points)
    want = torch.view_as_real(torch.fft.rfft(y)[:, :modes] / points).flatten(1)
    assert (sums[:, : 2 * modes] - want).norm() <= 2 * ERRORS[precision] * want.norm()
    assert (sums[:, 2 * modes :] == 0).all(), "padding modes are zero"


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("points", "modes"), GRIDS)
def test_field_analysis(points: int, modes: int, precision: str) -> None:
    """Emulates analyze_rows.cu: rows are channels, terms 64 points, columns two fragments for every 8 modes."""
    chunks, pairs = math.ceil(points / 64), math.ceil(modes / 8)
    flat = halves(_cuda_tables.field_analysis(points, modes, precision, CPU), precision)
    # of 8 x 8 matrices as in the descriptors of wgmma: columns by terms
    table = flat.view(chunks, 2 * pairs, 4, planes_of(precision), 2, 8, 8).double()
    terms = table.permute(3, 0, 2, 4, 6, 1, 5).reshape(-1, 64 * chunks, 2 * pairs, 8)
    assert table.abs().max() <= 2**14
    y = torch.randn(16, points, dtype=torch.float64)
    padded = torch.nn.functional.pad(y, (0, 64 * chunks - points)).split(64, dim=1)
    sums = torch.zeros(16, 2 * pairs, 8, dtype=torch.float64)
    for chunk, values in enumerate(padded):
        to = scale(values.flatten(), precision)
        a = [part.double() for part in parts(values * to, precision)]
        b = terms[:, 64 * chunk : 64 * chunk + 64]
        for left, right in [(1, 0), (0, 1), (0, 0)][-1 if len(a) == 1 else 0 :]:
            sums += torch.einsum("cp,pnk->cnk", a[left], b[right]) / to
    if precision != "bf16":
        sums *= 2.0 ** -_cuda_tables.analysis_exponent(points)
    # lane t has the sums 2t, 2t + 1 of a pair's fragments, which are the modes 2t and 2t + 1
    found = sums.view(16, pairs, 2, 4, 2).transpose(2, 3).reshape(16, -1)
    want = torch.view_as_real(torch.fft.rfft(y)[:, :modes] / points).flatten(1)
    assert (found[:, : 2 * modes] - want).norm() <= 2 * ERRORS[precision] * want.norm()
    assert (found[:, 2 * modes :] == 0).all(), "padding modes are zero"


def test_an_analysis_table_of_some_modes_is_a_part_of_the_whole() -> None:
    whole = _cuda_tables.row_analysis(40, 24, 40, "fp32", CPU).view(3, 3, -1)
    part = _cuda_tables.row_analysis(40, 8, 40, "fp32", CPU, 8).view(3, 1, -1)
    assert torch.equal(part[:, 0], whole[:, 1])


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("points", "modes"), GRIDS)
def test_synthesis(points: int, modes: int, precision: str) -> None:
    """Emulates `synthesize` in row_spectra.cuh: rows are 16 points, terms re and im of modes, columns 8 channels."""
    tiles, chunks, planes = math.ceil(points / 16), math.ceil(modes / 16), planes_of(precision)
    words = halves(_cuda_tables.row_synthesis(points, modes, points, precision, CPU), precision)
    table = words.view(tiles, chunks, 2, planes, 32, 4, 2)
    assert table.abs().max() <= 2**14
    spectra = torch.randn(8, modes, dtype=torch.complex128)
    terms = torch.nn.functional.pad(
        torch.view_as_real(spectra).flatten(1), (0, 32 * chunks - 2 * modes)
    )
    terms = terms.T.view(chunks, 2, 16, 8)
    to = scale(terms.flatten(), precision)
    field = torch.zeros(tiles, 16, 8, dtype=torch.float64)
    for chunk in range(chunks):
        for step in range(2):
            b = [b_lanes(part) for part in parts(terms[chunk, step] * to, precision)]
            for tile in range(tiles):
                field[tile] += products(list(table[tile, chunk, step].unbind(0)), b) / to
    if precision != "bf16":
        field *= 2.0**-_cuda_tables.SYNTHESIS_EXPONENT
    seen = spectra.clone()
    # a real field has no imaginary part at DC and Nyquist
    seen[:, 0] = seen[:, 0].real.to(seen.dtype)
    if points % 2 == 0 and modes == points // 2 + 1:
        seen[:, -1] = seen[:, -1].real.to(seen.dtype)
    want = torch.fft.irfft(seen, n=points, norm="forward").T
    got = field.flatten(0, 1)
    assert (got[:points] - want).norm() <= 2 * ERRORS[precision] * want.norm()
    assert (got[points:] == 0).all(), "padding points are zero"


@pytest.mark.parametrize(
    ("points", "modes", "segment"), [(128, 65, 64), (421, 24, 64), (85, 43, 16)]
)
def test_phases_shift_a_row_to_its_segments(points: int, modes: int, segment: int) -> None:
    # irfft drops the imaginary parts at DC and Nyquist, before and after a shift
    spectra = torch.randn(modes, dtype=torch.complex128)
    row = torch.fft.irfft(spectra, n=points, norm="forward")
    phases = _cuda_tables.segment_phases(points, modes, segment, CPU).to(torch.complex128)
    assert len(phases) == math.ceil(points / segment)
    for phase, want in zip(phases, row.split(segment), strict=True):
        got = torch.fft.irfft(spectra * phase, n=points, norm="forward")[: len(want)]
        assert (got - want).norm() <= 1e-6 * row.norm()
    part = _cuda_tables.segment_phases(points, modes - 8, segment, CPU, 8)
    assert torch.equal(part, phases[:, 8:].to(torch.complex64))


@pytest.mark.parametrize("precision", PRECISIONS)
def test_the_tables_of_a_segment_begin_those_of_the_row(precision: str) -> None:
    for table in (_cuda_tables.row_analysis, _cuda_tables.row_synthesis):
        whole, segment = table(85, 12, 85, precision, CPU), table(85, 12, 32, precision, CPU)
        assert torch.equal(segment, whole[: len(segment)])
        assert len(whole) == 3 * len(segment)
