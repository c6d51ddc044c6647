"""From checked fields to a result: what both protocols do between decoding and encoding."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, TypeVar

from starlette.requests import ClientDisconnect

from service.context import context_of, record_of
from service.http.body import declared_size
from service.http.early_refusal import SEAT
from service.pipeline.engine import PredictRequest

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from fastapi import Request

    from models.config import ModelConfig
    from service.context import Protocol
    from service.http.early_refusal import Seat
    from service.pipeline.admission import Room
    from service.pipeline.engine import Fields, PredictResult
    from service.pipeline.vjp import VjpShapes

T = TypeVar("T")

CANCELLED = "turbofno.cancelled"
"""In a request's scope: its task is cancelled when its client leaves, so nobody need watch."""

WATCHED_AFTER_SECONDS = 0.2
"""From when on a prediction or a gradient is cancelled if its client leaves."""


def begin(request: Request, protocol: Protocol, model: str, version: str | None) -> ModelConfig:
    """Find the model and note in the request's record who asks for what.

    Raises:
        NotFound, Unavailable: there is no such model or version, or it is not ready.
    """
    record = record_of(request)
    record.protocol = protocol
    config = context_of(request).engine.config(model, version)
    record.model, record.version = config.name, config.version
    return config


def admit(request: Request, config: ModelConfig) -> Room:
    """Let the request in by its headers, until its answer is sent; what it holds is counted in the room.

    Raises:
        QueueFull, PayloadTooLarge, Unavailable: as `Admission.admit` says.
        BadRequest, UnsupportedMediaType: the headers do not say how long the body is.
    """
    record = record_of(request)
    record.room = context_of(request).admission.admit(
        declared_size(request), model=config.name, version=config.version, caller=record.caller
    )
    return record.room


async def infer(
    request: Request,
    fields: Fields,
    *,
    config: ModelConfig,
    priority: int,
    seconds: float | None,
    vjp: VjpShapes | None = None,
) -> PredictResult:
    """Run the fields (rows for gradients, with `vjp`); dropped if not started within `seconds`, or when the client
    goes away.

    A request's own time limit can shorten the server's, never lengthen it.

    Raises:
        NotFound, QueueFull, DeadlineExceeded, Unavailable, InvalidField, InferenceFailed: as the
            engine says.
        ClientDisconnect: nobody waits for the answer any more.
    """
    context, record = context_of(request), record_of(request)
    allowed = context.settings.request_deadline_seconds
    work = context.engine.predict(
        PredictRequest(
            model=config.name,
            # The version whose limits the fields were checked against, even if a newer one comes.
            version=config.version,
            config=config,
            fields=fields,
            request_id=record.request_id,
            trace=record.trace,
            vjp=vjp,
            priority=priority,
            client=record.caller.name,
            client_max_fields=record.caller.max_fields,
            deadline=time.monotonic() + min(allowed, allowed if seconds is None else seconds),
        )
    )
    seat: Seat | None = request.scope.get(SEAT)
    if seat is not None:
        # After the first step of the work, which takes room in the queue.
        asyncio.get_running_loop().call_soon(seat.leave)
    if request.scope.get(CANCELLED):
        result = await work
    else:
        # Mostly short, and watching takes a task, which would cost more than all else here.
        result = await unless_disconnected(request, work, watched_after=WATCHED_AFTER_SECONDS)
    record.version = result.version
    record.fields = len(fields)
    record.queue_seconds = result.queue_seconds
    record.compute_seconds = result.compute_seconds
    return result


async def unless_disconnected(
    request: Request, work: Awaitable[T], *, watched_after: float = 0.0
) -> T:
    """What `work` gives; it is cancelled if the client goes away first. Raises ClientDisconnect then.

    For the first `watched_after` seconds nobody looks: who left meanwhile is noticed at their end.
    """
    waiting = asyncio.current_task()
    assert waiting is not None
    watch: asyncio.Task[None] | None = None
    left = False

    async def until_left() -> None:
        nonlocal left
        while (await request.receive())["type"] != "http.disconnect":
            pass
        left = True
        waiting.cancel()

    def begin() -> None:
        nonlocal watch
        watch = asyncio.ensure_future(until_left())

    timer = asyncio.get_running_loop().call_later(watched_after, begin)
    try:
        return await work
    except asyncio.CancelledError:
        if left and not waiting.uncancel():
            raise ClientDisconnect from None
        raise
    finally:
        timer.cancel()
        if watch is not None:
            watch.cancel()
        # Else an error and this frame would refer to each other, and keep the fields until garbage is collected.
        del work
