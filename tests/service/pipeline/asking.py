"""Helpers to submit single requests to a scheduler."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from turbofno.service.pipeline.ticket import Kind, Ticket

if TYPE_CHECKING:
    from turbofno.service.engine.interface import PredictRequest, PredictResult
    from turbofno.service.engine.runnable import Runnable
    from turbofno.service.pipeline.scheduler import Scheduler


def queued(scheduler: Scheduler, model: Runnable, request: PredictRequest) -> Ticket:
    """Submit a request; returns its ticket, whose outcome is a future."""
    ticket = ticket_of(model, request)
    scheduler.submit([ticket])
    return ticket


def ticket_of(model: Runnable, request: PredictRequest) -> Ticket:
    """The ticket of a request, whose outcome is a future."""
    outcome: asyncio.Future[PredictResult] = asyncio.get_running_loop().create_future()
    kind = Kind.of(model, request)
    return Ticket(kind, request, time.monotonic(), outcome, len(request.fields))


async def ask(scheduler: Scheduler, model: Runnable, request: PredictRequest) -> PredictResult:
    """Submit a request and return its outcome; cancelling this cancels the request."""
    ticket = queued(scheduler, model, request)
    try:
        return await ticket.outcome
    except asyncio.CancelledError:
        scheduler.cancel(ticket)
        raise
