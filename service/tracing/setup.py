"""Where spans go: OpenTelemetry's SDK, set up from its own OTEL_* variables, unless the process has set it up before."""

from __future__ import annotations

import os
import threading
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import SpanProcessor, TracerProvider

FLUSH_SECONDS = 2.0
"""How long the end of the process may wait for a collector that does not answer."""

_OTLP = {"http/protobuf": "otlp_proto_http", "grpc": "otlp_proto_grpc"}
"""OTEL_EXPORTER_OTLP_PROTOCOL -> the exporter's name as packages register it."""

_ours: TracerProvider | None = None


def start() -> None:
    """Make spans go where OTEL_* say; by default to an OTLP collector on this machine. Repeatable.

    Raises:
        ValueError: the extra is not installed, or OTEL_* name an exporter that is not.
    """
    global _ours  # OpenTelemetry's provider is one for the process, and so is what ends it
    try:
        from opentelemetry import trace
        from opentelemetry.sdk.resources import OTELResourceDetector, Resource
        from opentelemetry.sdk.trace import TracerProvider
    except ImportError as error:
        raise ValueError(f"tracing needs pip install 'turbofno[otel]' ({error})") from None
    if not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider):
        return
    named = OTELResourceDetector().detect().attributes
    about = {"service.name": "turbofno", "service.version": VERSION, **named}
    # Not at exit: that would wait long for a collector that does not answer.
    provider = TracerProvider(resource=Resource.create(about), shutdown_on_exit=False)
    for processor in span_processors():
        provider.add_span_processor(processor)
    trace.set_tracer_provider(provider)
    _ours = provider


def stop() -> None:
    """Send the spans that are left, within FLUSH_SECONDS; those of a provider that is not ours are not ours to send."""
    if _ours is not None:
        flushing = threading.Thread(target=_ours.force_flush, daemon=True)
        flushing.start()
        flushing.join(FLUSH_SECONDS)


def span_processors() -> list[SpanProcessor]:
    """One for each exporter that OTEL_TRACES_EXPORTER names. Raises ValueError for one that is not installed."""
    from opentelemetry.sdk.trace.export import BatchSpanProcessor

    known = entry_points(group="opentelemetry_traces_exporter")
    chosen = []
    for name in os.environ.get("OTEL_TRACES_EXPORTER", "otlp").split(","):
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
                f"OpenTelemetry has no exporter {wanted!r} here (OTEL_TRACES_EXPORTER, OTEL_EXPORTER_OTLP_PROTOCOL); "
                f"there are {', '.join(sorted(known.names))}, or none"
            )
        chosen.append(known[wanted])
    return [BatchSpanProcessor(exporter.load()()) for exporter in chosen]
