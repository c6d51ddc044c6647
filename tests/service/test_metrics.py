"""Metric names and labels, on which dashboards and alerts depend."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import torch
from prometheus_client import generate_latest

from turbofno.service import metrics as metrics_module
from turbofno.service.http.guard import REASONS as GUARD_REASONS
from turbofno.service.metrics import REFUSED_WITH_MODEL, REFUSED_WITHOUT_MODEL, Metrics
from turbofno.service.processes.metrics_sum import families
from turbofno.service.triton_metrics import DURATIONS, TritonMetrics

NAMES = {
    "turbofno_requests": ("model", "version", "protocol", "code"),
    "turbofno_fields": ("model", "version"),
    "turbofno_gradients": ("model", "version"),
    "turbofno_request_duration_seconds": ("model", "version"),
    "turbofno_decode_seconds": ("model", "version"),
    "turbofno_queue_seconds": ("model", "version"),
    "turbofno_compute_seconds": ("model", "version"),
    "turbofno_encode_seconds": ("model", "version"),
    "turbofno_batch_size": ("model", "version", "backend"),
    "turbofno_batch_fill_ratio": ("model", "version", "backend"),
    "turbofno_batch_queue_depth": ("model", "version", "backend"),
    "turbofno_rollout_steps": ("model", "version"),
    "turbofno_rollouts_ended": ("model", "version", "outcome"),
    "turbofno_rollout_batch_size": ("model", "version"),
    "turbofno_solver_seconds": ("model", "version"),
    "turbofno_queue_depth": ("model", "version"),
    "turbofno_inflight_bytes": (),
    "turbofno_shared_memory_bytes": (),
    "turbofno_prediction_warnings": ("model", "version", "reason"),
    "turbofno_rejections": ("reason", "model"),
    "turbofno_backend_batches": ("model", "backend", "precision"),
    "turbofno_rank_seconds": ("group", "rank"),
    "turbofno_rank_memory_bytes": ("group", "rank"),
    "turbofno_out_of_memory_splits": ("model", "version"),
    "turbofno_lowered_batch_limit": ("model", "version"),
    "turbofno_model_loaded": ("model", "version", "backend", "precision"),
    "turbofno_model_load_seconds": ("model", "version"),
}


def test_every_metric_has_its_name_and_labels() -> None:
    metrics = Metrics()
    found = {
        one._name: one._labelnames for one in vars(metrics).values() if hasattr(one, "_labelnames")
    }
    assert found == NAMES
    metrics.note_trust("m", "1", {"input_distance": [0.5, 2.0], "residual": [0.02]})
    text = generate_latest(metrics.registry).decode()
    assert 'turbofno_input_distance_bucket{le="1.0",model="m",version="1"} 1.0' in text
    assert 'turbofno_residual_count{model="m",version="1"} 1.0' in text
    assert "turbofno_device_memory_bytes" in text
    assert "turbofno_requests_total" in text


def test_trust_signals_are_counted_many_at_a_time_and_all_of_them() -> None:
    metrics = Metrics()
    for _ in range(7):
        metrics.note_trust("m", "1", {"residual": [0.02] * 100})
    assert sum(map(len, metrics._judged.values())) < 512, "memory is bounded without a scrape"
    for count in (700, 701):
        labels = {"model": "m", "version": "1"}
        assert metrics.registry.get_sample_value("turbofno_residual_count", labels) == count
        metrics.note_trust("m", "1", {"residual": [0.02]})


def test_latency_histograms_reach_from_50_microseconds_to_10_seconds() -> None:
    metrics = Metrics()
    metrics.compute.labels("m", "1").observe(60e-6)
    read = metrics.registry.get_sample_value
    name, labels = "turbofno_compute_seconds_bucket", {"model": "m", "version": "1"}
    assert read(name, {**labels, "le": "5e-05"}) == 0
    assert read(name, {**labels, "le": "0.0001"}) == 1
    assert read(name, {**labels, "le": "10.0"}) == 1


def test_device_memory_is_that_of_the_used_device(monkeypatch: pytest.MonkeyPatch) -> None:
    for number, name in enumerate(("memory_allocated", "memory_reserved", "max_memory_allocated")):
        monkeypatch.setattr(torch.cuda, name, lambda device, n=number: 10 * device.index + n)
    metrics = Metrics()
    monkeypatch.setattr(torch.cuda, "host_memory_stats", lambda: {"allocated_bytes.current": 8})
    metrics.device_memory.watch(torch.device("cuda", 1), limit=99, models=lambda: 7)
    read = metrics.registry.get_sample_value
    expected = {"allocated": 10, "reserved": 11, "peak_allocated": 12, "models": 7, "limit": 99}
    for kind, value in expected.items():
        assert read("turbofno_device_memory_bytes", {"kind": kind}) == value
    assert read("turbofno_staging_bytes") == 8


def test_no_device_memory_is_reported_on_a_cpu() -> None:
    lines = generate_latest(Metrics().registry).decode().splitlines()
    assert not [line for line in lines if line.startswith(("turbofno_device_", "turbofno_staging"))]


def test_build_info_has_the_versions() -> None:
    text = generate_latest(Metrics(version="1.2.3").registry).decode()
    assert 'version="1.2.3"' in next(
        line for line in text.splitlines() if line.startswith("turbofno_build_info{")
    )


@pytest.mark.parametrize("number", [1, 2])
def test_a_process_can_have_several_applications(number: int) -> None:
    metrics = [Metrics() for _ in range(number)]
    metrics[0].fields.labels("m", "1").inc()
    values = [
        one.registry.get_sample_value("turbofno_fields_total", {"model": "m", "version": "1"})
        for one in metrics
    ]
    assert values == [1, *[None] * (number - 1)]


def test_a_removed_child_leaves_the_cache() -> None:
    gauge = Metrics().queue_depth
    gauge.labels("a", "1").set(3)
    assert gauge.labels("a", "1") is gauge.labels(model="a", version="1")
    gauge.remove("a", "1")
    assert not gauge.collect()[0].samples
    gauge.labels("a", "1").set(4)
    assert [sample.value for sample in gauge.collect()[0].samples] == [4]


def test_series_of_a_model_exist_before_anything_happens() -> None:
    metrics = Metrics()
    read = metrics.registry.get_sample_value
    assert read("turbofno_rejections_total", {"reason": "unauthorized", "model": ""}) == 0
    metrics.registry.register(TritonMetrics(metrics))
    metrics.serve("m", "1")
    labels = {"model": "m", "version": "1"}
    for reason in ("bounds", "grid", "horizon", "input_distance", "residual"):
        assert read("turbofno_prediction_warnings_total", {**labels, "reason": reason}) == 0
    assert read("turbofno_rejections_total", {"reason": "queue_full", "model": "m"}) == 0
    for name in ("fields", "gradients", "rollout_steps", "out_of_memory_splits"):
        assert read(f"turbofno_{name}_total", labels) == 0
    # The autoscaler's: without it an idle pod has no data.
    assert read("turbofno_queue_depth", labels) == 0
    answered = {**labels, "protocol": "oip", "code": "200"}
    assert read("turbofno_requests_total", answered) == 0
    for name in ("request_success", "count", "exec_count", "pending_request_count"):
        assert read(f"nv_inference_{name}", labels) == 0
    for step in DURATIONS:
        assert read(f"nv_inference_{step}_duration_us", labels) == 0
    for reason in ("REJECTED", "CANCELED", "BACKEND", "OTHER"):
        assert read("nv_inference_request_failure", {**labels, "reason": reason}) == 0
    metrics.reject("queue_full", "m")
    metrics.requests.labels("m", "1", "oip", 429).inc()
    assert read("turbofno_rejections_total", {"reason": "queue_full", "model": "m"}) == 1
    assert read("nv_inference_request_failure", {**labels, "reason": "REJECTED"}) == 1


def test_triton_request_counts_and_durations_cover_the_same_requests() -> None:
    metrics = Metrics()
    metrics.registry.register(TritonMetrics(metrics))
    metrics.serve("m", "1")
    for protocol in ("rollout", "oip"):
        metrics.requests.labels("m", "1", protocol, 200).inc()
    answered = metrics.registry.get_sample_value(
        "nv_inference_request_success", {"model": "m", "version": "1"}
    )
    assert answered == 1


def test_triton_counts_fields_of_predictions_and_gradients_as_it_counts_their_batches() -> None:
    metrics = Metrics()
    metrics.registry.register(TritonMetrics(metrics))
    for predicted, differentiated in ((3, 0), (0, 4)):
        size = predicted + differentiated
        metrics.ran("m", "1", "gemm", "fp32", size, 1.0, 0, predicted, differentiated)
    read = metrics.registry.get_sample_value
    labels = {"model": "m", "version": "1"}
    assert read("nv_inference_exec_count", labels) == 2
    assert read("nv_inference_count", labels) == 7


def test_every_rejection_reason_starts_at_zero() -> None:
    """Each reason in the source is in REFUSED_WITH_MODEL or REFUSED_WITHOUT_MODEL."""
    named = set(GUARD_REASONS.values())
    for file in Path(metrics_module.__file__).parent.rglob("*.py"):
        text = file.read_text()
        named |= set(re.findall(r"\.reject\(\s*\"(\w+)\"", text))
        named |= set(re.findall(r"_Bytes\(\s*\"(\w+)\"", text))
        named |= set(re.findall(r"_(?:full|refuse)\(\s*(?:\d+,\s*)?\"(\w+)\"", text))
    known = {*REFUSED_WITH_MODEL, *REFUSED_WITHOUT_MODEL}
    assert {"unauthorized", "body_too_large", "caller_bytes", "no_http"} <= named <= known


@pytest.mark.parametrize("scrape", ["text", "families"])
def test_a_scrape_of_many_models_does_not_keep_the_event_loop(scrape: str) -> None:
    metrics = Metrics()
    for number in range(1000):
        metrics.serve(f"m{number}", "1")
    work = metrics.text() if scrape == "text" else families(metrics.registry)

    async def main() -> int:
        turns = 0
        running = asyncio.ensure_future(work)
        while not running.done():
            await asyncio.sleep(0)
            turns += 1
        assert running.result()
        return turns

    assert asyncio.run(main()) > 20
    assert asyncio.run(metrics.text()).count(b"\n") == generate_latest(metrics.registry).count(
        b"\n"
    )
