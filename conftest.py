"""Tests trust one certificate authority: httpx would load all of them for each client, which takes longer than most requests."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import certifi

_END = "-----END CERTIFICATE-----\n"
_FILE = tempfile.NamedTemporaryFile("w", suffix=".pem")  # noqa: SIM115 - until the tests end
_FILE.write(Path(certifi.where()).read_text().split(_END)[0] + _END)
_FILE.flush()
# Child processes inherit it.
os.environ["SSL_CERT_FILE"] = _FILE.name
