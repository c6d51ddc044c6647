"""benchmarks.gpu.drawn on a CPU: the rows of random networks, and their table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch

from benchmarks.gpu import drawn
from benchmarks.gpu.report import gpu_drawn

WHERE = {"gpu": "a card", "torch": "2", "cuda": "13", "commit": "c", "at": "2026-01-01T00:00:00"}


def test_rows_compare_the_library_with_its_import(monkeypatch: pytest.MonkeyPatch) -> None:
    def milliseconds(runs: Sequence[Callable[[], object]], *, seconds: float) -> list[float]:
        for run in runs:
            run()
        return [2.0, 1.0]

    monkeypatch.setattr(drawn, "milliseconds", milliseconds)
    monkeypatch.setattr(drawn, "_DEVICE", torch.device("cpu"))
    grids = {n: drawn.Batch(2, (16,) * n) for n in (1, 2, 3)}
    monkeypatch.setattr(drawn, "BATCHES", grids)
    with torch.inference_mode():
        rows: list[dict[str, Any]] = [
            dict(row)
            for label, network in drawn.networks(3)
            for row in drawn.measure(label, network, seconds=0.1)
        ]
    assert len(rows) == 3
    for row in rows:
        assert row["speed-up"] == 0.5
        # The library's own error may be far below the rounding of a single value.
        rounding = max(row["float32 error on the CPU"], torch.finfo(torch.float32).eps)
        assert row["relative L2 error"] < 3 * rounding < 1e-4
    page = "\n".join(gpu_drawn([{**row, **WHERE} for row in rows]))
    assert f"Slower than the library: {', '.join(str(row['network']) for row in rows)}." in page
