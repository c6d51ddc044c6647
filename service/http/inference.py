"""From checked fields to a result: what predictions and gradients do between decoding and encoding."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from turbofno.service.engine.interface import PredictRequest

if TYPE_CHECKING:
    from collections.abc import Iterable

    from turbofno.service.answer_warnings import AnswerWarning
    from turbofno.service.engine.interface import Fields, PredictResult
    from turbofno.service.engine.vjp import VjpShapes
    from turbofno.service.http.call import Call


async def infer(
    call: Call,
    fields: Fields,
    *,
    priority: int,
    seconds: float | None,
    vjp: VjpShapes | None = None,
) -> PredictResult:
    """Run the fields (rows for gradients, with `vjp`); dropped if not started within `seconds`.

    Raises:
        NotFound, QueueFull, DeadlineExceeded, Unavailable, InvalidField, InferenceFailed: as the
            engine says.
    """
    served = call.served
    work = call.context.engine.predict(
        PredictRequest(
            model=served.name,
            # The version whose limits the fields were checked against, even if a newer one comes.
            version=served.version,
            config=served.config,
            fields=fields,
            request_id=call.request_id,
            trace=call.trace,
            vjp=vjp,
            priority=priority,
            client=call.caller.name,
            client_max_fields=call.caller.max_fields,
            deadline=deadline(call, seconds),
        )
    )
    if call.reservation is not None:
        # After the first step of the work, which takes room in the queue.
        asyncio.get_running_loop().call_soon(call.reservation.leave)
    result = await work
    call.fields = len(fields)
    call.queue_seconds = result.queue_seconds
    call.compute_seconds = result.compute_seconds
    return result


def deadline(call: Call, seconds: float | None) -> float:
    """By when work must have started, on the monotonic clock: a request's own time limit can shorten the server's."""
    allowed = call.context.settings.request_deadline_seconds
    return time.monotonic() + (allowed if seconds is None else min(allowed, seconds))


def counted(call: Call, warnings: Iterable[AnswerWarning]) -> tuple[str, ...]:
    """The texts of an answer's warnings, whose reasons are counted."""
    warnings = tuple(warnings)
    if not warnings:
        return ()
    counter, served = call.context.metrics.prediction_warnings, call.served
    for reason in dict.fromkeys(one.reason for one in warnings):
        counter.labels(served.name, served.version, reason).inc()
    return tuple(one.text for one in warnings)
