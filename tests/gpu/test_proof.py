"""The proof on a GPU, where there is none: it does not pass, and its judgements are right."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.gpu import run
from tests.gpu.zoo_errors import equal_to_three_digits


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_it_fails_without_a_gpu() -> None:
    script = Path(run.__file__)
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False
    )
    assert done.returncode != 0
    assert "sees no GPU" in done.stderr


def test_a_part_passes_fails_or_is_not_run() -> None:
    assert run.verdict(run.Part("a", [sys.executable, "-c", ""])).startswith("passed")
    failed = run.verdict(run.Part("b", [sys.executable, "-c", "raise SystemExit(3)"]))
    assert failed.startswith("FAILED with exit code 3")
    assert run.verdict(run.Part("c", ["no-such-program"])).startswith("NOT RUN")


def test_sanitizer_is_found_in_the_toolkit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    shutil.copy("/bin/true", tool)
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CUDA_HOME", str(tmp_path))
    assert run.sanitizer() == str(tool)


@pytest.mark.parametrize(
    ("measured", "recorded", "same"),
    [
        (0.0005205, 0.0005205, True),
        (0.0005209, 0.0005205, True),
        (0.0005215, 0.0005205, False),
        (0.01080, 0.01081, True),
        (0.0109, 0.01081, False),
        (float("nan"), 0.01081, False),
    ],
)
def test_three_digits(measured: float, recorded: float, same: bool) -> None:
    assert equal_to_three_digits(measured, recorded) is same
