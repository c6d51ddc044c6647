"""Markdown tables of docs/benchmarks.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


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
