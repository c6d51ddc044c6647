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
        run = self._due
        if run is None:
            run = self._due = asyncio.create_task(self._run())
            # If all callers leave, nobody else retrieves its error, which asyncio would log.
            run.add_done_callback(lambda run: run.cancelled() or run.exception())
        # A caller that leaves does not end the run of the others.
        await asyncio.wait((run,))
        return run.result()

    async def _run(self) -> T:
        async with self._turn:
            self._due = None
            return await self._work()
