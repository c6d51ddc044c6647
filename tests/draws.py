"""Random numbers of tests: seeded from TEST_SEED and the test's name, so they do not depend on tests that ran before.

TEST_SEED is a number (default 0) or `new` for a random number. A failed test prints it; running that test with the same
TEST_SEED repeats the failure.
"""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import contextmanager
from zlib import crc32

import numpy as np
import torch

VARIABLE = "TEST_SEED"


def settle_run_seed() -> int:
    """The seed of this run, stored in the environment for child processes.

    Raises:
        ValueError: TEST_SEED is neither a number from 0 to 2**32 - 1 nor `new`.
    """
    given = os.environ.get(VARIABLE, "0")
    if given == "new":
        given = str(random.SystemRandom().randrange(2**32))
    if not given.isdecimal() or int(given) >= 2**32:
        raise ValueError(f"{VARIABLE}={given!r} is neither 'new' nor a number from 0 to 2**32 - 1")
    os.environ[VARIABLE] = given
    return int(given)


def seed_of(name: str) -> int:
    """A seed below 2**32 from the run's seed and a name."""
    return crc32(name.encode(), int(os.environ[VARIABLE]))


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """Seed `random`, torch and `generator()` from `name`; restore their states on exit."""
    before = random.getstate(), torch.get_rng_state()
    random.seed(seed_of(name))
    torch.manual_seed(seed_of(name))
    yield
    random.setstate(before[0])
    torch.set_rng_state(before[1])


def generator(name: str | None = None) -> np.random.Generator:
    """A numpy generator for a test or fixture; elsewhere it needs a name."""
    return np.random.default_rng(random.getrandbits(64) if name is None else seed_of(name))
