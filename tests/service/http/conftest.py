"""The two transports."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from turbofno.service.http import edge

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.fixture
def direct(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], None]:
    """Switches the socket transport for operations on or off."""
    original = edge.target_of

    def turn(on: bool) -> None:
        monkeypatch.setattr(edge, "target_of", original if on else lambda _: None)

    return turn
