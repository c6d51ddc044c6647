"""The record of GPU test runs: hashes of sources, and the line that `make lint` prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.gpu import record
from tests.gpu import run as runner
from tests.gpu.record import covers, digest, hashes, passed, read, written

PASSED = {"passed": 3, "failed": 0, "skipped": 0, "seconds": 1}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("csrc/kernels/a.cu", "turbofno_ops/b.py", "turbofno_ops/b.so", "docs/c.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


def run(*cards: str, failed: int = 0) -> record.Record:
    parts = {"ops": {**PASSED, "failed": failed}}
    return {"at": "2026-11-22T10:00:00+00:00", "cards": list(cards), "parts": parts}


def test_sources_are_hashed_and_build_results_are_not(tree: Path) -> None:
    found = hashes(tree)
    assert list(found) == ["csrc/kernels/a.cu", "turbofno_ops/b.py"]
    (tree / "docs/c.md").write_text("other")
    assert hashes(tree) == found
    (tree / "csrc/kernels/a.cu").write_text("other")
    assert digest(hashes(tree)) != digest(found)


def test_a_record_covers_the_tree_until_a_source_changes(tree: Path) -> None:
    file = tree / "proof.json"
    assert "none recorded" in covers(read(file), hashes(tree))
    written(file, hashes(tree), run("H100"))
    assert covers(read(file), hashes(tree)) == (
        "GPU proof: passed on H100, 2026-11-22, the tree as it is"
    )
    (tree / "csrc/kernels/a.cu").unlink()
    (tree / "csrc/new.h").write_text("")
    assert covers(read(file), hashes(tree)) == (
        "GPU proof: passed on H100, 2026-11-22, an earlier tree; changed since: csrc/kernels/a.cu, csrc/new.h"
    )


def test_a_run_goes_on_with_what_has_not_passed_on_the_same_tree_and_gpus(tree: Path) -> None:
    file = tree / "proof.json"
    here = {"cards": ["H100"], "torch": "2.11", "cuda": "13.0"}
    parts = {"ops": PASSED, "zoo": {**PASSED, "failed": 1}}
    written(file, hashes(tree), {**here, "at": "2026-11-22T10:00:00+00:00", "parts": parts})
    assert passed(read(file), hashes(tree), here) == {"ops": PASSED}
    for other in ({"cards": ["H200"]}, {"cards": ["H100", "H100"]}, {"torch": "2.12"}):
        assert passed(read(file), hashes(tree), {**here, **other}) == {}
    (tree / "csrc/kernels/a.cu").write_text("other")
    assert passed(read(file), hashes(tree), here) == {}
    assert passed({}, hashes(tree), here) == {}


def test_many_changes_are_one_line(tree: Path) -> None:
    file = tree / "proof.json"
    written(file, hashes(tree), run("H100"))
    for number in range(20):
        (tree / f"csrc/{number:02}.h").write_text("")
    line = covers(read(file), hashes(tree))
    assert line.endswith("csrc/03.h, csrc/04.h and 15 more")
    assert "\n" not in line


def test_one_run_is_kept_for_each_number_of_cards(tree: Path) -> None:
    file = tree / "proof.json"
    written(file, hashes(tree), run("H100"))
    written(file, hashes(tree), run("H200", "H200", failed=2))
    written(file, hashes(tree), run("A100"))
    assert [one["cards"] for one in read(file)["runs"].values()] == [["A100"], ["H200", "H200"]]
    line = covers(read(file), hashes(tree))
    assert "passed on A100, 2026-11-22, the tree as it is; FAILED (ops) on H200 and H200" in line


def test_covered_sources_exist() -> None:
    assert all((record.ROOT / name).exists() for name in record.COVERED)
    assert len(hashes()) > 50


def test_the_tests_that_run_are_covered() -> None:
    asked = [word for part in runner.parts() for word in part.command if word.startswith("tests/")]
    files = {(record.ROOT / word.split("::")[0]) for word in asked}
    assert len(files) > 10
    found = hashes()
    for file in files:
        inside = [file] if file.is_file() else file.rglob("test_*.py")
        assert {one.relative_to(record.ROOT).as_posix() for one in inside} <= found.keys(), file


def test_a_record_is_short(tree: Path) -> None:
    file = tree / "proof.json"
    written(file, hashes(), run("H100"))
    assert len(file.read_text()) < 24_000
    assert json.loads(file.read_text())["runs"].keys() == {"1"}
