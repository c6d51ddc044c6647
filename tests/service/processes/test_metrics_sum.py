"""Merged metrics of several processes equal those of one registry that observed everything."""

from __future__ import annotations

import asyncio
import random

from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from turbofno.service.metrics import Metrics
from turbofno.service.processes.metrics_sum import PER_PROCESS, MetricsSum, families

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(text: bytes) -> Samples:
    """All metrics except per-process ones and creation times."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if not sample.name.startswith(PER_PROCESS) and not sample.name.endswith("_created")
    }


def observe(metrics: list[Metrics]) -> None:
    model = random.choice(["a", "b"])
    seconds, size = random.uniform(1e-5, 20), random.randint(1, 2000)
    for one in metrics:
        one.requests.labels(model, "1", "oip", "200").inc()
        one.fields.labels(model, "1").inc(size)
        one.request_duration.labels(model, "1").observe(seconds)
        one.batch_size.labels(model, "1", "gemm").observe(size)
        one.inflight_bytes.inc(size)


def close(a: Samples, b: Samples) -> bool:
    return a.keys() == b.keys() and all(abs(a[key] - b[key]) <= 1e-9 * abs(b[key]) for key in a)


def test_counters_add_up_and_those_of_dead_processes_remain() -> None:
    truth = Metrics()
    living = {name: Metrics() for name in ("engine-0.1", "frontend-0.1", "frontend-1.1")}
    together = MetricsSum()
    for generation in range(2, 5):
        for _ in range(50):
            observe([truth, random.choice(list(living.values()))])
        for name, metrics in living.items():
            together.update(name.encode(), asyncio.run(families(metrics.registry)))
        assert close(
            samples(asyncio.run(together.text())), samples(generate_latest(truth.registry))
        )
        gone = f"frontend-1.{generation - 1}"
        dead = living.pop(gone)
        truth.inflight_bytes.dec(dead.inflight_bytes._value.get())
        together.retire(gone.encode())
        assert close(
            samples(asyncio.run(together.text())), samples(generate_latest(truth.registry))
        )
        living[f"frontend-1.{generation}"] = Metrics()


def test_per_process_metrics_are_labelled_by_role_and_index() -> None:
    together = MetricsSum()
    for name in ("engine-0.3", "frontend-0.1"):
        metrics = Metrics()
        metrics.model_loaded.labels("a", "1", "gemm", "fp32").set(1)
        metrics.lowered_batch_limit.labels("a", "1").set(len(name))
        together.update(name.encode(), asyncio.run(families(metrics.registry)))
    text = asyncio.run(together.text()).decode()
    assert 'process_resident_memory_bytes{process="engine-0"}' in text
    assert 'process_resident_memory_bytes{process="frontend-0"}' in text
    found = samples(text.encode())
    (loaded,) = (value for (name, _), value in found.items() if name == "turbofno_model_loaded")
    (limit,) = (v for (name, _), v in found.items() if name == "turbofno_lowered_batch_limit")
    assert (loaded, limit) == (1, 10)
