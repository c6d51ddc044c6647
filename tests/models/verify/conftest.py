"""Short timings, whose values are not checked closely, and the same samples in every run."""

from __future__ import annotations

import random

import pytest


@pytest.fixture(autouse=True)
def _short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbofno.models.verify.equal_error._SECONDS", 0.2)


@pytest.fixture(autouse=True)
def _drawn_from_the_tests_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without `--seed` the command asks the system for one, which no TEST_SEED repeats.
    monkeypatch.setattr(random, "SystemRandom", lambda: random)
