"""What all tests share.

Some cases are left out where there is no GPU (tests/sampled.py).
They trust one certificate authority: httpx would load all of them for each client, which takes longer than most requests.
Garbage collections pass over what was imported before the first test.
PyTorch's loggers pass on what they log: pytest would add a handler to each of the forty, several times a test.
"""

from __future__ import annotations

import gc
import logging
import os
import tempfile
from pathlib import Path

import certifi
import pytest
import torch

from tests.sampled import left_out

_END = "-----END CERTIFICATE-----\n"

for logger in logging.Logger.manager.loggerDict.values():
    if isinstance(logger, logging.Logger) and logger.name.startswith("torch"):
        logger.propagate = True


def pytest_configure(config: pytest.Config) -> None:
    # Workers inherit what the first process sets. Themselves they would leave their files: they are ended without cleaning up.
    if "PYTEST_XDIST_WORKER" in os.environ:
        return
    authority = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115 - until the tests end
    # Otherwise it outlives the tests.
    config.add_cleanup(authority.close)
    authority.write(Path(certifi.where()).read_text().split(_END)[0] + _END)
    authority.flush()
    os.environ["SSL_CERT_FILE"] = authority.name
    if torch.cuda.is_available():
        # PyTorch's folder of compiled kernels. It warns in a worker that makes it while another one does.
        cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        Path(cache, "torch", "kernels").mkdir(parents=True, exist_ok=True)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    # A case that is asked for by name runs.
    if any("::" in argument for argument in config.args):
        return
    out = set(left_out(items))
    config.hook.pytest_deselected(items=list(out))
    items[:] = [item for item in items if item not in out]


def pytest_collection_finish() -> None:
    # Modules and tests are some hundred thousand objects that stay until the end. A search of them takes half a second, and
    # many tests collect garbage.
    gc.collect()
    gc.freeze()
