"""Length of tests that could go on for ever: a part by default, more in `make test-thorough`."""

from __future__ import annotations

import os

_THOROUGH = "TEST_THOROUGH" in os.environ


def tried(by_default: int, thoroughly: int) -> int:
    """So many cases, or seconds of load."""
    return thoroughly if _THOROUGH else by_default
