"""bin/turbofno: the checkout's own launcher."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

CHECKOUT_LAUNCHER = Path(__file__).resolve().parents[2] / "bin" / "turbofno"


def test_launcher_runs_from_any_folder_and_through_a_link(tmp_path: Path) -> None:
    checkout = tmp_path / "a checkout"
    _fake_checkout(checkout)
    (tmp_path / "turbofno").symlink_to(checkout / "bin" / "turbofno")
    for launcher in (checkout / "bin" / "turbofno", tmp_path / "turbofno"):
        done = subprocess.run(
            [launcher, "config", "a b"], cwd=tmp_path, capture_output=True, text=True, timeout=30
        )
        assert done.returncode == 7
        assert done.stdout.splitlines() == ["-m", "service", "config", "a b", str(checkout)]


def test_launcher_without_an_environment_says_what_to_do(tmp_path: Path) -> None:
    checkout = tmp_path / "checkout"
    _fake_checkout(checkout)
    (checkout / ".venv" / "bin" / "python").unlink()
    done = subprocess.run(
        [checkout / "bin" / "turbofno", "serve"], capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 1
    assert 'run "make install" first' in done.stderr


def _fake_checkout(checkout: Path) -> None:
    """A checkout whose python prints its arguments and PYTHONPATH, and exits with 7."""
    (checkout / "bin").mkdir(parents=True)
    (checkout / ".venv" / "bin").mkdir(parents=True)
    launcher = checkout / "bin" / "turbofno"
    launcher.write_bytes(CHECKOUT_LAUNCHER.read_bytes())
    python = checkout / ".venv" / "bin" / "python"
    python.write_text(
        '#!/bin/sh\nfor a in "$@"; do echo "$a"; done\necho "${PYTHONPATH%%:*}"\nexit 7\n'
    )
    for script in (launcher, python):
        os.chmod(script, 0o755)
