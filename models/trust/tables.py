"""A cache of tables (tensors that depend on the grid only), which graph recordings can keep alive."""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from turbofno_ops._table_use import note_use

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def cached_table(maxsize: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """An lru_cache that also reports each use, so that a graph recording can keep the table."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        made = lru_cache(maxsize=maxsize)(make)

        @wraps(make)
        def table(*args: P.args, **kwargs: P.kwargs) -> T:
            return note_use(made(*args, **kwargs))  # type: ignore[arg-type]

        return table

    return decorate
