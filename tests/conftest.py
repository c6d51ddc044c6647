"""What all tests share: one arithmetic thread, and fresh random numbers each run, whose seed is shown where a test fails.

Those that wait for other processes are tried again, docs/decisions/0028-tests-tried-again.md."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent
WAITING = ("benchmarks", "deploy", "e2e", "oip", "service", "ui")
"""Folders of tests that start servers, clients and clocks."""
WRONG_ANSWER = (
    r"wrong answer",
    r"Not equal to tolerance",  # numpy.testing
    r"Arrays are not",
    r"are not close",  # torch.testing
    r"(close|is_right|array_equal|allclose)\(",  # as pytest shows an assertion
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A machine may stand still for a moment, and what was late comes in time when tried again; a wrong answer is none."""
    again = pytest.mark.flaky(reruns=2, rerun_except=list(WRONG_ANSWER))
    for item in items:
        if item.path.relative_to(TESTS).parts[0] in WAITING:
            item.add_marker(again)


@pytest.fixture(autouse=True)
def _seed() -> None:
    seed = random.SystemRandom().randrange(2**31)
    # pytest shows it with a failure
    print(f"torch.manual_seed({seed}); random.seed({seed})")  # noqa: T201
    torch.manual_seed(seed)
    random.seed(seed)


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    """On fields as small as the tests' more threads only wait for each other, above all on a busy machine."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
