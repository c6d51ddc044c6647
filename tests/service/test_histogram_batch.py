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
        histogram_batch.labels(model, "1").observe(*values)
        histogram_batch.labels(model, "1").observe(0.5)
        for value in (*values, 0.5):
            histogram.labels(model, "1").observe(value)
    found, expected = samples(ours), samples(theirs)
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_allclose(found[key], value, rtol=1e-12)
