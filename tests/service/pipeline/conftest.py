"""Number of cores that the scheduler sees."""

from __future__ import annotations

import pytest

from turbofno.service.pipeline import scheduler as scheduler_module


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend two cores: on one, a blocked batch would block the event loop."""
    monkeypatch.setattr(scheduler_module, "cores", lambda: 2)
