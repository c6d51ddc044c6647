"""Moments by Parseval against torch's norms, and missing operands."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

from tests.turbofno_ops.random_program import draw_program
from turbofno_ops import _gemm
from turbofno_ops._fold import to_device
from turbofno_ops._modes import Rows
from turbofno_ops._stages import (
    Normalize,
    Operands,
    Project,
    Restore,
    Save,
    Synthesis,
    part_of,
)
from turbofno_ops._torch_stages import TorchStages
from turbofno_ops.description import PointwiseMap

IDENTITY = Project((PointwiseMap(torch.eye(4, dtype=torch.float64)),), "none")


@pytest.mark.parametrize(
    ("size", "modes"),
    [
        ((16,), 9), ((16,), 3), ((15,), 8), ((1,), 1), ((2,), 2), ((6, 8), 5), ((7, 8), 5), ((7, 9), 2),
        ((3, 5, 6), 4), ((3, 4, 7), 4),
    ],
)  # fmt: skip
@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("with_offset", [False, True])
def test_norms_of_mixed_spectra_equal_those_of_the_field(
    size: tuple[int, ...], modes: int, groups: int, with_offset: bool
) -> None:
    # imaginary parts also at DC and Nyquist, which the moments must ignore
    mixed = torch.randn(3, 4, *size[:-1], modes, dtype=torch.complex128)
    scale, shift, offset = torch.randn(3, 4, dtype=torch.float64)
    field = _gemm.synthesize_last(mixed, Rows.whole(size[-1]))
    if with_offset:
        field = field + offset.view(-1, *[1] * len(size))
    expected = F.group_norm(field, groups, scale, shift, eps=1e-5)
    norm = Normalize(groups, 1e-5, scale, shift, offset if with_offset else None)
    stages = TorchStages(size, (modes,), size)
    found = stages.tile((Synthesis(), norm, IDENTITY), Operands(mixed=mixed)).out
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)
    saved = stages.tile((Synthesis(), Save(moments=True)), Operands(mixed=mixed))
    given = Operands(saved=saved.saved, moments=saved.moments)
    again = stages.tile((Restore(), norm, IDENTITY), given).out
    torch.testing.assert_close(again, expected, rtol=1e-11, atol=1e-11)


def test_a_large_mean_does_not_reduce_the_norms_accuracy() -> None:
    mixed = torch.randn(1, 4, 6, 3, dtype=torch.complex64)
    mixed[..., 0] += 1e4
    norm = Normalize(4, 1e-5)
    stages = TorchStages((6, 8), (4, 3), (6, 8))
    project = Project((PointwiseMap(torch.eye(4)),), "none")
    found = stages.tile((Synthesis(), norm, project), Operands(mixed=mixed)).out
    exact = F.instance_norm(_gemm.synthesize_last(mixed.to(torch.complex128), Rows.whole(8)))
    assert found is not None
    assert (found - exact).norm() / exact.norm() < 1e-3


@pytest.mark.parametrize("draw", range(40))
def test_a_window_is_part_of_the_whole(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    while True:
        drawn = draw_program(rng)
        last = drawn.steps[-1]
        if isinstance(last, Project) or (isinstance(last, Save) and not last.moments):
            break
    first = [rng.randrange(n) for n in drawn.size]
    counts = [rng.randint(1, n - at) for n, at in zip(drawn.size, first, strict=True)]
    window = tuple(map(Rows, first, counts, drawn.size))
    stages = TorchStages(drawn.size, drawn.modes, drawn.size)
    saved = None if drawn.saved is None else drawn.saved.double()
    moments = None
    if saved is not None:
        moments = stages.tile((Restore(), Save(moments=True)), Operands(saved=saved)).moments
    mixed = None if drawn.mixed is None else drawn.mixed.to(torch.complex128)
    given = Operands(drawn.x.double(), saved, moments, mixed)
    steps = to_device(drawn.steps, torch.device("cpu"), torch.float64)
    whole, part = stages.tile(steps, given), stages.tile(steps, given, window)
    for found, expected in ((part.out, whole.out), (part.saved, whole.saved)):
        assert (found is None) == (expected is None)
        if expected is not None:
            torch.testing.assert_close(found, part_of(expected, window), rtol=1e-10, atol=1e-10)


def test_a_missing_operand_is_reported() -> None:
    with pytest.raises(ValueError, match="operand of the tile program is missing"):
        TorchStages((8,), (3,), (8,)).tile((Restore(), Save(moments=False)), Operands())
