"""Short timings: their values are not checked closely."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def _short_races(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbofno.models.verify.equal_error._SECONDS", 0.2)
