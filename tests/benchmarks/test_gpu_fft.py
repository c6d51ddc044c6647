"""benchmarks.gpu.fft on a CPU: both sides of every case compute the same, and the table."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from benchmarks.gpu import fft as measured
from benchmarks.gpu.fft import CASES, Case
from benchmarks.tables import gpu_fft

WHERE = {"gpu": "a card", "torch": "2", "cuda": "13", "commit": "c", "at": "2026-01-01T00:00:00"}
SMALL = (
    *(Case(name, (21,)) for name in ("fft", "ifft", "rfft", "irfft")),
    *(Case(name, (12, 9)) for name in ("fft2", "rfft2", "irfft2")),
    *(Case(name, (20,), modes=(6,)) for name in ("rfft", "irfft")),
    *(Case(name, (12, 9), modes=(6, 3)) for name in ("rfft2", "irfft2")),
)


def test_cases_have_labels_of_their_own() -> None:
    assert len({case.label for case in CASES}) == len(CASES)


@pytest.mark.parametrize("case", SMALL, ids=lambda case: case.label)
def test_both_sides_compute_the_same(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = torch.randn

    def on_the_cpu(*shape: int, **given: Any) -> torch.Tensor:
        return drawn(*shape, **{**given, "device": "cpu"})

    monkeypatch.setattr(torch, "randn", on_the_cpu)
    x = measured._drawn(case, 1)
    truth = measured._truth(case, x)
    for call in (measured._own(case, "auto"), measured._torch(case)):
        assert call(x).shape == truth.shape
        assert measured._error(call(x), truth) < 1e-6


def test_the_table_has_floors_and_errors() -> None:
    row = {
        "transform": "rfft 61 fp32", "backend": "kernels", "ms": 0.3, "floor ms": 0.2, "floors": 1.5, "torch floors": 9.0,
        "speed-up": 6.0, "relative L2 error": 2e-7, "torch error": 3e-7, "dense_dft floors": 1.5, **WHERE,
    }  # fmt: skip
    missing = {"torch floors": None, "speed-up": None, "torch error": None, "backend": "torch"}
    page = "\n".join(gpu_fft([row, {**row, **missing, "transform": "rfft 61 fp16"}]))
    assert "| rfft 61 fp32 | 0.2 | 1.5 | 9 | 6x |" in page
    assert "Through torch.fft run: rfft 61 fp16." in page
