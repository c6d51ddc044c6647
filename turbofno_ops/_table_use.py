"""Records which cached tables a piece of code uses, so that a CUDA graph keeps its tables alive after their eviction."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_used: ContextVar[list[object] | None] = ContextVar("used", default=None)


def note_use(table: T) -> T:
    """Record the use of a table and return it. Caches call this for every table they return."""
    used = _used.get()
    if used is not None:
        used.append(table)
    return table


@contextmanager
def used_tables() -> Iterator[list[object]]:
    """Collect all tables that this thread uses within the context."""
    used: list[object] = []
    token = _used.set(used)
    try:
        yield used
    finally:
        _used.reset(token)
