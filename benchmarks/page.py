"""Result files as Markdown tables, for docs/benchmarks.md and the measured parts of other pages."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]

_BEGIN = "<!-- begin of what `python -m benchmarks.tables` writes -->"
_END = "<!-- end of what `python -m benchmarks.tables` writes -->"


def read(file: Path) -> list[Row]:
    """The lines of a result file."""
    return [json.loads(line) for line in file.read_text().splitlines()]


def measured_on(row: Row) -> list[str]:
    """GPU, versions, commit and date of a row, and an empty line."""
    where = f"One {row['gpu']}, PyTorch {row['torch']}, CUDA {row['cuda']}, commit {row['commit']}"
    return [f"{where}, {row['at'][:10]}.", ""]


def times(value: float) -> str:
    """A ratio as in tables: 1.5x."""
    return f"{value:.3g}x"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """The lines of a table; numbers to three digits, None as an empty cell."""
    lines = [columns, ["---"] * len(columns), *([cell(value) for value in row] for row in rows)]
    return [f"| {' | '.join(line)} |" for line in lines] + [""]


def cell(value: object) -> str:
    """The text of a cell."""
    if value is None:
        return ""
    if not isinstance(value, float):
        return str(value)
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def with_measured_part(page: Path, lines: Iterable[str]) -> str:
    """The text of a page with `lines` as its measured part. Raises ValueError if it lacks the marks of that part."""
    before, begin, rest = page.read_text().partition(_BEGIN)
    _, end, after = rest.partition(_END)
    if not begin or not end:
        raise ValueError(f"{page} lacks the marks of its measured part")
    written = "\n".join(lines).strip()
    return f"{before}{_BEGIN}\n\n{written}\n\n{_END}{after}"
