"""Load shedding: who is refused while the queue is full, at a cost far below an answer's, and no more often than that pays."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from turbofno.service.errors import QueueFull

if TYPE_CHECKING:
    from turbofno.service.http.call import Call

access = logging.getLogger("service.access")

SECONDS_EACH = 0.004
"""Between refusals of all connections together, in the long run: so they take a few per cent of a core, whatever is
offered."""
BURST = 64
"""Refusals in a row without a pause."""
LONGEST_PAUSE = 1.0
"""Seconds. No Retry-After is shorter, so a client that keeps to it never meets a pause."""
_LOG_SECONDS = 1.0


class Reservation:
    """A place in a model's queue for a request on its way there; without, all that arrive at once find the last one."""

    __slots__ = ("_left", "_served", "_taken")

    def __init__(self, taken: Counter[tuple[str, str]], served: tuple[str, str]) -> None:
        self._taken = taken
        self._served = served
        self._left = False
        taken[served] += 1

    def leave(self) -> None:
        """The request waits in the queue now, or never will. Repeatable."""
        if not self._left:
            self._left = True
            self._taken[self._served] -= 1


class Shedding:
    """The reservations of one application, and the pace and the log of its refusals. For the event loop only."""

    def __init__(self) -> None:
        self._due = 0.0
        """Time at which the refusals so far would have been over at SECONDS_EACH."""
        self._reserved: Counter[tuple[str, str]] = Counter()
        """By model and version."""
        self._unlogged: Counter[tuple[str, str, str]] = Counter()
        """By caller, model and version."""

    def reserved(self, model: str, version: str) -> int:
        """Requests of this model on their way to its queue."""
        return self._reserved[model, version]

    def reserve(self, model: str, version: str) -> Reservation:
        """A place in its queue."""
        return Reservation(self._reserved, (model, version))

    def pause(self) -> float:
        """Seconds for which the connection just refused is not to be read, so that refusals leave time for answers."""
        now = time.monotonic()
        self._due = max(self._due, now - BURST * SECONDS_EACH) + SECONDS_EACH
        self._due = min(self._due, now + LONGEST_PAUSE)
        return max(0.0, self._due - now)

    def log(self, call: Call) -> None:
        """One access line for all refusals of a second: a line for each would cost more than the refusal."""
        if not access.isEnabledFor(logging.INFO):
            return
        if not self._unlogged:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._write)
        self._unlogged[call.caller.name, call.model, call.version] += 1

    def _write(self) -> None:
        for (key, model, version), requests in self._unlogged.items():
            data: dict[str, object] = {"status": QueueFull.status, "requests": requests}
            if key:
                data["key"] = key
            data |= {"model": model, "version": version}
            access.info("the queue, or the memory of requests, was full", extra={"data": data})
        self._unlogged.clear()
