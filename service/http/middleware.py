"""What wraps every request: its id, its record, response headers, metrics, one access line, the last exception net."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from service.context import RECORD_KEY, RequestRecord
from service.http.problems import CLIENT_CLOSED_REQUEST, unexpected
from service.logs import accept_request_id, request_id

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.metrics import Metrics

logger = logging.getLogger(__name__)
access = logging.getLogger("service.access")

POLLED = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""By machines: logged at DEBUG and not traced, lest they bury the rest."""
_WAIT_BYTES = 32 * 1024
"""Shorter bodies are within what the server buffers for any connection."""


class RequestMiddleware:
    """Pure ASGI, so that bodies pass through untouched and uncopied."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics, server: str) -> None:
        self._app = app
        self._metrics = metrics
        self._server = server.encode("latin-1")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        offered = next((v for k, v in scope["headers"] if k == b"x-request-id"), b"")
        record = RequestRecord(accept_request_id(offered.decode("latin-1")))
        scope[RECORD_KEY] = record
        token = request_id.set(record.request_id)
        status = CLIENT_CLOSED_REQUEST
        response_started = False
        sent_bytes = 0

        async def send_noting(message: Message) -> None:
            nonlocal status, response_started, sent_bytes
            if message["type"] == "http.response.start":
                status, response_started = message["status"], True
                message["headers"] = [*message.get("headers", ()), *self._headers(record)]
            elif message["type"] == "http.response.body":
                size = len(message.get("body", b""))
                sent_bytes += size
                if size > _WAIT_BYTES and not message.get("more_body", False):
                    # The server takes a body at once and waits before the next message, if need be,
                    # until the client has read enough of it.
                    await send({**message, "more_body": True})
                    message = {"type": "http.response.body"}
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except Exception:
            status = 500
            logger.exception("unexpected failure of %s %s", scope["method"], _shown_path(scope))
            if response_started:
                raise
            await unexpected(scope["path"])(scope, receive, send_noting)
        finally:
            record.until_sent.close()
            self._finish(scope, record, status, sent_bytes, time.perf_counter() - started)
            request_id.reset(token)

    def _headers(self, record: RequestRecord) -> list[tuple[bytes, bytes]]:
        headers = [
            (b"server", self._server),
            (b"x-request-id", record.request_id.encode("latin-1")),
        ]
        if record.trace:
            headers.append((b"traceresponse", record.trace.encode("latin-1")))
        if steps := _steps(record):
            timing = ", ".join(f"{step};dur={seconds * 1e3:.3f}" for step, seconds in steps)
            headers.append((b"server-timing", timing.encode("latin-1")))
        return headers

    def _finish(
        self, scope: Scope, record: RequestRecord, status: int, sent_bytes: int, seconds: float
    ) -> None:
        metrics, model = self._metrics, (record.model, record.version)
        metrics.requests.labels(*model, record.protocol, status).inc()
        steps = _steps(record)
        if record.model:
            metrics.request_duration.labels(*model).observe(seconds)
            for step, taken in steps:
                metrics.steps[step].labels(*model).observe(taken)
        level = logging.DEBUG if scope["path"] in POLLED else logging.INFO
        if not access.isEnabledFor(level):
            return
        data: dict[str, object] = {
            "status": status,
            "ms": round(seconds * 1e3, 3),
            "in": record.body_bytes,
            "out": sent_bytes,
        }
        if record.caller.name:
            data["key"] = record.caller.name
        if record.trace:
            data["trace_id"] = record.trace.split("-")[1]
        if record.model:
            data |= {"model": record.model, "version": record.version, "fields": record.fields}
        data |= {f"{step}_ms": round(taken * 1e3, 3) for step, taken in steps}
        access.log(level, "%s %s", scope["method"], _shown_path(scope), extra={"data": data})


def _steps(record: RequestRecord) -> list[tuple[str, float]]:
    taken = (
        ("decode", record.decode_seconds),
        ("queue", record.queue_seconds),
        ("compute", record.compute_seconds),
        ("encode", record.encode_seconds),
    )
    return [(step, seconds) for step, seconds in taken if seconds is not None]


def _shown_path(scope: Scope) -> str:
    """Still percent-encoded, so that a path cannot forge a log line."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return ascii(raw.decode("latin-1"))[1:-1]
