"""The samples of `turbofno verify` are the same in every run of the tests."""

from __future__ import annotations

import random

import pytest


@pytest.fixture(autouse=True)
def drawn_from_the_tests_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `--seed` the command draws one that nobody knows; an error of three samples can then be above the card's."""
    monkeypatch.setattr(random, "SystemRandom", lambda: random)
