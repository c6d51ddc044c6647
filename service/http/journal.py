"""What every request gets, whichever way it came: an id, a record, response headers, metrics, one access line."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from service.context import RequestRecord
from service.logs import accept_request_id

if TYPE_CHECKING:
    from collections.abc import Iterable

    from starlette.types import Scope

    from service.metrics import Metrics

access = logging.getLogger("service.access")

POLLED = frozenset({"/healthz", "/readyz", "/metrics", "/v2/health/live", "/v2/health/ready"})
"""By machines: logged at DEBUG and not traced, lest they bury the rest."""

Headers = list[tuple[bytes, bytes]]


class Journal:
    """One for all requests of an application."""

    def __init__(self, metrics: Metrics, server: str, *, cors_origins: Iterable[str] = ()) -> None:
        """Pages of `cors_origins` may read the responses to what they send."""
        self._metrics = metrics
        self._server = (b"server", server.encode("latin-1"))
        self._origins = frozenset(origin.encode("latin-1") for origin in cors_origins)

    def open(self, headers: Headers) -> RequestRecord:
        """The record of a request whose headers have come."""
        offered = next((value for name, value in headers if name == b"x-request-id"), b"")
        record = RequestRecord(accept_request_id(offered.decode("latin-1")))
        if self._origins:
            origin = next((value for name, value in headers if name == b"origin"), b"").lower()
            record.page_origin = origin if origin in self._origins else b""
        return record

    def headers(self, record: RequestRecord) -> Headers:
        """What its response says beside the answer's own headers."""
        headers = [self._server, (b"x-request-id", record.request_id.encode("latin-1"))]
        if record.trace:
            headers.append((b"traceresponse", record.trace.encode("latin-1")))
        if self._origins:
            headers.append((b"vary", b"Origin"))
        if record.page_origin:
            headers.append((b"access-control-allow-origin", record.page_origin))
            headers.append((b"access-control-expose-headers", b"*"))
        if steps := _steps(record):
            timing = ", ".join(f"{step};dur={seconds * 1e3:.3f}" for step, seconds in steps)
            headers.append((b"server-timing", timing.encode("latin-1")))
        return headers

    def close(self, scope: Scope, record: RequestRecord, status: int, sent_bytes: int) -> None:
        """Count and log it: its answer has been sent, or nobody is there to send it to."""
        if record.room is not None:
            record.room.leave()
        seconds = time.perf_counter() - record.started
        metrics, model = self._metrics, (record.model, record.version)
        metrics.requests.labels(*model, record.protocol, status).inc()
        steps = _steps(record)
        if record.model:
            # A rollout lasts as long as its client reads on, which says nothing of how soon requests are answered.
            if record.protocol != "rollout":
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
        access.log(level, "%s %s", scope["method"], shown_path(scope), extra={"data": data})


def shown_path(scope: Scope) -> str:
    """Still percent-encoded, so that a path cannot forge a log line."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode("utf-8", "replace")
    return ascii(raw.decode("latin-1"))[1:-1]


def _steps(record: RequestRecord) -> list[tuple[str, float]]:
    taken = (
        ("decode", record.decode_seconds),
        ("queue", record.queue_seconds),
        ("compute", record.compute_seconds),
        ("encode", record.encode_seconds),
    )
    return [(step, seconds) for step, seconds in taken if seconds is not None]
