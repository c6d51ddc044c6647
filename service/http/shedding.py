"""Load shedding: the rate and log of refusals."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextvars import Context

from turbofno.service.errors import QueueFull
from turbofno.service.http.call import Call

access = logging.getLogger("service.access")

SECONDS_EACH = 0.004
"""Mean interval between refusals, over all connections: limits them to a few per cent of a core at any load."""
BURST = 64
"""Consecutive refusals without a pause."""
LONGEST_PAUSE = 1.0
"""Seconds. No Retry-After is shorter, so a client that honours it sees no pause."""
TOGETHER_SECONDS = 0.064
"""Pauses end at multiples of this time. Refusals one after the other cost less than refusals between answers, which push their
code and data out of the caches."""
_LOG_SECONDS = 1.0


class Shedding:
    """The rate and log of the refusals of one application. Used from the event loop only."""

    def __init__(self) -> None:
        self._due = 0.0
        """Time at which the refusals so far end, at SECONDS_EACH each."""
        self._unlogged: Counter[tuple[str, str, str]] = Counter()
        """By caller, model and version."""

    def pause(self) -> float:
        """Record a refusal; return the seconds for which its connection should not be read."""
        now = time.monotonic()
        self._due = max(self._due, now - BURST * SECONDS_EACH) + SECONDS_EACH
        self._due = min(self._due, now + LONGEST_PAUSE - TOGETHER_SECONDS)
        if self._due <= now:
            return 0.0
        return self._due + -self._due % TOGETHER_SECONDS - now

    def log(self, call: Call) -> None:
        """Count a refusal for the access log, which has one line per second for all: a line costs more than a refusal."""
        if not access.isEnabledFor(logging.INFO):
            return
        if not self._unlogged:
            # The line belongs to none of the requests.
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self.flush, context=Context())
        self._unlogged[call.caller.name, call.model, call.version] += 1

    def flush(self) -> None:
        """Write the line of the refusals since the last one, if any."""
        for (key, model, version), requests in self._unlogged.items():
            data: dict[str, object] = {"status": QueueFull.status, "requests": requests}
            if key:
                data["key"] = key
            data |= {"model": model, "version": version}
            access.info("the queue, or the memory of requests, was full", extra={"data": data})
        self._unlogged.clear()
