"""Common response headers, metrics and the access log line of every request."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from functools import lru_cache

from turbofno.service.http.call import Call, Lines
from turbofno.service.http.shedding import Shedding
from turbofno.service.metrics import Metrics

access = logging.getLogger("service.access")

HEALTH = frozenset({"/healthz", "/readyz", "/v2/health/live", "/v2/health/ready"})
"""Paths that load balancers and container platforms poll, which send no key."""
POLLED = HEALTH | {"/metrics"}
"""Paths that machines poll: logged at DEBUG and not traced."""

LONGEST_PATH = 256
"""Most characters of a path in a log line or a span: clients choose them, also those of refused requests."""


@lru_cache(maxsize=64)
def _timings(steps: tuple[str, ...]) -> bytes:
    """The format of the header with the milliseconds of these steps."""
    return b"server-timing: " + ", ".join([f"{step};dur=%.3f" for step in steps]).encode()


class AccessLog:
    """The access log and request metrics of one application."""

    def __init__(
        self, metrics: Metrics, shedding: Shedding, server: str, *, cors_origins: Iterable[str] = ()
    ) -> None:
        """Web pages of `cors_origins` may read replies."""
        self._metrics = metrics
        self._shedding = shedding
        self._server = f"server: {server}".encode("latin-1")
        self._origins = frozenset(origin.encode("latin-1") for origin in cors_origins)

    def headers(self, call: Call) -> Lines:
        """Reply headers in addition to the operation's own."""
        headers = [self._server, b"x-request-id: " + call.request_id.encode("latin-1")]
        if call.trace:
            headers.append(b"traceresponse: " + call.trace.encode("latin-1"))
        if self._origins:
            headers.append(b"vary: Origin")
            origin = call.headers.get(b"origin", b"").lower()
            if origin in self._origins:
                headers.append(b"access-control-allow-origin: " + origin)
                headers.append(b"access-control-expose-headers: *")
        if steps := call.steps:
            milliseconds = [1e3 * seconds for seconds in steps.values()]
            headers.append(_timings(tuple(steps)) % tuple(milliseconds))
        return headers

    def close(self, call: Call, status: int, sent_bytes: int) -> None:
        """Count and log a finished request, and release what it holds."""
        call.admitted.leave()
        seconds = time.perf_counter() - call.started
        if call.span is not None and call.context.tracer is not None:
            call.context.tracer.end(call, status)
        self._metrics.answered(
            call.model, call.version, call.protocol, status, call.warned, seconds, call.steps
        )
        if call.shed:
            self._shedding.log(call)
            return
        level = logging.DEBUG if call.path in POLLED else logging.INFO
        if access.isEnabledFor(level):
            self._write(call, level, status, seconds, sent_bytes)

    def _write(self, call: Call, level: int, status: int, seconds: float, sent_bytes: int) -> None:
        data: dict[str, object] = {
            "status": status,
            "ms": round(seconds * 1e3, 3),
            "in": call.body_bytes,
            "out": sent_bytes,
        }
        if call.caller.name:
            data["key"] = call.caller.name
        if call.trace:
            data["trace_id"] = call.trace.split("-")[1]
        if call.model:
            data |= {"model": call.model, "version": call.version, "fields": call.fields}
        data |= {f"{step}_ms": round(taken * 1e3, 3) for step, taken in call.steps.items()}
        access.log(level, "%s %s", call.method, shown_path(call), extra={"data": data})


def shown_path(call: Call) -> str:
    """The path for a log line: percent-encoded, so that it cannot contain a line break, and only its beginning if it is long."""
    path = ascii(call.raw_path[:LONGEST_PATH].decode("latin-1"))[1:-1]
    return path if len(call.raw_path) <= LONGEST_PATH else f"{path}..."
