"""What all tests share: one arithmetic thread, and fresh random numbers each run, whose seed is shown where a test fails."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
import torch


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
