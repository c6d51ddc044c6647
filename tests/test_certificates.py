"""The file of certificates that conftest.py makes for all tests is gone after them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def test_a_run_leaves_no_certificates_in_the_temporary_folder(tmp_path: Path) -> None:
    # a first process, not a worker of this run
    known = {name: value for name, value in os.environ.items() if name != "PYTEST_XDIST_WORKER"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--collect-only"]
    subprocess.run(
        [*command, "tests/test_sampled.py"],
        cwd=ROOT,
        env={**known, "TMPDIR": str(tmp_path)},
        check=True,
        capture_output=True,
    )
    assert [file.name for file in tmp_path.glob("*.pem")] == []
