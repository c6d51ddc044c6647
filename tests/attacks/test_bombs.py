"""Hostile files run no code and use little time and memory; checked in a child process with an audit hook and limits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.attacks import bombs, honest, payloads
from tests.attacks.watched_loader import Record
from tests.service import forked

ROOT = Path(__file__).parents[2]
MAX_SECONDS = 30.0
MAX_GROWTH = 512 << 20


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Record]]:
    root = tmp_path_factory.mktemp("watched")
    good, bad, marker = root / "honest", root / "hostile", root / "marker"
    good.mkdir()
    bad.mkdir()
    honest.write_all(good)
    for name, (suffix, make) in bombs.files().items():
        (bad / f"{name}{suffix}").write_bytes(make())
    programs = {**bombs.pickles(), **payloads.plain_pickles(marker)}
    for name, program in programs.items():
        name = name.replace("/", " ")
        (bad / f"{name}.pickle").write_bytes(program)
        (bad / f"{name} (zip).pt").write_bytes(honest.zip_of({"m/data.pkl": program}))
    for name, content in payloads.torch_files(marker).items():
        (bad / f"{name}.pt").write_bytes(content)
    (bad / "object array.npz").write_bytes(payloads.object_array(marker))
    (bad / "payload.mdlus").write_bytes(payloads.mdlus(marker))
    program = "import runpy; runpy.run_module('tests.attacks.watched_loader', run_name='__main__')"
    status, output = forked.run(program, str(good), str(bad), cwd=ROOT, env=os.environ)
    assert status == 0, output[-2000:]
    assert not marker.exists()
    found: list[Record] = json.loads(output.splitlines()[-1])
    count = len(list(good.iterdir()))
    return {"honest": found[:count], "hostile": found[count:]}


def test_honest_files_are_read_under_the_same_limits(records: dict[str, list[Record]]) -> None:
    for record in records["honest"]:
        if not record["file"].endswith("_metadata.pkl"):
            assert record["outcome"] == "read", record
        assert record["events"] == [], record


def test_hostile_files_are_refused_with_a_message(records: dict[str, list[Record]]) -> None:
    assert len(records["hostile"]) > 70
    for record in records["hostile"]:
        assert record["outcome"].startswith("refused: "), record
        assert 40 < len(record["outcome"]) < 1000, record
        assert record["outcome"].isprintable(), record


def test_no_code_runs(records: dict[str, list[Record]]) -> None:
    assert [record for record in records["hostile"] if record["events"]] == []


def test_time_and_memory_are_bounded(records: dict[str, list[Record]]) -> None:
    for record in records["hostile"]:
        assert record["seconds"] < MAX_SECONDS, record
        assert record["grew"] < MAX_GROWTH, record
