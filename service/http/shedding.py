"""Load shedding: queue slots reserved before the body is read, and the rate and log of refusals."""

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
"""Mean interval between refusals, over all connections: limits them to a few per cent of a core at any load."""
BURST = 64
"""Consecutive refusals without a pause."""
LONGEST_PAUSE = 1.0
"""Seconds. No Retry-After is shorter, so a client that honours it sees no pause."""
_LOG_SECONDS = 1.0


class Reservation:
    """A queue slot reserved before the body is read, so that concurrent requests cannot all claim the last one."""

    __slots__ = ("_left", "_served", "_taken")

    def __init__(self, taken: Counter[tuple[str, str]], served: tuple[str, str]) -> None:
        self._taken = taken
        self._served = served
        self._left = False
        taken[served] += 1

    def leave(self) -> None:
        """Release the slot: the request is in the queue, or has ended. Idempotent."""
        if not self._left:
            self._left = True
            self._taken[self._served] -= 1


class Shedding:
    """The reservations of one application, and the rate and log of its refusals. Used from the event loop only."""

    def __init__(self) -> None:
        self._due = 0.0
        """Time at which the refusals so far end, at SECONDS_EACH each."""
        self._reserved: Counter[tuple[str, str]] = Counter()
        """By model and version."""
        self._leaving: list[Reservation] = []
        self._unlogged: Counter[tuple[str, str, str]] = Counter()
        """By caller, model and version."""

    def reserved(self, model: str, version: str) -> int:
        """Number of reserved slots of a model's queue."""
        return self._reserved[model, version]

    def reserve(self, model: str, version: str) -> Reservation:
        """Reserve a slot of a model's queue."""
        return Reservation(self._reserved, (model, version))

    def leave_soon(self, reservation: Reservation) -> None:
        """Release a slot after this turn of the event loop: the request has then entered the queue."""
        if not self._leaving:
            asyncio.get_running_loop().call_soon(self._leave)
        self._leaving.append(reservation)

    def _leave(self) -> None:
        for reservation in self._leaving:
            reservation.leave()
        self._leaving.clear()

    def pause(self) -> float:
        """Record a refusal; return the seconds for which its connection should not be read."""
        now = time.monotonic()
        self._due = max(self._due, now - BURST * SECONDS_EACH) + SECONDS_EACH
        self._due = min(self._due, now + LONGEST_PAUSE)
        return max(0.0, self._due - now)

    def log(self, call: Call) -> None:
        """Count a refusal for the access log, which has one line per second for all: a line costs more than a refusal."""
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
