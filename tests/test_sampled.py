"""The table of cases that are left out names tests that exist; a GPU, and TEST_THOROUGH, have all run."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest
import torch

from tests import sampled

if TYPE_CHECKING:
    from collections.abc import Iterable

ROOT = Path(__file__).resolve().parents[1]


def without(names: Iterable[str], marks: Iterable[pytest.MarkDecorator] = ()) -> list[str]:
    """The names of the cases that run, of cases with these marks."""
    given = [one.mark for one in marks]
    items = [
        cast("pytest.Item", SimpleNamespace(nodeid=name, iter_markers=lambda _: given))
        for name in names
    ]
    out = [item.nodeid for item in sampled.left_out(items)]
    return [item.nodeid for item in items if item.nodeid not in out]


@pytest.mark.parametrize("file", sampled.ONE_IN)
def test_every_test_of_the_table_exists(file: str) -> None:
    text = (ROOT / file).read_text()
    assert [test for test in sampled.ONE_IN[file] if f"\ndef {test}(" not in text] == []


def test_every_test_with_cases_that_are_left_out_exists() -> None:
    for name in sampled.LEFT_OUT:
        file, _, case = name.partition("::")
        assert f"\ndef {case.partition('[')[0]}(" in (ROOT / file).read_text()


def test_one_in_so_many_cases_of_a_test_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sampled, "tried", lambda by_default, _: by_default)
    monkeypatch.setattr(sampled, "ONE_IN", {"a.py": {"test_b": 3}})
    monkeypatch.setattr(sampled, "LEFT_OUT", ("a.py::test_c[x",))
    cases = [f"a.py::test_b[{number}]" for number in range(7)]
    others = ["a.py::test_c[x1]", "a.py::test_c[y]", "a.py::test_bb[1]", "b.py::test_b[1]"]
    assert without([*cases, *others]) == [cases[0], cases[3], cases[6], *others[1:]]


def test_of_the_cases_that_a_mark_skips_the_first_is_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sampled, "tried", lambda by_default, _: by_default)
    names = ["a.py::test_b[0]", "a.py::test_b[1]", "a.py::test_c", "b.py::test_b[0]"]
    met, unmet = (pytest.mark.skipif(condition, reason="-") for condition in (True, False))
    assert without(names, [unmet, met]) == [names[0], *names[2:]]
    assert without(names, [unmet]) == names


def test_all_cases_run_on_a_gpu_and_thoroughly(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [*sampled.LEFT_OUT, "tests/turbofno_ops/test_plan.py::test_layers_on_other_grids[1]"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert without(names) == names
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sampled, "tried", lambda _, thoroughly: thoroughly)
    assert without(names) == names
