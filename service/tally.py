"""A histogram that takes many values at once: with one call a value, a batch's signals cost more than its answers."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from prometheus_client import CollectorRegistry


class Tally(Collector):
    """A Prometheus histogram with two labels, model and version."""

    def __init__(
        self, name: str, text: str, buckets: Sequence[float], *, registry: CollectorRegistry
    ) -> None:
        """`buckets` are ascending upper bounds, without infinity."""
        self._name, self._text = name, text
        self._bounds = np.asarray(buckets, np.float64)
        self._counts: dict[tuple[str, str], np.ndarray] = {}
        self._sums: dict[tuple[str, str], float] = {}
        self._lock = threading.Lock()
        registry.register(self)

    def add(self, model: str, version: str, values: Sequence[float]) -> None:
        """Count these values."""
        array = np.asarray(values, np.float64)
        # a value that equals a bound is within it
        places = np.searchsorted(self._bounds, array, side="left")
        found = np.bincount(places, minlength=len(self._bounds) + 1)
        key = (model, version)
        with self._lock:
            self._counts[key] = self._counts.get(key, 0) + found
            self._sums[key] = self._sums.get(key, 0.0) + float(array.sum())

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The family without samples, which claims its name in the registry."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Everything so far."""
        family = self._family()
        bounds = [*map(str, self._bounds.tolist()), "+Inf"]
        with self._lock:
            for key, counts in self._counts.items():
                upto = np.cumsum(counts).tolist()
                family.add_metric(key, list(zip(bounds, upto, strict=True)), self._sums[key])
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=("model", "version"))
