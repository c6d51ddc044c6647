"""The cuts of a tile program into kernels, and what passes from one to the next, without a GPU."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from turbofno_ops import _cuda, _native
from turbofno_ops._cuda import A100, CudaStages
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddMap,
    Analyze,
    Held,
    Hold,
    Operands,
    Store,
    Synthesis,
)
from turbofno_ops._tile_program import Shape, pieces
from turbofno_ops.description import PointwiseMap

pytestmark = pytest.mark.usefixtures("served_shapes")

LOAD, STORE = 0, 7


def linear(out: int, channels: int) -> PointwiseMap:
    return PointwiseMap(torch.randn(out, channels))


def shape_of(**changes: Any) -> Shape:
    base = Shape(32, (128, 128), 64, 64, 12, 12, "fp32", *A100)
    return base._replace(**changes)


def test_a_program_that_fits_is_one_kernel() -> None:
    steps = (Synthesis(), AddMap(torch.empty(64, 64, device="meta")), Store(), Analyze())
    (piece,) = pieces(steps, shape_of())
    assert (piece.steps, piece.refusal) == (steps, None)


def test_an_analysis_of_many_modes_is_a_kernel_of_its_own() -> None:
    steps = (Synthesis(), Activate("gelu"), Store(), Analyze())
    first, second = pieces(steps, shape_of(next_modes=48))
    assert first.steps == steps[:-1]
    assert [type(step) for step in second.steps] == [Held, Analyze]
    assert (first.refusal, second.refusal) == (None, None)


def test_a_program_too_large_for_shared_memory_is_cut_before_a_map() -> None:
    wide = MLP(linear(128, 128), "gelu", linear(128, 128))
    steps = (Synthesis(), Activate("gelu"), wide, Store())
    shape = shape_of(channels=128, modes=64)
    found = list(pieces(steps, shape))
    assert [piece.refusal for piece in found] == [None, None]
    assert [type(step) for step in found[0].steps] == [Synthesis, Activate, Hold]
    assert [type(step) for step in found[1].steps] == [Held, MLP, Store]


def test_other_channels_are_analysed_by_a_kernel_of_its_own() -> None:
    narrower = MLP(linear(32, 64), "relu", linear(16, 32))
    first, second = pieces((Synthesis(), narrower, Analyze()), shape_of())
    assert [type(step) for step in first.steps] == [Synthesis, MLP, Hold]
    assert [type(step) for step in second.steps] == [Held, Analyze]
    assert (first.refusal, second.refusal) == (None, None)


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> list[_native.Tile]:
    """Tile programs as they would be launched on an A100."""
    tiles: list[_native.Tile] = []
    monkeypatch.setattr(_cuda, "device_limits", lambda _: A100)
    monkeypatch.setattr(_cuda, "workspace_bytes", lambda *_: 0)
    monkeypatch.setattr(_cuda, "launch", lambda _, tile: tiles.append(tile))
    return tiles


def test_a_result_channel_first_is_put_by_channels_last_before(
    launched: list[_native.Tile], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_cuda, "device_limits", lambda _: A100._replace(shared_bytes=99 * 1024))
    stages = CudaStages((300,), (128,), device=torch.device("cpu"), precision="fp32")
    steps = (Synthesis(), AddMap(torch.randn(256, 256)), Store())
    mixed = torch.zeros(1, 256, 128, dtype=torch.complex64)
    given = Operands(x=torch.zeros(1, 256, 300), mixed=mixed)
    y = stages.tile(steps, given, channel_first=True).x
    assert isinstance(y, torch.Tensor)
    assert y.shape == (1, 256, 300)
    first, second = launched
    put_by, taken, stored = first.step[1], second.step[0], second.step[2]
    assert (put_by.kind, taken.kind, stored.kind) == (STORE, LOAD, STORE)
    assert (put_by.channel_first, taken.channel_first, stored.channel_first) == (0, 0, 1)
    assert put_by.field == taken.field
    assert stored.field == y.data_ptr()


def test_all_that_an_analysis_of_many_modes_makes(launched: list[_native.Tile]) -> None:
    stages = CudaStages((200,), (70,), device=torch.device("cpu"), precision="tf32")
    mixed = torch.zeros(2, 20, 30, dtype=torch.complex64)
    done = stages.tile((Synthesis(), Activate("gelu"), Store(), Analyze()), Operands(mixed=mixed))
    assert done.spectra is not None
    assert done.spectra.shape == (2, 20, 70)
    assert stages.plain(done.x).shape == (2, 20, 200)
    assert [tile.next_modes for tile in launched] == [0, 32, 32, 6]
    assert {tile.step[0].field for tile in launched[1:]} == {launched[0].step[2].field}
