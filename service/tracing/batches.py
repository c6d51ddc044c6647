"""Spans of queue, batch and compute, created when a batch has ended, from times that are measured anyway.

Each request has its own, as children of its HTTP span, so that every sampled trace is complete. Its batch span links to
the other requests in the batch.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.trace import Link, SpanContext, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from turbofno.service.pipeline.batch import BatchReport

_W3C = TraceContextTextMapPropagator()


def trace_batch(report: BatchReport) -> None:
    """Create the spans of a batch that ended, perhaps before other answers were sent."""
    if not any(part.ticket.request.trace for part in report.slices):
        return
    parents = [_W3C.extract({"traceparent": part.ticket.request.trace}) for part in report.slices]
    requests = [trace.get_current_span(parent).get_span_context() for parent in parents]
    shift = time.time_ns() - time.monotonic_ns()
    for index, request in enumerate(requests):
        if request.trace_flags.sampled:
            mates = [one for one in requests if one.is_valid and one != request]
            _trace(report, index, parents[index], mates, shift)


def _trace(
    report: BatchReport,
    index: int,
    parent: Context,
    mates: list[SpanContext],
    shift: int,
) -> None:
    """Create the spans of one slice. `shift` is added to monotonic times for Unix times, all in nanoseconds."""

    def unix(monotonic: float) -> int:
        return int(monotonic * 1e9) + shift

    ended = unix(report.ended)
    tracer = trace.get_tracer("turbofno", VERSION)
    part = report.slices[index]
    ticket = part.ticket
    if part.start == 0 and ticket.result is not None:
        queue = tracer.start_span(
            "queue",
            parent,
            start_time=unix(ticket.arrival),
            attributes={"turbofno.priority": ticket.kind.flow.level},
        )
        queue.end(unix(ticket.arrival + ticket.result.queue_seconds))
    batch = tracer.start_span(
        "batch",
        parent,
        start_time=unix(report.started),
        links=[Link(mate) for mate in mates],
        attributes={
            "turbofno.model": ticket.kind.runnable.name,
            "turbofno.version": ticket.kind.runnable.version,
            "turbofno.batch.size": report.size,
            "turbofno.batch.splits": report.splits,
            "turbofno.fields": part.stop - part.start,
        },
    )
    if report.compute_seconds:
        # Its duration is measured; it starts after the gathering.
        begun, ran = unix(report.started + report.gather_seconds), report.ran
        compute = tracer.start_span(
            "compute",
            trace.set_span_in_context(batch),
            start_time=begun,
            attributes={"turbofno.backend": ran.backend, "turbofno.precision": ran.precision},
        )
        compute.end(min(ended, begun + int(report.compute_seconds * 1e9)))
    if (error := report.errors.get(index)) is not None:
        batch.set_attribute("error.type", type(error).__name__)
        batch.set_status(Status(StatusCode.ERROR, error.message))
    batch.end(ended)
