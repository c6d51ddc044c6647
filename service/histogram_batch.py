"""Prometheus histograms that count values in bulk, which is far cheaper than one prometheus_client call for each value."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray
    from prometheus_client import CollectorRegistry


class HistogramBatch(Collector):
    """A Prometheus histogram with labels."""

    def __init__(
        self,
        name: str,
        text: str,
        labels: Sequence[str],
        buckets: Sequence[float],
        *,
        registry: CollectorRegistry,
    ) -> None:
        """`buckets` are ascending upper bounds, without infinity."""
        self._name, self._text, self._labelnames = name, text, tuple(labels)
        self._bounds = np.asarray(buckets, np.float64)
        self._children: dict[tuple[str, ...], Child] = {}
        registry.register(self)

    def labels(self, *values: str) -> Child:
        """The histogram of these label values."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Child(self._bounds)
        return child

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The family without samples, which reserves its name in the registry."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """The family with all samples."""
        family = self._family()
        bounds = [*map(str, self._bounds.tolist()), "+Inf"]
        for values, child in list(self._children.items()):
            counts, total = child.counted()
            family.add_metric(values, list(zip(bounds, counts, strict=True)), total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labelnames)


class Child:
    """The histogram of one set of label values. Not thread-safe: for the event loop only."""

    def __init__(self, bounds: NDArray[np.float64]) -> None:
        self._bounds = bounds
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._total = 0.0

    def observe(self, *values: float) -> None:
        """Add values; one call for many costs little more than for one."""
        array = np.asarray(values, np.float64)
        # bounds are inclusive
        buckets = np.searchsorted(self._bounds, array, side="left")
        self._counts += np.bincount(buckets, minlength=len(self._counts))
        self._total += float(array.sum())

    def counted(self) -> tuple[list[int], float]:
        """Cumulative counts of the buckets, the last of all values, and the sum of the values."""
        return np.cumsum(self._counts).tolist(), self._total
