"""Random numbers of tests: the same in every run and in any order, new if asked."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import torch

from tests.draws import VARIABLE, generator, seeded, settle_run_seed
from tests.service import forked

FILE = """
import json
import random
import sys

import pytest
import torch
from hypothesis import given, strategies

from tests.draws import generator


def some():
    return random.random(), float(torch.rand(())), generator().random()


@pytest.fixture(scope="module")
def shared():
    return some()


def note(name, *drawn):
    with open("drawn.jsonl", "a") as file:
        file.write(json.dumps([name, *drawn]) + "\\n")


def test_first(shared):
    note("first", shared, some())


def test_second(shared):
    note("second", shared, some())


@given(strategies.lists(strategies.integers()))
def test_third(xs):
    note("third", xs)
"""


def drawn(folder: Path, *tests: str) -> list[str]:
    """Random numbers that these tests of FILE get, one line each, in a pytest run of their own."""
    folder.mkdir()
    conftest = Path(__file__).with_name("conftest.py")
    (folder / "conftest.py").write_text(conftest.read_text())
    (folder / "test_file.py").write_text(FILE)
    status, output = forked.run(
        f"import pytest, sys; sys.path.append({str(conftest.parents[1])!r}); sys.exit(pytest.main(sys.argv[1:]))",
        *("-p", "_hypothesis_pytestplugin"),
        *(f"test_file.py::test_{name}" for name in tests),
        cwd=folder,
        env={
            **os.environ,
            VARIABLE: "3",
            # Others take longer to import than the tests to run.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # It keeps what hypothesis read of the modules.
            "HYPOTHESIS_STORAGE_DIRECTORY": str(folder.parent),
        },
    )
    assert status == 0, output
    assert f"{VARIABLE}=3" in output
    return (folder / "drawn.jsonl").read_text().splitlines()


def test_random_numbers_do_not_depend_on_the_order_of_tests(tmp_path: Path) -> None:
    forwards = drawn(tmp_path / "forwards", "first", "second", "third")
    backwards = drawn(tmp_path / "backwards", "third", "second")
    assert len(set(forwards)) > 20
    assert len(set(backwards)) > 20
    assert set(forwards) - set(backwards) == {forwards[0]}
    assert set(backwards) < set(forwards)


def test_random_numbers_depend_on_seed_and_name(monkeypatch: pytest.MonkeyPatch) -> None:
    def draw(name: str) -> tuple[float, float, float, float]:
        with seeded(name):
            return (
                random.random(),
                float(torch.rand(())),
                generator().random(),
                generator(name).random(),
            )

    monkeypatch.setenv(VARIABLE, "1")
    one = draw("a")
    before = random.getstate(), torch.get_rng_state()
    assert draw("a") == one
    assert not set(draw("b")) & set(one)
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])
    monkeypatch.setenv(VARIABLE, "2")
    assert not set(draw("a")) & set(one)


def test_seed_of_a_run_is_given_or_drawn_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE)
    assert settle_run_seed() == 0
    monkeypatch.setenv(VARIABLE, "new")
    assert settle_run_seed() == settle_run_seed() == int(os.environ[VARIABLE])
    for wrong in ("", "-1", "seven", str(2**32)):
        monkeypatch.setenv(VARIABLE, wrong)
        with pytest.raises(ValueError, match="neither 'new' nor a number from 0"):
            settle_run_seed()
