"""The record of GPU test runs, docs/gpu-proof.json: date, GPUs, results and hashes of the tested sources.

`python -m tests.gpu.record` prints in one line whether it covers the current sources. The record has the last run for each
number of GPUs.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FILE = ROOT / "docs" / "gpu-proof.json"

COVERED = (
    "CMakeLists.txt",
    "csrc",
    "turbofno_ops",
    "models",
    "service/runtime",
    "tests/conftest.py",
    "tests/draws.py",
    "tests/thorough.py",
    "tests/gpu",
    "tests/turbofno_ops",
    "tests/models/test_gpu_transforms.py",
    "tests/models/verify/test_command.py",
    "tests/models/zoo/pde/test_random_fields.py",
    "tests/service/runtime",
    "tests/service/processes/test_devices.py",
    "tests/service/processes/test_groups.py",
)
"""Covered files, and folders with all sources in them: the code that runs on a GPU, and the tests. The rest of the service,
which some of these tests start, runs on CPUs."""
_SUFFIXES = {".py", ".cpp", ".cu", ".cuh", ".h", ".c", ".txt"}
_MOST_SHOWN = 5

Record = dict[str, Any]


def _sources(root: Path) -> Iterator[Path]:
    for name in COVERED:
        path = root / name
        found = path.rglob("*") if path.is_dir() else [path]
        yield from (file for file in found if file.is_file() and file.suffix in _SUFFIXES)


def hashes(root: Path = ROOT) -> dict[str, str]:
    """Return path -> hash of every covered source."""
    return {
        path.relative_to(root).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()[:12]
        for path in sorted(_sources(root))
    }


def digest(sources: dict[str, str]) -> str:
    """Return one hash of all sources."""
    return hashlib.sha256(json.dumps(sources, sort_keys=True).encode()).hexdigest()[:16]


def written(file: Path, sources: dict[str, str], run: Record) -> Record:
    """Write a run, replacing the last one on as many GPUs (`cards`). Returns the record."""
    runs = read(file).get("runs", {})
    runs[str(len(run["cards"]))] = {**run, "sources": digest(sources)}
    record = {"runs": dict(sorted(runs.items())), "sources": sources}
    file.write_text(json.dumps(record, indent=1) + "\n")
    return record


def read(file: Path = FILE) -> Record:
    """Return the record; empty if there is none."""
    return json.loads(file.read_text()) if file.is_file() else {}


def passed(record: Record, sources: dict[str, str], run: Record) -> dict[str, dict[str, int]]:
    """Return the parts that passed in the last run on as many cards, if sources, cards, PyTorch and CUDA are those of `run`."""
    last = record.get("runs", {}).get(str(len(run["cards"])), {"parts": {}})
    same = last.get("sources") == digest(sources) and all(
        last[name] == run[name] for name in ("cards", "torch", "cuda")
    )
    return {name: part for name, part in last["parts"].items() if same and not part["failed"]}


def covers(record: Record, sources: dict[str, str]) -> str:
    """Return one line: the results of the last runs, and which sources have changed since."""
    if not record:
        return "GPU proof: none recorded; `make test-gpu` on a machine with a GPU makes one"
    now, known = digest(sources), record["sources"]
    told = "; ".join(_told(run, now) for run in record["runs"].values())
    names = known.keys() | sources.keys()
    changed = sorted(name for name in names if known.get(name) != sources.get(name))
    if not changed:
        return f"GPU proof: {told}"
    shown = ", ".join(changed[:_MOST_SHOWN])
    more = f" and {len(changed) - _MOST_SHOWN} more" if len(changed) > _MOST_SHOWN else ""
    return f"GPU proof: {told}; changed since: {shown}{more}"


def _told(run: Record, now: str) -> str:
    failed = [name for name, part in run["parts"].items() if part["failed"]]
    how = f"FAILED ({', '.join(failed)})" if failed else "passed"
    of = "the tree as it is" if run["sources"] == now else "an earlier tree"
    return f"{how} on {' and '.join(run['cards'])}, {run['at'][:10]}, {of}"


if __name__ == "__main__":
    sys.stdout.write(covers(read(), hashes()) + "\n")
