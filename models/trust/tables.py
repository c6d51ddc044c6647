"""Tables that are made once for each size: remembered while among those last used, or while somebody holds them."""

from __future__ import annotations

from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")

_holder: ContextVar[list[object] | None] = ContextVar("holder", default=None)


def remembered(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """lru_cache of that size, whose results can be held; arguments must be hashable."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        made = lru_cache(maxsize=most)(make)

        @wraps(make)
        def table(*args: P.args, **kwargs: P.kwargs) -> T:
            found: T = made(*args, **kwargs)  # type: ignore[arg-type]
            holder = _holder.get()
            if holder is not None:
                holder.append(found)
            return found

        return table

    return decorate


@contextmanager
def holding() -> Iterator[list[object]]:
    """All tables that are used within it, on this thread: what a CUDA graph captured within it reads again and again."""
    held: list[object] = []
    token = _holder.set(held)
    try:
        yield held
    finally:
        _holder.reset(token)
