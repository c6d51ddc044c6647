"""Tables that are made once and forgotten when others have come since: kept for whoever goes on reading them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")

_holder: ContextVar[list[object] | None] = ContextVar("holder", default=None)


def held(table: T) -> T:
    """The table itself, noted for whoever holds what this thread uses; caches pass what they give through here."""
    holder = _holder.get()
    if holder is not None:
        holder.append(table)
    return table


@contextmanager
def holding() -> Iterator[list[object]]:
    """All tables that are used within it, on this thread: what a CUDA graph captured within it reads again and again."""
    used: list[object] = []
    token = _holder.set(used)
    try:
        yield used
    finally:
        _holder.reset(token)
