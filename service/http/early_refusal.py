"""Predictions whose model's queue is full, refused below ASGI: a refusal must cost far less than an answer."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter
from typing import TYPE_CHECKING

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.errors import QueueFull, ServiceError
from service.http.problems import problem_response
from service.logs import accept_request_id, request_id
from service.pipeline.admission import ANYONE
from service.version import SERVER

if TYPE_CHECKING:
    from service.context import AppContext, Protocol

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

_PREDICTION = re.compile(
    rb"/(v[12])/models/([^/:%?]+)(?:/versions/([^/:%?]+))?(:predict|:vjp|/infer)(?:\?.*)?"
)
_PROTOCOLS: dict[tuple[bytes, bytes], Protocol] = {
    (b"v1", b":predict"): "predict",
    (b"v1", b":vjp"): "vjp",
    (b"v2", b"/infer"): "oip",
}

Headers = list[tuple[bytes, bytes]]

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
    """What the connections of one server ask, each time a request's headers have come. For the event loop only."""

    def __init__(self, context: AppContext) -> None:
        self._context = context
        self._due = 0.0
        """When the refusals so far would have been over at SECONDS_EACH."""
        self._seats: Counter[tuple[str, str]] = Counter()
        """Taken now, by model and version."""
        self._unlogged: Counter[tuple[str, str, str]] = Counter()
        """By caller, model and version."""

    def decide(self, target: bytes, headers: Headers, *, adding: Headers) -> bytes | Seat | None:
        """Of the POST of a small body: the whole response, if it is refused; its seat, if it would find room in the
        queue; None: the application is to look at it. The response has the headers `adding` as well.
        """
        started = time.perf_counter()
        context = self._context
        match = _PREDICTION.fullmatch(target)
        protocol = match and _PROTOCOLS.get((match[1], match[4]))
        if not match or not protocol or context.admission.draining:
            return None
        # A caller without a known key is told that, and nothing of the queue.
        caller = ANYONE if context.keys is None else context.keys.caller_of(headers)
        if caller is None:
            return None
        model, version = match[2].decode("latin-1"), (match[3] or b"").decode("latin-1") or None
        try:
            config = context.engine.config(model, version)
        except ServiceError:
            return None
        served = (config.name, config.version)
        try:
            context.admission.refuse_if_full(*served, coming=self._seats[served])
        except QueueFull as error:
            answer = _answer(target, headers, error, adding)
        else:
            return Seat(self._seats, served)
        context.metrics.requests.labels(*served, protocol, QueueFull.status).inc()
        context.metrics.request_duration.labels(*served).observe(time.perf_counter() - started)
        self._note(caller.name, *served)
        return answer

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


def _answer(target: bytes, headers: Headers, error: ServiceError, adding: Headers) -> bytes:
    offered = next((value for name, value in headers if name == b"x-request-id"), b"")
    identity = accept_request_id(offered.decode("latin-1"))
    token = request_id.set(identity)
    try:
        response = problem_response(target.partition(b"?")[0].decode("latin-1"), error)
    finally:
        request_id.reset(token)
    lines = [
        *adding,
        *response.raw_headers,
        (b"server", SERVER.encode("latin-1")),
        (b"x-request-id", identity.encode("latin-1")),
    ]
    head = b"".join(b"%b: %b\r\n" % line for line in lines)
    return b"%b%b\r\n%b" % (STATUS_LINE[error.status], head, bytes(response.body))
