"""Only code that needs dates reads the wall clock, which may jump; all else uses the monotonic clock."""

from __future__ import annotations

import ast
from pathlib import Path

from turbofno.service import settings

ALLOWED = {
    "turbofno_client/_errors.py": "Retry-After may be a date",
    "logs.py": "the time of a line",
    "engine/totals.py": "the protocol's last_inference, a date",
    "tracing/batches.py": "the start of a span, a date",
}
WALL_CLOCK = {
    ("time", "time"), ("time", "time_ns"), ("time", "gmtime"), ("time", "localtime"),
    ("datetime", "now"), ("datetime", "utcnow"), ("date", "today"),
}  # fmt: skip


def reads_the_wall_clock(source: str) -> bool:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute):
            owner = node.value.attr if isinstance(node.value, ast.Attribute) else None
            owner = node.value.id if isinstance(node.value, ast.Name) else owner
            if (owner, node.attr) in WALL_CLOCK:
                return True
        elif isinstance(node, ast.ImportFrom) and any(
            (node.module, alias.name) in WALL_CLOCK for alias in node.names
        ):
            return True
    return False


def test_only_what_tells_dates_to_people_looks_at_the_wall_clock() -> None:
    # tests/e2e/test_faults.py runs with a jumping clock; this test covers all processes and code paths.
    root = Path(settings.__file__).parent
    found = {
        str(path.relative_to(root))
        for path in root.rglob("*.py")
        if reads_the_wall_clock(path.read_text())
    }
    assert found == set(ALLOWED)


def test_the_scan_finds_every_way_to_read_it() -> None:
    for source in (
        "import time\ntime.time()", "from time import time_ns", "import datetime\ndatetime.datetime.now()",
        "from datetime import date\ndate.today()",
    ):  # fmt: skip
        assert reads_the_wall_clock(source)
    assert not reads_the_wall_clock("import time\ntime.monotonic()")
