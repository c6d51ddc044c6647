"""What all tests share: fresh random numbers each run, with the seed shown where a test fails."""

from __future__ import annotations

import random

import pytest
import torch


@pytest.fixture(autouse=True)
def _seed() -> None:
    seed = random.SystemRandom().randrange(2**31)
    print(f"torch.manual_seed({seed})")  # pytest shows it with a failure  # noqa: T201
    torch.manual_seed(seed)
