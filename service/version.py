"""The version of turbofno_ops, which the service shares, read without importing PyTorch."""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path


def _read() -> str:
    spec = find_spec("turbofno_ops")
    assert spec is not None
    assert spec.origin is not None
    found = re.search(r'^__version__ = "(.+)"$', Path(spec.origin).read_text("utf-8"), re.MULTILINE)
    assert found is not None
    return found[1]


VERSION = _read()

SERVER = f"turbofno/{VERSION}"
"""The name of the server in responses and logs."""
