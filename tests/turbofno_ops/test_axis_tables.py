"""The axis tables of the CUDA kernels equal the transforms of torch.fft, in the layout of transform_axis.cu."""

from __future__ import annotations

import random

import pytest
import torch

from turbofno_ops._cuda_tables import axis_analysis, axis_synthesis, phase_of
from turbofno_ops._modes import Rows

CPU = torch.device("cpu")


def matrices(table: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return both matrices [rows, terms] of a table, high and low parts added, in float64."""
    parts = table.double().sum(dim=3)  # [tile, step, kind, 8, 4, term // 4, row // 8]
    tiles, steps = parts.shape[:2]
    cosine, sine = parts.permute(2, 0, 6, 3, 1, 5, 4).reshape(2, tiles * 16, steps * 8)
    return cosine, sine


def transform(table: torch.Tensor, field: torch.Tensor, count: int) -> torch.Tensor:
    """Transform complex `field` [size, ..] to [count, ..] like transform_axis.cu, by folded sums in FFT order."""
    size, columns = len(field), field.reshape(len(field), -1)
    cosine, sine = matrices(table)
    terms = size // 2 + 1
    up, down = torch.zeros(2, terms, columns.shape[1], dtype=torch.complex128)
    up[: (size + 1) // 2] = columns[: (size + 1) // 2]
    down[1 : size // 2 + 1] = columns.flip(0)[: size // 2]
    c = cosine[:, :terms].to(torch.complex128) @ (up + down)
    s = sine[:, :terms].to(torch.complex128) @ (up - down)
    rows = torch.arange(count)
    positive = rows < (count + 1) // 2
    row = torch.where(positive, rows, count - rows)
    sign = torch.where(positive, 1j, -1j).unsqueeze(1)
    return (c[row] + sign * s[row]).reshape(count, *field.shape[1:])


@pytest.mark.parametrize("attempt", range(20))
def test_tables_transform_as_torch_fft(attempt: int) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    points = draw.randint(1, 200)
    modes = draw.randint(1, min(points, 128))
    torch.manual_seed(seed)
    field = torch.randn(points, dtype=torch.complex128)
    full = torch.fft.fft(field, norm="forward")
    above, below = (modes + 1) // 2, modes // 2
    kept = torch.cat([full[:above], full[points - below :]])
    found = transform(axis_analysis(points, modes, CPU), field, modes)
    assert (found - kept).norm() <= 4e-7 * kept.norm(), (seed, points, modes)

    padded = torch.zeros(points, dtype=torch.complex128)
    padded[:above], padded[points - below :] = kept[:above], kept[above:]
    back = torch.fft.ifft(padded, norm="forward")
    found = transform(axis_synthesis(points, modes, CPU), kept, points)
    assert (found - back).norm() <= 4e-7 * back.norm(), (seed, points, modes)


@pytest.mark.parametrize("attempt", range(20))
def test_tables_of_a_part_of_an_axis(attempt: int) -> None:
    seed = random.randrange(2**32)
    draw = random.Random(seed)
    points = draw.randint(1, 200)
    modes = draw.randint(1, min(points, 128))
    first = draw.randrange(points)
    rows = Rows(first, draw.randint(1, points - first), points)
    torch.manual_seed(seed)
    part = torch.randn(rows.count, dtype=torch.complex128)
    phase = phase_of(rows, modes, CPU, middle=True).to(torch.complex128)

    field = torch.zeros(points, dtype=torch.complex128)
    field[rows.first : rows.stop] = part
    full = torch.fft.fft(field, norm="forward")
    above, below = (modes + 1) // 2, modes // 2
    kept = torch.cat([full[:above], full[points - below :]])
    found = phase * transform(axis_analysis(rows.count, modes, CPU, points), part, modes)
    assert (found - kept).norm() <= 4e-7 * kept.norm(), (seed, rows, modes)

    padded = torch.zeros(points, dtype=torch.complex128)
    padded[:above], padded[points - below :] = kept[:above], kept[above:]
    back = torch.fft.ifft(padded, norm="forward")
    table = axis_synthesis(rows.count, modes, CPU, points)
    found = transform(table, kept * phase.conj(), rows.count)
    assert (found - back[rows.first : rows.stop]).norm() <= 4e-7 * back.norm(), (seed, rows, modes)


def test_high_parts_are_tf32_numbers() -> None:
    table = axis_analysis(85, 24, CPU)
    assert (table.view(torch.int32) & 0x1FFF).eq(0).all()
