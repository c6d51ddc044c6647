"""Row tables of the CUDA kernels: multiplied as tensor cores would, they transform random rows rightly."""

from __future__ import annotations

import math

import pytest
import torch

from turbofno_ops import _cuda_tables

SHAPES = [(1, 1), (8, 5), (64, 12), (85, 43), (130, 12), (421, 9), (1024, 128)]


def _operands(table: torch.Tensor, chunks: int, steps: int, exponent: int) -> list[torch.Tensor]:
    """Float64 [chunks, steps, 4, columns, lanes, registers, halves]: of the split part, and of the bfloat16 part."""
    count = chunks * steps * 4 * 2 * 32 * 4
    split, single = table[: 2 * count], table[2 * count : 3 * count]
    assert table.numel() == 6 * count, "lane by lane and as blocks: split words, then bfloat16"
    halves = split.view(torch.float16).double().view(chunks, steps, 4, 2, 32, 2, 2, 2)
    assert halves.abs().max() < 2**15
    brief = single.view(torch.bfloat16).double().view(chunks, steps, 4, 32, 2, 2, 2).movedim(4, 3)
    return [halves.sum(5) / 2.0**exponent, brief]


def _same_as_blocks(table: torch.Tensor, chunks: int, steps: int, *, points_first: bool) -> bool:
    """Whether the second half holds the words of the first in blocks [columns][terms] of 8 by 8."""
    lanes, blocks = table.view(2, -1)
    count = lanes.numel() // 3
    outer = (chunks, 4, steps) if points_first else (chunks, steps, 4)

    def reordered(part: torch.Tensor, *sizes: int) -> torch.Tensor:
        part = part.view(*outer, *sizes, 8, 8)
        return part.transpose(1, 2) if points_first else part

    split = lanes[: 2 * count].view(chunks, steps, 4, 2, 32, 2, 2, 2)
    single = lanes[2 * count :].view(chunks, steps, 4, 32, 2, 2, 2)
    got_split = reordered(blocks[: 2 * count], 2, 2, 2)
    got_single = reordered(blocks[2 * count :], 2, 2)
    # a lane's two halves: column lane // 4, terms 2 (lane % 4) and the next
    want_split = split.movedim(4, 6).reshape(got_split.shape)
    want_single = single.movedim(3, 5).reshape(got_single.shape)
    return torch.equal(got_split, want_split) and torch.equal(got_single, want_single)


def _right_operand(lanes: torch.Tensor) -> torch.Tensor:
    """[.., lanes, registers, halves] -> [.., 16 terms, 8 columns], as mma.m16n8k16 takes them."""
    *rest, _, _, _ = lanes.shape
    terms = lanes.view(*rest, 8, 4, 2, 2).movedim(-4, -1)  # [.., t, register, half, g]
    return terms.transpose(-4, -3).reshape(*rest, 16, 8)


@pytest.mark.parametrize(("points", "modes"), SHAPES)
def test_analysis(points: int, modes: int) -> None:
    chunks, steps = math.ceil(points / 64), math.ceil(modes / 8)
    table = _cuda_tables.row_analysis(points, modes, torch.device("cpu"))
    assert _same_as_blocks(table, chunks, steps, points_first=True)
    exponent = _cuda_tables.analysis_exponent(points)
    x = torch.randn(3, points, dtype=torch.float64)
    want = torch.view_as_real(torch.fft.rfft(x)[:, :modes] / points).flatten(1)
    # a lane holds points 4t .. 4t + 3 of 16, the first two as terms 2t, 2t + 1, the others as 2t + 8, 2t + 9
    padded = torch.nn.functional.pad(x, (0, 64 * chunks - points)).view(3, chunks, 4, 4, 2, 2)
    terms = padded.transpose(-3, -2).reshape(3, chunks, 4, 16)
    for operands, error in zip(
        _operands(table, chunks, steps, exponent), (2e-7, 6e-3), strict=True
    ):
        right = _right_operand(operands)  # [chunk, step, pair, column, term, 8]
        got = torch.einsum("rcpt,cspfto->rsfo", terms, right).reshape(3, -1)
        assert (got[:, : 2 * modes] - want).norm() <= error * want.norm()
        assert (got[:, 2 * modes :] == 0).all(), "columns beyond the modes are zero"


@pytest.mark.parametrize(("points", "modes"), SHAPES)
def test_synthesis(points: int, modes: int) -> None:
    chunks, steps = math.ceil(points / 64), math.ceil(modes / 8)
    table = _cuda_tables.row_synthesis(points, modes, torch.device("cpu"))
    assert _same_as_blocks(table, chunks, steps, points_first=False)
    spectra = torch.randn(3, modes, dtype=torch.complex128)
    seen = spectra.clone()
    seen[:, 0] = seen[:, 0].real.to(
        seen.dtype
    )  # irfft is to ignore the imaginary parts of DC and Nyquist
    if points % 2 == 0 and modes == points // 2 + 1:
        seen[:, -1] = seen[:, -1].real.to(seen.dtype)
    want = torch.fft.irfft(seen, n=points, norm="forward")
    terms = torch.nn.functional.pad(
        torch.view_as_real(spectra).flatten(1), (0, 16 * steps - 2 * modes)
    )
    terms = terms.view(3, steps, 16)
    for operands, error in zip(
        _operands(table, chunks, steps, _cuda_tables.SYNTHESIS_EXPONENT), (2e-7, 6e-3), strict=True
    ):
        right = _right_operand(operands)
        sums = torch.einsum("rst,cspfto->rcpfo", terms, right)
        # column 2t + e of fragment f is point 4t + 2f + e
        got = sums.view(3, chunks, 4, 2, 4, 2).transpose(-3, -2).reshape(3, -1)
        assert (got[:, :points] - want).norm() <= error * want.norm()
        assert (got[:, points:] == 0).all(), "points beyond the row are zero"
