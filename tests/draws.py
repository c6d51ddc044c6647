"""Random draws of tests: the same in every run unless TEST_SEED says otherwise, whichever tests ran before.

TEST_SEED is a number, 0 if it is not set, or `new`: then a number is drawn. What a test draws follows from that number and
the test's own name, so a failure is repeated by running that test with the number that it shows.
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
    """The number of this run, left in the environment for the processes that it starts.

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
    """Below 2**32; from the run's number and a name."""
    return crc32(name.encode(), int(os.environ[VARIABLE]))


@contextmanager
def seeded(name: str) -> Iterator[None]:
    """Let what `random`, torch and `generator()` draw inside follow from `name`, and change nothing for what comes after."""
    before = random.getstate(), torch.get_rng_state()
    random.seed(seed_of(name))
    torch.manual_seed(seed_of(name))
    yield
    random.setstate(before[0])
    torch.set_rng_state(before[1])


def generator(name: str | None = None) -> np.random.Generator:
    """numpy's random numbers for a test; with a name, for what is drawn outside of tests and fixtures."""
    return np.random.default_rng(random.getrandbits(64) if name is None else seed_of(name))
