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
    from turbofno.service.pipeline.ticket import Slice

_W3C = TraceContextTextMapPropagator()


def trace_batch(report: BatchReport) -> None:
    """Create the spans of a batch that ended just now: its spans end at the time of the call."""
    parents = [_W3C.extract({"traceparent": part.ticket.request.trace}) for part in report.slices]
    requests = [trace.get_current_span(parent).get_span_context() for parent in parents]
    ended, since_boot = time.time_ns(), time.monotonic_ns()
    for index, part in enumerate(report.slices):
        if requests[index].trace_flags.sampled:
            mates = [one for one in requests if one.is_valid and one != requests[index]]
            _Spans(parents[index], shift=ended - since_boot).make(report, index, part, mates, ended)


class _Spans:
    def __init__(self, parent: Context, *, shift: int) -> None:
        self._tracer = trace.get_tracer("turbofno", VERSION)
        self._parent = parent
        self._shift = shift

    def make(
        self, report: BatchReport, index: int, part: Slice, mates: list[SpanContext], ended: int
    ) -> None:
        ticket = part.ticket
        if part.start == 0 and ticket.result is not None:
            queue = self._tracer.start_span(
                "queue",
                self._parent,
                start_time=self._unix(ticket.arrival),
                attributes={"turbofno.priority": ticket.request.priority},
            )
            queue.end(self._unix(ticket.arrival + ticket.result.queue_seconds))
        batch = self._tracer.start_span(
            "batch",
            self._parent,
            start_time=self._unix(report.started),
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
            begun = self._unix(report.started + report.gather_seconds)
            compute = self._tracer.start_span(
                "compute",
                trace.set_span_in_context(batch),
                start_time=begun,
                attributes={
                    "turbofno.backend": report.backend,
                    "turbofno.precision": report.precision,
                },
            )
            compute.end(min(ended, begun + int(report.compute_seconds * 1e9)))
        if (error := report.errors.get(index)) is not None:
            batch.set_attribute("error.type", type(error).__name__)
            batch.set_status(Status(StatusCode.ERROR, error.message))
        batch.end(ended)

    def _unix(self, monotonic: float) -> int:
        return int(monotonic * 1e9) + self._shift
