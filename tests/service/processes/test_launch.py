"""The parameters of a child arrive as they were sent."""

from __future__ import annotations

import math
import os
import subprocess
import sys

from turbofno.service.engine.interface import RecoveryRecord
from turbofno.service.processes.launch import Launch
from turbofno.service.settings import Settings

SHOW = """
import sys
from turbofno.service.processes.launch import Launch
print(Launch.load(sys.stdin.buffer.read()).dump().decode())
"""


def test_settings_arrive_also_infinite_ones() -> None:
    settings = Settings(
        request_deadline_seconds=math.inf,
        hang_seconds=math.inf,
        devices=("0+1", "cpu"),
        frontends=2,
        model_limits={"m": {"fields": 3, "batch": 2}},  # type: ignore[dict-item]
    )
    records = (RecoveryRecord("m", "1", ""), RecoveryRecord("m", "2", "why not"))
    launch = Launch("engine", 1, 2, os.getpid(), "@x", settings, records, rank=1, store="/s")
    shown = subprocess.run([sys.executable, "-c", SHOW], input=launch.dump(), capture_output=True, check=True)  # fmt: skip
    assert shown.stdout.strip() == launch.dump()
    assert b"Infinity" in shown.stdout
