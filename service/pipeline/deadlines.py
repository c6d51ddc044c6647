"""Tickets whose deadline passes while they wait, found by one timer for all."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Collection, Sequence

from turbofno.service.pipeline.ticket import Ticket

_SHORTEST_SECONDS = 0.005
"""Shortest interval between two searches."""


class Deadlines:
    """Watches the deadlines of tickets. For the event loop only."""

    def __init__(self, live: Collection[Ticket], expire: Callable[[Ticket, float], None]) -> None:
        """`live` are the tickets without an outcome; `expire` ends one that still waits as a whole, at that time."""
        self._live, self._expire = live, expire
        self._timer: asyncio.TimerHandle | None = None
        self._search_at = 0.0
        """Time at which `_timer` fires."""

    def watch(self, tickets: Sequence[Ticket]) -> None:
        """Search when the first of these may expire, or earlier."""
        deadlines = [one.request.deadline for one in tickets if one.request.deadline is not None]
        if deadlines:
            self._plan(min(deadlines))

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _plan(self, when: float) -> None:
        if self._timer is None or when < self._search_at:
            self.close()
            self._search_at = when
            delay = max(_SHORTEST_SECONDS, when - time.monotonic())
            self._timer = asyncio.get_running_loop().call_later(delay, self._search)

    def _search(self) -> None:
        now, self._timer = time.monotonic(), None
        later = []
        for ticket in list(self._live):
            deadline = ticket.request.deadline
            if deadline is None or ticket.dispatched or ticket.settled:
                continue
            if deadline <= now:
                self._expire(ticket, now)
            else:
                later.append(deadline)
        if later:
            self._plan(min(later))
