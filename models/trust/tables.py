"""Tables that are made once for each size: remembered while among those last used, or while somebody holds them."""

from __future__ import annotations

from functools import lru_cache, wraps
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from turbofno_ops._table_use import note_use

if TYPE_CHECKING:
    from collections.abc import Callable

P = ParamSpec("P")
T = TypeVar("T")


def remembered(most: int) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """lru_cache of that size, whose results can be held; arguments must be hashable."""

    def decorate(make: Callable[P, T]) -> Callable[P, T]:
        made = lru_cache(maxsize=most)(make)

        @wraps(make)
        def table(*args: P.args, **kwargs: P.kwargs) -> T:
            return note_use(made(*args, **kwargs))  # type: ignore[arg-type]

        return table

    return decorate
