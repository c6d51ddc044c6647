"""The cost of trust signals on a GPU: its table, and that it compares two ways to compute spectra."""

from __future__ import annotations

from unittest.mock import patch

import pytest

from benchmarks.gpu import trust
from benchmarks.gpu.report import gpu_trust
from tests.benchmarks.test_tables import WHERE, cells
from turbofno_ops import fft


def test_a_row_has_both_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU. Instead of times, the questions which package to take are counted."""
    preferred = []

    def noted(*_: object, **__: object) -> bool:
        preferred.append("asked")
        return False

    def counted(runs: list[object], *, seconds: float) -> list[float]:
        asked = []
        for run in runs:
            preferred.clear()
            assert callable(run)
            run()
            asked.append(len(preferred))
        assert asked[0] == asked[2] == 0, "torch.fft everywhere asks nobody"
        assert asked[1] > 0
        return [trust._BATCHES * ms for ms in (9.0, 10.0, 12.0)]

    monkeypatch.setattr(trust, "milliseconds", counted)
    monkeypatch.setattr(trust, "QUICK_VALUES", 2**12)
    with (
        patch.object(fft, "is_preferred", noted),
        patch.object(trust._preferred, "is_preferred", noted),
    ):
        (row,) = trust.measure(
            trust.Case("burgers-1d", (64,)), seconds=0.1, quick=True, device="cpu"
        )
    page = "\n".join(gpu_trust([{**row, **WHERE}]))
    found = cells(page, "by torch.fft")
    assert found["signals"] == "input_distance and residual"
    assert (found["alone"], found["with signals"]) == ("9", "10")
    assert (found["share"], found["share by torch.fft"]) == ("10.0%", "25.0%")
