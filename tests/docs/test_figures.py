"""Figures that pages quote from docs/benchmarks.md are those that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SERVERS = ("turbofno", "bare uvicorn", "LitServe", "MLServer", "BentoML", "Ray Serve")
MEASUREMENTS = {
    "binary, 64x64": "light-2d, binary, 64x64",
    "binary, 128x128": "light-2d, binary, 128x128",
    "JSON, 64x64": "light-2d, JSON, 64x64",
    "JSON, 128x128": "light-2d, JSON, 128x128",
    "`navier-stokes-2d`, binary, 64x64": "navier-stokes-2d, binary, 64x64",
}


def cells(document: str, row: str) -> list[str]:
    """The cells of the first table row that begins with a text."""
    found = re.search(rf"^\| {re.escape(row)}.*$", document, flags=re.MULTILINE)
    assert found, row
    return [cell.strip() for cell in found[0].strip("|").split("|")]


@pytest.mark.parametrize("row", MEASUREMENTS)
def test_the_comparison_of_servers_quotes_the_measured_rates(row: str) -> None:
    benchmarks = (ROOT / "docs" / "benchmarks.md").read_text()
    _, _, section = benchmarks.partition(f"### {MEASUREMENTS[row]}\n")
    measured = [cells(section, server)[1] for server in SERVERS]
    page = (ROOT / "docs" / "explanation" / "comparison.md").read_text()
    assert cells(page, row)[1:] == measured
