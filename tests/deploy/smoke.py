"""Runs deploy/smoke.py."""

from __future__ import annotations

import subprocess
import sys

from tests.e2e.server_process import ROOT


def smoke(url: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run it in an interpreter without any packages."""
    return subprocess.run(
        [sys.executable, "-I", "-S", str(ROOT / "deploy" / "smoke.py"), url, *options],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
