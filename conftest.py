"""What makes all tests faster.

Some cases are left out where there is no GPU (tests/sampled.py).
They trust one certificate authority: httpx would load all of them for each client, which takes longer than most requests.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import certifi
import pytest

from tests.sampled import left_out

_END = "-----END CERTIFICATE-----\n"
_FILE = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115 - until the tests end
_FILE.write(Path(certifi.where()).read_text().split(_END)[0] + _END)
_FILE.flush()
# Child processes inherit it.
os.environ["SSL_CERT_FILE"] = _FILE.name


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A case that is asked for by name runs.
    if any("::" in argument for argument in config.args):
        return
    out = set(left_out(items))
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]
