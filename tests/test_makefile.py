"""How the Makefile makes its environment."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.server_process import ROOT


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A folder with the files that the Makefile reads."""
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "CMakeLists.txt"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


def make(checkout: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = ["make", *arguments]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, timeout=60)


def test_an_environment_that_was_interrupted_before_pip_is_made_again(checkout: Path) -> None:
    binaries = checkout / ".venv" / "bin"
    binaries.mkdir(parents=True)
    (binaries / "python").symlink_to(sys.executable)
    assert "-m venv .venv" in make(checkout, "--dry-run", "install").stdout
    (binaries / "pip").touch()
    assert "-m venv .venv" not in make(checkout, "--dry-run", "install").stdout


def test_a_python_that_is_too_old_is_refused_before_anything_is_installed(checkout: Path) -> None:
    python = checkout / "python3.10"
    old = "import sys; sys.version_info, sys.version = (3, 10, 13), '3.10.13 (main)'"
    python.write_text(f'#!/bin/sh\n[ "$1" = -c ] && exec "{sys.executable}" -c "{old}; $2"\n')
    python.chmod(0o755)
    done = make(checkout, "install", f"PYTHON={python}")
    assert done.returncode != 0
    assert f"needs Python 3.11 or later, but {python} is 3.10.13" in done.stderr
    assert not (checkout / ".venv").exists()
