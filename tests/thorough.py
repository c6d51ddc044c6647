"""How much of what is drawn afresh in every run one run tries: a part by default, all of it in `make test-thorough`."""

from __future__ import annotations

import os

_THOROUGH = "TEST_THOROUGH" in os.environ


def tried(by_default: int, thoroughly: int) -> int:
    """So many random cases, or seconds spent on them."""
    return thoroughly if _THOROUGH else by_default
