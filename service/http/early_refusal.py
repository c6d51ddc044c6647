"""Predictions whose model's queue is full, refused below ASGI: a refusal must cost far less than an answer."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from service.errors import QueueFull
from service.http.head import head_of
from service.http.problems import problem_response
from service.logs import request_id

if TYPE_CHECKING:
    from service.context import AppContext
    from service.errors import ServiceError
    from service.http.arrival import Arrival, Headers

access = logging.getLogger("service.access")

SMALL_BODY = 256 * 1024
"""Bytes: what a read or two take off the socket. Longer bodies are the application's to refuse."""
SECONDS_EACH = 0.004
"""Between refusals of all connections together, in the long run: so they take a few per cent of a core, whatever is
offered."""
BURST = 64
"""Refusals in a row without a pause."""
LONGEST_PAUSE = 1.0
"""Seconds. No Retry-After is shorter, so a client that keeps to it never meets a pause."""
_LOG_SECONDS = 1.0

SEAT = "turbofno.seat"
"""In a request's scope: its seat, if it has one."""


class Seat:
    """Room in the queue for a request on its way there: without, all that arrive at once would find the same room."""

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


class EarlyRefusal:
    """What the connections of one server ask, each time the headers of a prediction have come. For the event loop only."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._due = 0.0
        """When the refusals so far would have been over at SECONDS_EACH."""
        self._seats: Counter[tuple[str, str]] = Counter()
        """Taken now, by model and version."""
        self._unlogged: Counter[tuple[str, str, str]] = Counter()
        """By caller, model and version."""

    def decide(self, arrival: Arrival, headers: Headers, *, adding: Headers) -> bytes | Seat:
        """Of the POST of a small body: the whole response, if it is refused; its seat, if it would find room in the
        queue. The response has the headers `adding` as well.
        """
        started = time.perf_counter()
        context = self._context
        served = (arrival.model, arrival.version)
        try:
            context.admission.refuse_if_full(*served, coming=self._seats[served])
        except QueueFull as error:
            answer = self._answer(arrival.path, headers, error, adding)
        else:
            return Seat(self._seats, served)
        context.metrics.requests.labels(*served, arrival.protocol, QueueFull.status).inc()
        context.metrics.request_duration.labels(*served).observe(time.perf_counter() - started)
        self._note(arrival.caller.name, *served)
        return answer

    def _answer(self, path: str, headers: Headers, error: ServiceError, adding: Headers) -> bytes:
        journal = self._context.journal
        record = journal.open(headers)
        token = request_id.set(record.request_id)
        try:
            response = problem_response(path, error)
        finally:
            request_id.reset(token)
        lines = (*adding, *response.raw_headers, *journal.headers(record))
        return head_of(error.status, lines) + bytes(response.body)

    def pause(self) -> float:
        """Seconds for which the connection just refused is not to be read, so that refusals leave time for answers."""
        now = time.monotonic()
        self._due = max(self._due, now - BURST * SECONDS_EACH) + SECONDS_EACH
        self._due = min(self._due, now + LONGEST_PAUSE)
        return max(0.0, self._due - now)

    def _note(self, key: str, model: str, version: str) -> None:
        """One access line for all refusals of a second: a line for each would cost more than the refusal."""
        if not access.isEnabledFor(logging.INFO):
            return
        if not self._unlogged:
            asyncio.get_running_loop().call_later(_LOG_SECONDS, self._log)
        self._unlogged[key, model, version] += 1

    def _log(self) -> None:
        for (key, model, version), requests in self._unlogged.items():
            data: dict[str, object] = {"status": QueueFull.status, "requests": requests}
            if key:
                data["key"] = key
            data |= {"model": model, "version": version}
            access.info("the queue was full", extra={"data": data})
        self._unlogged.clear()
