"""What makes all tests faster.

Some cases are left out where there is no GPU (tests/sampled.py). Files are run in an order and in groups (tests/scheduling.py).
They trust one certificate authority: httpx would load all of them for each client, which takes longer than most requests.
Garbage collections pass over what the collection of the tests made.
"""

from __future__ import annotations

import gc
import os
import tempfile
from pathlib import Path
from typing import Any

import certifi
import pytest

from tests.sampled import left_out
from tests.scheduling import Scheduling, rank

_END = "-----END CERTIFICATE-----\n"
_FILE = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115 - until the tests end
_FILE.write(Path(certifi.where()).read_text().split(_END)[0] + _END)
_FILE.flush()
# Child processes inherit it.
os.environ["SSL_CERT_FILE"] = _FILE.name


def pytest_collection_finish() -> None:
    # Modules and items are some hundred thousand objects, and stay until the end: to search them takes half a second.
    gc.collect()
    gc.freeze()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A case that is asked for by name runs.
    if any("::" in argument for argument in config.args):
        return
    out = set(left_out(items))
    config.hook.pytest_deselected(items=list(out))
    items[:] = sorted((item for item in items if item not in out), key=rank)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Scheduling | None:
    # None: another way of sharing, asked for by --dist.
    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None
