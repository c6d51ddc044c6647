"""benchmarks.gpu.fft on a CPU: both sides of every case compute the same, and the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.gpu import fft as measured
from benchmarks.gpu.fft import CASES, Case
from benchmarks.gpu.report import gpu_fft
from benchmarks.gpu.tcfft import tcfft_milliseconds

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
        "speed-up": 6.0, "relative L2 error": 2e-7, "torch error": 3e-7, "dense_dft floors": 1.5, "call us": 45.0,
        "torch call us": 12.0, **WHERE,
    }  # fmt: skip
    missing = dict.fromkeys(("torch floors", "speed-up", "torch error", "torch call us"))
    missing["backend"] = "torch"
    page = "\n".join(gpu_fft([row, {**row, **missing, "transform": "rfft 61 fp16"}]))
    assert "| rfft 61 fp32 | 0.2 | 1.5 | 9 | 6x |  |  |  | 1.5 | 45 | 12 | 2.0e-07 |" in page
    assert "Through torch.fft run: rfft 61 fp16." in page
    assert "not measured here" in page
    page = "\n".join(gpu_fft([row, {**row, "transform": "fft 256 fp16", "tcFFT floors": 2.5}]))
    assert "| fft 256 fp16 | 0.2 | 1.5 | 9 | 6x |  |  |  | 1.5 | 2.5 |" in page
    assert "its authors' program" in page


def test_tcffts_program_is_run_as_its_authors_run_it(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match=r"is not built: .*tcfft_half_speed is missing"):
        tcfft_milliseconds(tmp_path, (256,), 64)
    for name in ("tcfft_half_speed", "tcfft_half_2d_speed"):
        program = tmp_path / name
        program.write_text(
            '#!/bin/sh\necho "$@" >&2\n[ $1 = -n512 ] && exit 1\n'
            'case $1$2 in -n256-b64|-x512-y256) echo "n: 256, iter: 1024, time per iter: 0.000125";; esac\n'
        )
        program.chmod(0o755)
    assert tcfft_milliseconds(tmp_path, (256,), 64) == pytest.approx(0.125)
    assert tcfft_milliseconds(tmp_path, (512, 256), 64) == pytest.approx(0.125)
    assert tcfft_milliseconds(tmp_path, (2048,), 64) is None
    for size, batch in (((512,), 64), ((256,), 65)):
        with pytest.raises(RuntimeError, match=f"no time of {size[0]}: .*-b{batch} -m1024"):
            tcfft_milliseconds(tmp_path, size, batch)
