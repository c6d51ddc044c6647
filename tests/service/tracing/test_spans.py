"""Exported spans of requests to an application in this process."""

from __future__ import annotations

import asyncio
import random
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
import torch
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from tests.draws import generator
from tests.service.http.asgi import serving
from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import save_model
from turbofno.service.engine.local import LocalEngine
from turbofno.service.tracing import batches

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from turbofno.service.engine.interface import PredictRequest, PredictResult
    from turbofno.service.pipeline.batch import BatchReport

PREDICT = "/v1/models/tiny-1d:predict"


@pytest.fixture(scope="module")
def exporter() -> Iterator[InMemorySpanExporter]:
    """The exporter of this process's provider, set up as an application that embeds the service would."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    trace.set_tracer_provider(provider)
    assert trace.get_tracer_provider() is provider
    yield memory
    provider.shutdown()


def exchange(
    root: Path, exporter: InMemorySpanExporter, *requests: dict[str, Any], **settings: Any
) -> tuple[list[httpx.Response], list[ReadableSpan]]:
    """Responses to concurrent requests, and all spans."""
    exporter.clear()

    async def main() -> list[httpx.Response]:
        async with serving(root, tracing=True, **settings) as (client, _):
            return await asyncio.gather(*(client.request(**one) for one in requests))

    return asyncio.run(main()), list(exporter.get_finished_spans())


def predicting(fields: np.ndarray[Any, Any] | None = None, **headers: str) -> dict[str, Any]:
    values = generator().standard_normal((16,)) if fields is None else fields
    return {
        "method": "POST",
        "url": PREDICT,
        "json": {"inputs": {"u0": values.tolist()}},
        "headers": headers,
    }


def fresh_parent(*, sampled: bool = True) -> tuple[int, int, str]:
    trace_id, span_id = random.getrandbits(128) | 1, random.getrandbits(64) | 1
    return trace_id, span_id, f"00-{trace_id:032x}-{span_id:016x}-0{int(sampled)}"


def by_name(spans: list[ReadableSpan]) -> Callable[[str], ReadableSpan]:
    def find(name: str) -> ReadableSpan:
        (found,) = (span for span in spans if span.name == name)
        return found

    return find


def times(span: ReadableSpan) -> tuple[int, int]:
    assert span.start_time is not None
    assert span.end_time is not None
    return span.start_time, span.end_time


def identity(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


def test_one_trace_from_the_client_through_queue_batch_and_compute(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    trace_id, span_id, parent = fresh_parent()
    (answer,), spans = exchange(tmp_path, exporter, predicting(traceparent=parent))
    assert answer.status_code == 200
    assert {span.context.trace_id for span in spans if span.context} == {trace_id}
    find = by_name(spans)
    server, queue, batch, compute = map(find, ("predict tiny-1d", "queue", "batch", "compute"))
    assert len(spans) == 4
    assert server.kind is SpanKind.SERVER
    parents = [span.parent.span_id for span in (server, queue, batch, compute) if span.parent]
    assert parents == [span_id, identity(server), identity(server), identity(batch)]
    begun, ended = times(server)
    assert begun <= times(queue)[0] <= times(queue)[1] <= times(batch)[0] <= times(compute)[0]
    assert times(compute)[1] <= times(batch)[1] <= ended
    assert (server.attributes or {})["turbofno.fields"] == 1
    assert (server.attributes or {})["http.response.status_code"] == 200
    assert (queue.attributes or {})["turbofno.priority"] == 5  # the default
    assert (batch.attributes or {})["turbofno.batch.size"] == 1
    assert (compute.attributes or {})["turbofno.backend"] in ("gemm", "reference")
    assert answer.headers["traceresponse"] == f"00-{trace_id:032x}-{identity(server):016x}-01"
    timing = dict(part.split(";dur=") for part in answer.headers["server-timing"].split(", "))
    measured = (times(compute)[1] - times(compute)[0]) / 1e6
    assert measured == pytest.approx(float(timing["compute"]), abs=0.1)


def test_a_batch_ends_with_its_outputs_however_late_its_spans_are_created(
    tmp_path: Path, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    reports: list[BatchReport] = []
    with monkeypatch.context() as patch:
        patch.setattr(batches, "trace_batch", reports.append)
        save_tiny(tmp_path)
        exchange(tmp_path, exporter, predicting())
    (report,) = reports
    batches.trace_batch(report)
    find = by_name(list(exporter.get_finished_spans()))
    assert times(find("batch"))[1] <= times(find("predict tiny-1d"))[1]


def test_each_request_of_a_batch_has_a_complete_trace_that_links_to_the_others(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    count = random.randint(2, 6)
    _, spans = exchange(
        tmp_path,
        exporter,
        *(predicting() for _ in range(count)),
        max_batch_size=count,
        max_queue_delay_seconds=20.0,
    )
    servers = {identity(span) for span in spans if span.name == "predict tiny-1d"}
    found = [span for span in spans if span.name == "batch"]
    assert len(servers) == len(found) == count
    for batch in found:
        assert batch.parent is not None
        assert (batch.attributes or {})["turbofno.batch.size"] == count
        linked = [link.context.span_id for link in batch.links]
        assert sorted([*linked, batch.parent.span_id]) == sorted(servers)
    for name in ("queue", "compute"):
        assert sum(span.name == name for span in spans) == count


def test_a_caller_that_does_not_sample_gets_no_spans_and_its_trace_back(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    trace_id, _, parent = fresh_parent(sampled=False)
    (answer,), spans = exchange(tmp_path, exporter, predicting(traceparent=parent))
    assert answer.status_code == 200
    assert spans == []
    assert answer.headers["traceresponse"].startswith(f"00-{trace_id:032x}-")
    assert answer.headers["traceresponse"].endswith("-00")


def test_the_engine_gets_the_traces_of_sampled_requests_only(
    tmp_path: Path, exporter: InMemorySpanExporter, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    requests: list[PredictRequest] = []
    predict = LocalEngine.predict

    def noted(self: LocalEngine, request: PredictRequest) -> Awaitable[PredictResult]:
        requests.append(request)
        return predict(self, request)

    monkeypatch.setattr(LocalEngine, "predict", noted)
    for sampled in (True, False):
        exchange(tmp_path, exporter, predicting(traceparent=fresh_parent(sampled=sampled)[2]))
    assert [bool(one.trace) for one in requests] == [True, False]


def test_broken_parents_start_a_trace_of_their_own(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    broken = ["", "00-0-0-0", f"00-{0:032x}-{0:016x}-01"]
    answers, spans = exchange(
        tmp_path, exporter, *({**predicting(), "headers": {"traceparent": one}} for one in broken)
    )
    assert [one.status_code for one in answers] == [200] * 3
    assert all(span.parent is None for span in spans if span.kind is SpanKind.SERVER)


def test_wrong_headers_of_a_client_write_no_lines(
    tmp_path: Path, exporter: InMemorySpanExporter, caplog: pytest.LogCaptureFixture
) -> None:
    save_tiny(tmp_path)
    *_, parent = fresh_parent()
    wrong = [
        predicting(traceparent=parent, baggage="=," * 1000),
        predicting(traceparent=parent, baggage="x" * 10_000),
        predicting(traceparent=parent, tracestate="=" * 500),
        predicting(traceparent=parent * 20),
    ]
    answers, _ = exchange(tmp_path, exporter, *wrong)
    assert [one.status_code for one in answers] == [200] * 4
    assert [one.name for one in caplog.records if one.name.startswith("opentelemetry")] == []


def test_a_span_has_only_the_beginning_of_a_long_path(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    path = "/" + "x" * 20_000
    (answer,), (span,) = exchange(tmp_path, exporter, {"method": "GET", "url": path})
    assert answer.status_code == 404
    assert span.name == "GET"
    assert (span.attributes or {})["url.path"] == path[:256]


def test_names_of_spans_hold_models_and_routes_but_no_other_text_of_a_client(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    asked = {
        ("GET", "/v1/models"): "GET /v1/models",
        ("GET", "/v1/models/tiny-1d"): "GET /v1/models/tiny-1d",
        ("GET", "/v2/models/tiny-1d"): "GET /v2/models/{model}",
        ("GET", "/v2/models/none"): "GET /v2/models/{model}",
        ("POST", "/v1/models/none:predict"): "POST /v1/models/{name}:predict",
        ("POST", "/v2/systemsharedmemory/region/any/unregister"): (
            "POST /v2/systemsharedmemory/region/{region}/unregister"
        ),
        ("GET", "/v1/models/none"): "GET",
        ("GET", "/none"): "GET",
        ("POST", "/v1/models/tiny-1d:none"): "POST",
    }
    for (method, url), name in asked.items():
        _, (span,) = exchange(tmp_path, exporter, {"method": method, "url": url})
        assert span.name == name
        assert (span.attributes or {})["url.path"] == url


def test_a_failure_in_a_batch_is_an_error_of_its_span(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    module = save_tiny(tmp_path)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.mul_(1e6)
    save_model(tmp_path / "tiny-1d", tiny_config(), module)
    huge = generator().standard_normal(16) * 1e37
    (answer,), spans = exchange(tmp_path, exporter, predicting(huge))
    assert answer.status_code == 422
    batch = by_name(spans)("batch")
    assert batch.status.status_code is StatusCode.ERROR
    assert (batch.attributes or {})["error.type"] == "InvalidField"


def test_refusals_are_traced_and_polls_are_not(
    tmp_path: Path, exporter: InMemorySpanExporter
) -> None:
    save_tiny(tmp_path)
    keys = tmp_path / "keys"
    keys.write_text("somebody 0123456789abcdef\n")
    polls = [{"method": "GET", "url": url} for url in ("/healthz", "/metrics", "/v2/health/ready")]
    answers, spans = exchange(tmp_path, exporter, predicting(), *polls, api_keys_file=keys)
    assert answers[0].status_code == 401
    (span,) = spans
    assert (span.attributes or {})["http.response.status_code"] == 401
