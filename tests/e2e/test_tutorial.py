"""The tutorial runs as written against a real server, and the solver confirms its designs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.e2e.server_process import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess


def test_heat_spreader(server: ServerProcess, tmp_path: Path) -> None:
    settings = {"TUTORIAL_URL": server.url, "TUTORIAL_OUT": str(tmp_path), "TUTORIAL_QUICK": "1"}
    done = subprocess.run(
        [sys.executable, ROOT / "docs" / "tutorial" / "heat_spreader.py"],
        env=os.environ | settings | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    record = json.loads((tmp_path / "heat_spreader.json").read_text())
    random, evolved, descended = record["designs"].values()
    # judged by the solver, not by the surrogate
    assert evolved["solver"] < random["solver"]
    assert descended["solver"] < random["solver"]
    for design in record["designs"].values():
        assert design["surrogate"] == pytest.approx(design["solver"], rel=0.1)
        assert 0 < design["relative_l2"] < 0.1
    medians = [one["quantiles_10_50_90"][1] for one in record["sweep"].values()]
    assert medians == sorted(medians, reverse=True), "more conductor, cooler plate"
    assert record["callers"]["1"]["fields_a_batch"] == 1
    assert record["callers"]["16"]["fields_a_batch"] > 1
    for picture in ("sweep.png", "designs.png"):
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
