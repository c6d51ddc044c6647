"""Which failed tests are tried again: those of the service that were late, not those that found a wrong answer."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest_plugins = ("pytester",)

LATE = """
tries = []

def test_late():
    tries.append(1)
    assert len(tries) > 2, "not within 5 s"
"""
WRONG = """
import numpy as np
import torch

tries = []

def once(answer):
    tries.append(answer)
    return len(tries) > 1

def is_right(answer):
    return once(answer)

def test_helper():
    tries.clear()
    assert is_right(1.0)

def test_numpy():
    tries.clear()
    np.testing.assert_allclose(1.0, 1.0 if once(1.0) else 2.0)

def test_numpy_equal():
    tries.clear()
    np.testing.assert_array_equal([1], [1] if once(1.0) else [2])

def test_torch():
    tries.clear()
    torch.testing.assert_close(torch.ones(2), torch.ones(2) * (1 if once(1.0) else 2))

def test_served():
    from tests.e2e.traffic import close_to
    tries.clear()
    close_to(np.ones(2), np.ones(2) * (1 if once(1.0) else 2), "one")
"""


@pytest.fixture
def tests(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder with this one's conftest, where pytest runs."""
    here = Path(__file__).parent
    monkeypatch.syspath_prepend(str(here.parent))
    shutil.copy(here / "conftest.py", pytester.path)
    pytester.makeini("[pytest]\naddopts = --import-mode=importlib -p no:cacheprovider")
    for folder in ("e2e", "models"):
        (pytester.path / folder).mkdir()
    return pytester.path


def test_what_was_late_is_tried_again_where_tests_wait(
    tests: Path, pytester: pytest.Pytester
) -> None:
    for folder in ("e2e", "models"):
        (tests / folder / "test_late.py").write_text(LATE)
    outcomes = pytester.runpytest_subprocess().parseoutcomes()
    assert outcomes == {"passed": 1, "rerun": 2, "failed": 1}


def test_a_wrong_answer_is_not_tried_again(tests: Path, pytester: pytest.Pytester) -> None:
    (tests / "e2e" / "test_wrong.py").write_text(WRONG)
    assert pytester.runpytest_subprocess().parseoutcomes() == {"failed": 5}
