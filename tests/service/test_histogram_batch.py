"""HistogramBatch has the same samples as prometheus_client's Histogram."""

from __future__ import annotations

import numpy as np
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from tests.draws import generator
from turbofno.service.histogram_batch import HistogramBatch

BOUNDS = (0.25, 1.0, 3.0)


def samples(registry: CollectorRegistry) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    families = text_string_to_metric_families(generate_latest(registry).decode())
    return {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in families
        for one in family.samples
        if not one.name.endswith("_created")
    }


def test_the_samples_equal_those_of_a_histogram() -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    histogram_batch = HistogramBatch(
        "signal", "A signal.", ("model", "version"), BOUNDS, registry=ours
    )
    histogram = Histogram(
        "signal", "A signal.", ("model", "version"), buckets=BOUNDS, registry=theirs
    )
    assert samples(ours) == {}
    rng = generator()
    for model in ("a", "b", "a"):
        values = [*BOUNDS, 1e6, *rng.exponential(1.0, rng.integers(0, 9)).tolist()]
        histogram_batch.labels(model, "1").observe_all(values)
        histogram_batch.labels(model, "1").observe(0.5)
        for value in (*values, 0.5):
            histogram.labels(model, "1").observe(value)
    found, expected = samples(ours), samples(theirs)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12)


def test_values_are_counted_without_a_scrape() -> None:
    registry = CollectorRegistry()
    histogram_batch = HistogramBatch("signal", "A signal.", ("model",), BOUNDS, registry=registry)
    child = histogram_batch.labels("m")
    for _ in range(10_000):
        child.observe(1.0)
    child.observe_all([2.0] * 10_000)
    assert len(child._pending) < 10_000, "they would pile up where nobody scrapes"
    assert registry.get_sample_value("signal_count", {"model": "m"}) == 20_000
    assert registry.get_sample_value("signal_bucket", {"model": "m", "le": "1.0"}) == 10_000
    assert registry.get_sample_value("signal_sum", {"model": "m"}) == 30_000
