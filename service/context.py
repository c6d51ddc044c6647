"""What a route needs of the running service, and what a route tells about the request it serves."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from service.pipeline.admission import ANYONE, Caller

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request

    from service.http.guard import Guard
    from service.http.journal import Journal
    from service.http.keys import Keys
    from service.metrics import Metrics
    from service.pipeline.admission import Admission, Room
    from service.pipeline.engine import Engine
    from service.settings import Settings
    from service.solver.process import SolverProcess

Protocol = Literal["oip", "predict", "rollout", "vjp", "solver", "admin"]


@dataclass(frozen=True, slots=True)
class AppContext:
    """The parts of one application. Routes take it from `context_of(request)`.

    The path of a prediction through it:

        context = context_of(request)
        record = record_of(request)
        record.protocol, record.model = "oip", name
        room = admit(request, config)
        body = await read_body(request, room, limit=context.settings.max_body_bytes)
        ...decode (record.decode_seconds), predict, encode (record.encode_seconds)
        room.hold_answer(len(answer))
    """

    settings: Settings
    engine: Engine
    admission: Admission
    metrics: Metrics
    journal: Journal
    guard: Guard
    scrape: Callable[[], Awaitable[bytes]]
    """The metrics of the whole service, in the text format."""
    keys: Keys | None = None
    """None: anyone may call."""
    solver: SolverProcess | None = None
    """None: switched off."""


@dataclass(slots=True)
class RequestRecord:
    """Filled by the route as it learns; the journal turns it into metrics, Server-Timing and the access line.

    `model` and `version` are set only to names the engine knows, so that metric labels stay bounded.
    Times are seconds; None means that the step did not happen.
    """

    request_id: str
    started: float = field(default_factory=time.perf_counter)
    caller: Caller = ANYONE
    protocol: Protocol = "admin"
    model: str = ""
    version: str = ""
    fields: int = 0
    body_bytes: int = 0
    decode_seconds: float | None = None
    queue_seconds: float | None = None
    compute_seconds: float | None = None
    encode_seconds: float | None = None
    trace: str = ""
    """The W3C traceparent of its span; empty if it is not traced."""
    page_origin: bytes = b""
    """Of the web page that sent it, where that is of another origin and may read the response."""
    room: Room | None = None
    """What it holds; left by the journal once the answer has been sent, or nobody is there to send it to."""


def context_of(request: Request) -> AppContext:
    """The context of the application that serves `request`."""
    context: AppContext | None = request.scope.get(CONTEXT_KEY)
    if context is None:
        context = request.scope["app"].state.context
    return context


def record_of(request: Request) -> RequestRecord:
    """The record of `request`, put into its scope before its route runs (a fresh one where that was not)."""
    record: RequestRecord | None = request.scope.get(RECORD_KEY)
    if record is None:
        record = request.scope[RECORD_KEY] = RequestRecord(request_id="")
    return record


RECORD_KEY = "turbofno.record"
CONTEXT_KEY = "turbofno.context"
"""In the scope of a request that no application serves."""
