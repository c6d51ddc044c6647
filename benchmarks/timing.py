"""Medians of candidates that run in turn, and result files: JSON lines with machine and versions."""

from __future__ import annotations

import argparse
import json
import platform
import subprocess
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch

import turbofno_ops

RESULTS = Path(__file__).parent / "results"


def medians(
    candidates: Mapping[str, Callable[[], object]],
    *,
    seconds: float,
    least_rounds: int = 7,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, float]:
    """Median seconds of each candidate. They are called in turn, so that other load on the machine affects all alike.

    Runs for about `seconds`, but at least `least_rounds` rounds, after two rounds that do not count. `clock` may be one of
    CPU time.
    """
    taken: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(2):
        for call in candidates.values():
            call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(next(iter(taken.values()))) < least_rounds:
        for name, call in candidates.items():
            began = clock()
            call()
            taken[name].append(clock() - began)
    return {name: median(times) for name, times in taken.items()}


def processor() -> str:
    """The processor's model name if the system knows it, otherwise its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or platform.machine()


def commit() -> str:
    """`git describe` of the checkout, or 'unknown'."""
    described = subprocess.run(
        ["git", "describe", "--always", "--dirty"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return described.stdout.strip() or "unknown"


def environment(named: str | None = None) -> dict[str, object]:
    """Commit, processor, threads, versions and time, for the first line of a result file.

    `named` is the commit of a tree that is no git checkout of it.
    """
    return {
        "commit": named or commit(),
        "processor": processor(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "turbofno": turbofno_ops.__version__,
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def save(name: str, rows: list[dict[str, Any]], *, named: str | None = None) -> Path:
    """Write results/NAME.jsonl: a line with the environment, then a line for each row. `named` as in `environment`."""
    RESULTS.mkdir(exist_ok=True)
    file = RESULTS / f"{name}.jsonl"
    lines = [json.dumps(environment(named)), *(json.dumps(row) for row in rows)]
    file.write_text("\n".join(lines) + "\n")
    return file


def no_options(description: str | None) -> None:
    """Answer --help and refuse all else on the command line, before a record is overwritten."""
    argparse.ArgumentParser(description=description).parse_args()


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """Print rows as a text table, numbers to four digits."""
    print(f"\n{title}")
    columns = list(rows[0])
    cells = [columns] + [
        [f"{row[c]:.4g}" if isinstance(row[c], float) else str(row[c]) for c in columns]
        for row in rows
    ]
    widths = [max(len(line[i]) for line in cells) for i in range(len(columns))]
    for line in cells:
        print("  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True)))
