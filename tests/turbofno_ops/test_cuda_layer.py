"""Launches of a single layer, recorded without a GPU: planned once per shape, with the weights of each call."""

from __future__ import annotations

import sys
from collections import OrderedDict
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from turbofno_ops import _cuda, _cuda_layer, _cuda_product, _gemm, _native
from turbofno_ops._support import A100

pytestmark = pytest.mark.usefixtures("served_shapes")

STEPS_OF_A_LAYER_2D = [
    "dense_dft",
    "transform_axis",
    "multiply_modes",
    "transform_axis",
    "pack_operand",
    "tile_program",
]


class Recorder:
    """Records launches, as on an A100, and counts plans."""

    def __init__(self) -> None:
        self.launched: list[tuple[Any, ...]] = []
        self.planned = 0

    @property
    def names(self) -> list[str]:
        return [name for name, *_ in self.launched]

    def launch(self, name: str, *arguments: Any) -> None:
        self.launched.append((name, *arguments))

    def refusal(self, function: str, *arguments: Any) -> str | None:
        self.planned += 1
        return self._ask(function, *arguments)

    _ask = staticmethod(_native.refusal)


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    made = Recorder()
    monkeypatch.setattr(_cuda, "device_limits", lambda _: A100)
    monkeypatch.setattr(_cuda, "device_clusters", lambda _: 0)
    for module in (_cuda, _cuda_product):
        monkeypatch.setattr(module, "launch", made.launch)
    monkeypatch.setattr(_native, "launch", made.launch)
    monkeypatch.setattr(_native, "refusal", made.refusal)
    monkeypatch.setattr(_native, "bytes_of", lambda *_: 4096)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    # hide plans of other tests
    monkeypatch.setattr(_gemm._tables, "_kept", OrderedDict())
    monkeypatch.setattr(_gemm._tables, "nbytes", 0)
    return made


def tensors(*size: int, channels: int = 32) -> list[torch.Tensor]:
    modes = (6,) * (len(size) - 1) + (5,)
    return [
        torch.randn(4, channels, *size),
        torch.randn(channels, channels, *modes, dtype=torch.complex64),
        torch.randn(channels, channels),
        torch.randn(channels),
    ]


def run(x: torch.Tensor, *weights: torch.Tensor, activation: str = "gelu") -> torch.Tensor:
    return _cuda_layer.layer(x, *weights, activation, x.shape[2:], "fp32")


def test_a_shape_is_planned_once(recorder: Recorder) -> None:
    given = tensors(64, 48)
    run(*given)
    assert recorder.planned > 0
    recorder.planned = 0
    recorder.launched.clear()
    run(*given)
    assert recorder.planned == 0
    assert recorder.names == STEPS_OF_A_LAYER_2D
    run(*tensors(64, 40))
    assert recorder.planned > 0


def test_cached_plans_are_bounded_in_bytes(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    bound = 4 * _cuda_layer._HOST_BYTES
    monkeypatch.setattr(_gemm, "MAX_TABLE_BYTES", bound)
    for points in range(16, 40):
        run(*tensors(points))
        assert _gemm._tables.nbytes <= bound
    assert recorder.planned > 24
    monkeypatch.setattr(_gemm, "MAX_TABLE_BYTES", 0)
    run(*tensors(16))
    assert _gemm._tables.nbytes == 0, "eviction subtracts the bytes that insertion added"


def test_every_call_reads_its_own_weights(recorder: Recorder) -> None:
    x, weight, skip, bias = tensors(64, 48)
    for _ in range(3):
        # `data` does not change `_version`
        weight.data, skip.data, bias.data = weight + 1, skip + 1, bias + 1
        recorder.launched.clear()
        run(x, weight, skip, bias)
        by_name = dict(zip(recorder.names, recorder.launched, strict=True))
        assert by_name["pack_operand"][1].matrix == skip.data_ptr()
        tile = recorder.launched[-1][1]
        assert tile.step[1].shift == bias.data_ptr(), "channels that need no padding"
        assert tile.step[2].first == by_name["pack_operand"][1].operand


def test_launches_of_one_plan_do_not_share_pointers(recorder: Recorder) -> None:
    given = tensors(64, 48)
    first, second = run(*given), run(*given)
    ends = [arguments[1] for arguments in recorder.launched if arguments[0] == "tile_program"]
    fields = [tile.step[4].field for tile in ends]
    assert fields == [first.data_ptr(), second.data_ptr()]


def test_launches_equal_their_plans(recorder: Recorder) -> None:
    """x is channel first, so no plan may prefetch it as channels last."""
    for size, channels in (((64, 48), 32), ((100,), 256), ((9, 12, 17), 20)):
        run(*tensors(*size, channels=channels))
    checked = 0
    for name, *arguments in recorder.launched:
        if name == "tile_program":
            again = _native.TilePlan()
            assert _native.refusal("tile_prepare", arguments[0], again) is None
            assert bytes(again) == bytes(arguments[1])
            checked += 1
    assert checked == 3


def test_rows_are_analysed_by_warpgroups_where_they_are_fast_and_else_by_a_transform(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    hopper = A100._replace(warpgroups=True)
    monkeypatch.setattr(_cuda, "device_limits", lambda _: hopper)
    for size, channels, first in (
        ((64, 48), 64, "tile_program"),
        ((64, 48), 32, "dense_dft"),
        ((64, 49), 64, "dense_dft"),
        ((64,), 64, "tile_program"),
        ((1009,), 64, "dense_dft"),
        ((100,), 32, "dense_dft"),
        ((12,), 32, "mixed_radix_fft"),
        # pairs of odd lines are not independent to the bit
        ((13,), 32, "tile_program"),
        ((243,), 64, "tile_program"),
        ((2003,), 64, "tile_program"),
    ):
        recorder.launched.clear()
        run(*tensors(*size, channels=channels))
        assert recorder.names[0] == first, (size, channels)


def test_a_prepared_layer_costs_few_python_calls(recorder: Recorder) -> None:
    given = tensors(64, 48)
    run(*given)
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        run(*given)
    finally:
        sys.setprofile(None)
    assert calls < 250
    assert recorder.names[-6:] == STEPS_OF_A_LAYER_2D
