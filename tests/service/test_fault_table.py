"""docs/faults.md names tests that there are."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).resolve().parents[2] / "docs" / "faults.md"


def test_every_fault_is_shown_by_a_test_that_there_is() -> None:
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")][1:]
    assert len(rows) > 20
    for row in rows:
        if row.startswith("| attack "):
            continue
        *_, tests, _ = row.split("|")
        links = re.split(r"\[[\w.]+\]\(([^)]+)\)", tests)
        assert len(links) > 1 or "](" in row, row
        for path, names in zip(links[1::2], links[2::2], strict=True):
            text = (PAGE.parent / path).read_text()
            for name in re.findall(r"`(test_\w+)`", names):
                assert f"def {name}(" in text, f"{name} is not in {path}"
