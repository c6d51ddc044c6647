"""What we add to FastAPI's span of a request: its place in the request's record, and what the record has learnt."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from service.context import RECORD_KEY

if TYPE_CHECKING:
    from opentelemetry.util.types import AttributeValue
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from service.context import RequestRecord

_W3C = TraceContextTextMapPropagator()


class TracingMiddleware:
    """Inside RequestMiddleware, which makes the record; outside everything that refuses."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        span = trace.get_current_span()
        if scope["type"] != "http" or not span.get_span_context().is_valid:
            await self._app(scope, receive, send)
            return
        record: RequestRecord = scope[RECORD_KEY]
        carrier: dict[str, str] = {}
        _W3C.inject(carrier)
        record.trace = carrier["traceparent"]

        async def send_noting(message: Message) -> None:
            # Not later: FastAPI ends the span with the last byte of the answer.
            if message["type"] == "http.response.start":
                span.set_attributes(_attributes(record))
                if record.model:
                    span.update_name(f"{record.protocol} {record.model}")
            await send(message)

        await self._app(scope, receive, send_noting)


def _attributes(record: RequestRecord) -> dict[str, AttributeValue]:
    known: dict[str, AttributeValue | None] = {
        "request_id": record.request_id,
        "key": record.caller.name or None,
        "model": record.model or None,
        "version": record.version or None,
        "fields": record.fields or None,
        "decode_seconds": record.decode_seconds,
        "encode_seconds": record.encode_seconds,
    }
    return {f"turbofno.{name}": value for name, value in known.items() if value is not None}
