"""Gradients on a GPU: the table, and that both ways compute the same."""

from __future__ import annotations

import pytest
import torch

from benchmarks.gpu import gradients
from benchmarks.gpu.report import gpu_gradients
from tests.benchmarks.test_tables import WHERE, cells


def test_rows_have_both_times_and_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU. The calls are made, and not timed."""

    def called(runs: list[object], *, seconds: float) -> list[float]:
        for run in runs:
            assert callable(run)
            run()
        return [gradients._CALLS * ms for ms in (0.5, 4.0)]

    monkeypatch.setattr(gradients, "milliseconds", called)
    monkeypatch.setattr(gradients, "BATCHES", (2,))
    # as the command line calls it
    with torch.inference_mode():
        rows = list(gradients.measure("burgers-1d", seconds=0.1, device="cpu"))
    assert all(0 < row["relative L2 error"] < 1e-5 for row in rows)  # type: ignore[operator]
    found = cells("\n".join(gpu_gradients([{**row, **WHERE} for row in rows])), "x eager")
    assert (found["model"], found["batch"]) == ("burgers-1d", "2")
    assert (found["ms"], found["eager, ms"], found["x eager"]) == ("0.5", "4", "8x")


def test_a_wrong_gradient_is_no_result(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gradients, "_LARGEST_ERROR", 1e-12)
    with pytest.raises(RuntimeError, match="burgers-1d B1: wrong result"):
        next(gradients.measure("burgers-1d", seconds=0.1, device="cpu"))
