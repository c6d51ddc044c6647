"""benchmarks.gpu.imported on a CPU: both sides are the same network, the reference is float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu import candidates, imported
from benchmarks.gpu.imported import IN_CHANNELS, in_float64, library, plain
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.fno import FNO

DRAWN: list[dict[str, Any]] = [
    {"n_modes": (8, 8)},
    {"n_modes": (8, 8), "norm": "instance_norm"},
    {"n_modes": (8, 8), "norm": "group_norm"},
    {"n_modes": (8, 8), "name": "TFNO", "rank": 0.42},
    {"n_modes": (8,)},
    {"n_modes": (4, 4, 4)},
]


@pytest.mark.parametrize("arguments", DRAWN)
def test_imported_network_equals_the_librarys(arguments: dict[str, Any]) -> None:
    theirs, ours = library(hidden_channels=6, **arguments)
    x = torch.randn(2, IN_CHANNELS, *[12] * len(arguments["n_modes"]))
    with torch.inference_mode():
        theirs(x)
        expected = in_float64(theirs, x)
        assert expected.dtype == torch.float64
        assert relative_l2(theirs(x), expected) < 1e-4, "the float32 network is left alone"
        assert relative_l2(ours.double()(x.double()), expected) < 1e-6


def test_constant_parameters_get_random_values() -> None:
    theirs, _ = library(hidden_channels=6, n_modes=(8, 8), norm="group_norm")
    assert all(p.numel() == 1 or p.std() > 0 for p in theirs.parameters())


def test_plain_network_in_three_dimensions_equals_ours() -> None:
    theirs, ours = plain(4, (6, 4, 3))
    x = torch.randn(1, IN_CHANNELS, 8, 8, 9)
    with torch.inference_mode():
        assert relative_l2(ours.double()(x.double()), in_float64(theirs, x)) < 1e-12


def small() -> tuple[torch.nn.Module, FNO]:
    return library(hidden_channels=4, n_modes=(4, 4))


@pytest.fixture
def on_cpu(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replace CUDA graphs and events; the list gets the number of timed runs."""
    timed: list[int] = []

    def milliseconds(runs: list[object], **_: object) -> list[float]:
        timed.append(len(runs))
        return [1.0] * len(runs)

    monkeypatch.setattr(imported, "_DEVICE", torch.device("cpu"))
    monkeypatch.setattr(imported, "rotating", lambda shape, most: [torch.randn(shape)] * most)
    monkeypatch.setattr(imported, "milliseconds", milliseconds)
    monkeypatch.setattr(candidates, "in_graph", candidates.each)
    monkeypatch.setattr(imported, "_ALLOWED", 1e-4)
    return timed


def test_rows_of_a_network(on_cpu: list[int]) -> None:
    case = imported.Case("small", 2, (12, 12), small)
    with torch.inference_mode():
        rows = list(imported.measure(case, 1e12, seconds=0, quick=False))
    assert on_cpu == [5]
    assert [row["what"] for row in rows] == ["turbofno", *["eager, call", "eager, graph"] * 2]
    assert all(row["ms"] == 0.125 for row in rows), "eight fields a run"


def test_a_wrong_result_is_not_timed(on_cpu: list[int]) -> None:
    case = imported.Case("small", 2, (12, 12), lambda: (small()[0], small()[1]))
    with torch.inference_mode(), pytest.raises(RuntimeError, match="small B2: wrong result"):
        list(imported.measure(case, 1e12, seconds=0, quick=False))
    assert on_cpu == []
