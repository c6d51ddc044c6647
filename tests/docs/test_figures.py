"""Figures that pages quote from docs/benchmarks.md are those that are there."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


def cells(document: str, row: str) -> list[str]:
    """The cells of the first table row that begins with a text."""
    found = re.search(rf"^\| {re.escape(row)}.*$", document, flags=re.MULTILINE)
    assert found, row
    return [cell.strip() for cell in found[0].strip("|").split("|")]


CHAINS = (
    *("FNO with defaults", "TFNO with defaults", "PhysicsNeMo FNO with defaults", "drawn |"),
    *(f"drawn, {width} channels" for width in ("16 to 64", "96", "128", "192", "256")),
)


@pytest.mark.parametrize("row", CHAINS)
def test_the_page_on_imports_quotes_the_counted_chains(row: str) -> None:
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    _, _, section = benchmarks.partition("## Imported networks as chains of kernels\n")
    name, _, imported, _, *on_cards = cells(section, row)[:6]
    page = (ROOT / "docs" / "reference" / "import.md").read_text()
    assert cells(page, row) == [name, imported, *on_cards]


def percents(rows: list[dict[str, Any]]) -> list[int]:
    """The least and the largest gain of contracting, in whole percents."""
    gains = [100 * (1 - row["contracting over multiplied out"]) for row in rows]
    return [round(min(gains)), round(max(gains))]


def test_the_page_on_imports_quotes_the_gains_of_contracting() -> None:
    file = ROOT / "benchmarks" / "results" / "tfno.jsonl"
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    by_width = {
        width: [r for r in rows if f" C{width} " in r["network"]] for width in (32, 64, 128)
    }
    assert sum(map(len, by_width.values())) == len(rows)
    single, batches = (
        [r for r in by_width[64] if (r["batch"] == 1) == one] for one in (True, False)
    )
    page = (ROOT / "docs" / "reference" / "import-neuraloperator.md").read_text()
    said = re.search(
        r"single fields would take (\d+) to (\d+) % less time, batches (\d+) to (\d+) % less; "
        r"with 128 channels both (\d+) % less\. With 32 channels there is no difference beyond (\d+) %",
        " ".join(page.split()),
    )
    assert said
    least, most = percents(by_width[128])
    assert least == most
    assert [int(n) for n in said.groups()] == [
        *percents(single),
        *percents(batches),
        most,
        max(map(abs, percents(by_width[32]))),
    ]
    decision = (ROOT / "docs" / "explanation" / "decisions" / "checkpoints.md").read_text()
    assert f"up to {percents(rows)[1]} % of its time" in " ".join(decision.split())
