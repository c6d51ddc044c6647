"""Health, readiness and metrics, which are polled."""

from __future__ import annotations

from functools import partial

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from turbofno.service.context import AppContext
from turbofno.service.engine.interface import UNLOADED
from turbofno.service.http.call import Call, Operation, Reply
from turbofno.service.http.openapi import errors
from turbofno.service.http.route import json_content, json_reply, route

OPERATIONS: list[Operation] = []
_health = partial(route, OPERATIONS, "GET", tag="health")


class Health(Struct):
    """The process responds."""

    live: bool


class Readiness(Struct):
    """True if this instance should get traffic; otherwise the reasons."""

    ready: bool
    reasons: list[str]


@_health("/healthz", summaries=("Is the process alive?",))
async def health(_: Call) -> Health:
    """Live: the event loop runs."""
    return Health(live=True)


@_health(
    "/readyz",
    summaries=("Should this instance get traffic?",),
    responses={
        200: {"description": "Ready.", "content": json_content(Readiness)},
        503: {
            "description": "Loading, draining, or a model is broken.",
            "content": json_content(Readiness),
        },
    },
)
async def readiness(call: Call) -> Reply:
    """Ready: every start-up model is loaded and warm, and the service is not shutting down."""
    reasons = why_not_ready(call.context)
    return json_reply(Readiness(not reasons, reasons), 503 if reasons else 200)


def why_not_ready(context: AppContext) -> list[str]:
    """The reasons why this instance should get no traffic; empty if it should."""
    reasons = ["shutting down"] if context.admission.draining else []
    if context.engine.failure:
        reasons.append(context.engine.failure)
    elif not context.engine.ready:
        statuses = context.engine.statuses()
        reasons += [
            f"model {one.name} version {one.version} is {one.state}"
            + (f": {one.reason}" if one.reason else "")
            for one in statuses
            if one.state != "READY" and one.reason != UNLOADED
        ]
        reasons = reasons or ["no model is loaded"]
    return reasons


@_health(
    "/metrics",
    summaries=("Metrics",),
    errors=errors(401),
    responses={
        200: {"description": "Success.", "content": {"text/plain": {"schema": {"type": "string"}}}}
    },
)
async def metrics(call: Call) -> Reply:
    """Prometheus metrics, in the text format."""
    text = await call.context.scrape()
    return Reply(200, [b"content-type: " + CONTENT_TYPE_LATEST.encode()], (text,))
