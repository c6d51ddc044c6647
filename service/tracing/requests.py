"""The span of a request, from its headers to the last byte of its response, in the caller's trace."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from opentelemetry import propagate, trace
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from turbofno.service.http.access_log import LONGEST_PATH, POLLED
from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue

    from turbofno.service.http.call import Call

_W3C = TraceContextTextMapPropagator()
_HEADER_LOGGERS = (
    "opentelemetry.baggage.propagation",
    "opentelemetry.trace.propagation.tracecontext",
    "opentelemetry.trace.span",
)
"""They warn of wrong entries of a client's headers: one `baggage` makes 180 lines, or one as long as itself."""


class RequestTracer:
    """Creates the spans of all requests except those to polled paths (health, metrics)."""

    def __init__(self) -> None:
        self._tracer = trace.get_tracer("turbofno", VERSION)
        for name in _HEADER_LOGGERS:
            logging.getLogger(name).setLevel(logging.ERROR)

    def start(self, call: Call) -> None:
        """Start the span of a request with complete headers, and set `Call.trace` to its traceparent."""
        if call.path in POLLED:
            return
        carrier = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in call.headers.items()
        }
        span = self._tracer.start_span(
            call.method,
            propagate.extract(carrier),
            SpanKind.SERVER,
            {"http.request.method": call.method, "url.path": call.path[:LONGEST_PATH]},
        )
        call.span = span
        sent: dict[str, str] = {}
        _W3C.inject(sent, trace.set_span_in_context(span))
        call.trace = sent.get("traceparent", "")

    def end(self, call: Call, status: int) -> None:
        """Set the attributes of the request's span, and end it."""
        span = call.span
        if span is None or not span.is_recording():
            return
        span.set_attributes(_attributes(call, status))
        # Clients choose paths, and metrics are made of spans by their names: an unknown path is not part of one.
        if call.model:
            span.update_name(f"{call.protocol} {call.model}")
        elif known := call.target.route or (call.path if status == 200 else ""):
            span.update_name(f"{call.method} {known}")
        if status >= 500:
            span.set_status(Status(StatusCode.ERROR))
        span.end()


def _attributes(call: Call, status: int) -> dict[str, AttributeValue]:
    known: dict[str, AttributeValue | None] = {
        "http.response.status_code": status,
        "http.route": call.target.route or None,
        "turbofno.request_id": call.request_id,
        "turbofno.key": call.caller.name or None,
        "turbofno.model": call.model or None,
        "turbofno.version": call.version or None,
        "turbofno.fields": call.fields or None,
        "turbofno.decode_seconds": call.steps.get("decode"),
        "turbofno.encode_seconds": call.steps.get("encode"),
    }
    return {name: value for name, value in known.items() if value is not None}
