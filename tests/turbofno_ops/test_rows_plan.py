"""Every plan of the row kernels fits the kernels and the devices; needs a C++ compiler, no GPU."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
def test_every_plan_fits(tmp_path: Path) -> None:
    program = tmp_path / "rows_plan_check"
    sources = [ROOT / "tests/csrc/rows_plan_check.cpp", ROOT / "csrc/plan/rows_plan.cpp"]
    flags = ["-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror"]
    subprocess.run(["g++", *flags, *sources, "-o", program], check=True)
    checked = subprocess.run([program], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout[:2000]
