"""Sets up OpenTelemetry's SDK from its OTEL_* variables, unless the process has done so before."""

from __future__ import annotations

import os
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

FLUSH_SECONDS = 2.0
"""Time limit to send the last spans at the end of the process, if the collector does not respond."""

_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""OTEL_EXPORTER_OTLP_PROTOCOL -> the entry point of its exporter."""

_ours: TracerProvider | None = None


def start() -> None:
    """Export spans as the OTEL_* variables state, by default to an OTLP collector on this machine. Repeatable.

    Raises:
        ValueError: the extra `otel` or an exporter that OTEL_* name is not installed.
    """
    global _ours  # OpenTelemetry has one provider for each process
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as error:
        raise ValueError(
            "tracing needs OpenTelemetry: run `pip install '.[serve,otel]'` in a checkout of turbofno "
            f"({error})"
        ) from None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    named = OTELResourceDetector().detect().attributes
    about = {"service.name": "turbofno", "service.version": VERSION, **named}
    # Not at exit, which would wait long for a collector that does not respond; `stop` has a time limit.
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    for processor in span_processors():
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    _ours = provider


def stop() -> None:
    """Send the remaining spans within FLUSH_SECONDS, if `start` created the provider."""
    if _ours is not None:
        flushing = threading.Thread(target=_ours.force_flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)


def span_processors() -> list[SpanProcessor]:
    """A processor for each exporter of OTEL_TRACES_EXPORTER. Raises ValueError for one that is not installed."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    known = entry_points(group="opentelemetry_traces_exporter")
    chosen = []
    # An empty variable counts as not set, as OpenTelemetry specifies.
    for name in (os.environ.get("OTEL_TRACES_EXPORTER") or "otlp").split(","):
        wanted = name.strip()
        if wanted == "none":
            continue
        if wanted == "otlp":
            protocol = (
                os.environ.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL")
                or os.environ.get("OTEL_EXPORTER_OTLP_PROTOCOL")
                or "http/protobuf"
            )
            wanted = _OTLP.get(protocol, protocol)
        if wanted not in known.names:
            raise ValueError(
                f"the OpenTelemetry exporter {wanted!r} is not installed (OTEL_TRACES_EXPORTER, "
                f"OTEL_EXPORTER_OTLP_PROTOCOL), expected one of {', '.join(sorted(known.names))}, or none"
            )
        chosen.append(known[wanted])
    return [BatchSpanProcessor(exporter.load()()) for exporter in chosen]
