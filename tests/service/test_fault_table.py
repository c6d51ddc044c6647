"""docs/explanation/faults.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "faults.md"


def test_every_fault_is_shown_by_a_test_that_there_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        if row.startswith("| attack "):
            continue
        *_, tests, _ = row.split("|")
        files = re.split(r"`(tests/[\w/]+\.py)`", tests)
        assert len(files) > 1, row
        for path, names in zip(files[1::2], files[2::2], strict=True):
            text = (ROOT / path).read_text()
            for name in re.findall(r"`(test_\w+)`", names):
                assert f"def {name}(" in text, f"{name} is not in {path}"
