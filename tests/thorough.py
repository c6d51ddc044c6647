"""Number of cases of randomised tests: more with `make test-thorough`."""

from __future__ import annotations

import os

_THOROUGH = "TEST_THOROUGH" in os.environ


def tried(by_default: int, thoroughly: int) -> int:
    """The number of cases, or seconds of load, of this run."""
    return thoroughly if _THOROUGH else by_default
