"""What an engine's successor has to know of its models."""

from __future__ import annotations

from typing import NamedTuple


class Remembered(NamedTuple):
    """One (model, version) of an engine that died: to be loaded again, or known not to be."""

    name: str
    version: str
    reason: str
    """Why it is not to be loaded; empty if it is."""
