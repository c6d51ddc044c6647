"""Predictions asked for in one turn of the event loop, or in a millisecond, which an engine takes together."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Generic, TypeVar

import msgspec

from turbofno.service.engine.interface import PredictRequest, PredictResult

W = TypeVar("W")

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 0.001
"""Time for which a patient request waits for others. The event loop's timers are no finer."""


class Asked(msgspec.Struct, Generic[W], eq=False):
    """A prediction that a caller waits for."""

    request: PredictRequest
    outcome: asyncio.Future[PredictResult]
    work: W | None = None
    """Set when it is taken, to cancel it."""


class Turn(Generic[W]):
    """The predictions of this turn."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, take: Callable[[list[Asked[W]]], None], cancel: Callable[[W], None]) -> None:
        """`take` gets those of a turn that nobody has cancelled; it sets their `work`, and later their outcomes."""
        self._take, self._cancel = take, cancel
        self._asked: list[Asked[W]] = []
        self._patience: asyncio.TimerHandle | None = None
        """Calls `end`, if the first of them is patient."""
        self.fields_awaited = 0
        """Number of fields for which callers wait."""

    async def ask(
        self, request: PredictRequest, *, at_once: bool = False, patient: bool = False
    ) -> PredictResult:
        """Return the outcome of a request, or raise it. Cancelling this cancels its work.

        `at_once` takes it, and those before it, without waiting for the turn's end; a `patient` one waits for later turns too.
        """
        if not self._asked:
            # A system call (getpid), so once for all of a turn.
            self._loop = asyncio.get_running_loop()
        asked: Asked[W] = Asked(request, self._loop.create_future())
        if patient:
            if not self._asked:
                self._patience = self._loop.call_later(PATIENCE_SECONDS, self.end)
        elif not at_once and (self._patience or not self._asked):
            self._loop.call_soon(self.end)
        self._asked.append(asked)
        size = len(request.fields)
        self.fields_awaited += size
        try:
            if at_once:
                self.end()
            return await asked.outcome
        except asyncio.CancelledError:
            if asked.work is not None:
                self._cancel(asked.work)
            raise
        finally:
            self.fields_awaited -= size
            # Breaks a reference cycle between an error and this frame, which would keep the fields in memory.
            del asked

    def end(self) -> None:
        """Take the requests so far: at the turn's end, or before something that concerns them, or if no other can come."""
        if self._patience is not None:
            self._patience.cancel()
            self._patience = None
        asked, self._asked = self._asked, []
        wanted = [one for one in asked if not one.outcome.done()]
        if not wanted:
            return
        try:
            self._take(wanted)
        except Exception as error:
            # Nobody would hear of it, and their callers would wait for ever.
            for one in wanted:
                if not one.outcome.done():
                    one.outcome.set_exception(error.with_traceback(None))
            logger.exception("%d predictions could not be taken", len(wanted))
