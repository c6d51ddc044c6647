"""Work that is done once for all who ask for it at the same time."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

T = TypeVar("T")


class Coalesced(Generic[T]):
    """Runs work for all who call before a run begins: one runs at a time, and at most one more is due."""

    def __init__(self, work: Callable[[], Awaitable[T]]) -> None:
        self._work = work
        self._due: asyncio.Task[T] | None = None
        self._turn = asyncio.Lock()

    async def __call__(self) -> T:
        """The result of a run that begins after this call."""
        if self._due is None:
            self._due = asyncio.create_task(self._run())
        # A caller that leaves does not end the run of the others.
        return await asyncio.shield(self._due)

    async def _run(self) -> T:
        async with self._turn:
            self._due = None
            return await self._work()
