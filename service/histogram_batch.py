"""Histograms whose values are counted in bulk: a call a value into prometheus_client's costs a request more than its batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray
    from prometheus_client import CollectorRegistry

_MOST_UNCOUNTED = 4096


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
        """The counts under these label values."""
        child = self._children.get(values)
        if child is None:
            child = self._children[values] = Child(self._bounds)
        return child

    def describe(self) -> Iterator[HistogramMetricFamily]:
        """The family without samples, which claims its name in the registry."""
        yield self._family()

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Everything so far."""
        family = self._family()
        bounds = [*map(str, self._bounds.tolist()), "+Inf"]
        for values, child in list(self._children.items()):
            upto, total = child.counted()
            family.add_metric(values, list(zip(bounds, upto, strict=True)), total)
        yield family

    def _family(self) -> HistogramMetricFamily:
        return HistogramMetricFamily(self._name, self._text, labels=self._labelnames)


class Child:
    """One histogram. For one thread, the event loop's: others would count the same values twice."""

    def __init__(self, bounds: NDArray[np.float64]) -> None:
        self._bounds = bounds
        self._uncounted: list[float] = []
        self._counts = np.zeros(len(bounds) + 1, np.int64)
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Take in a value."""
        self._uncounted.append(value)
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self._count()

    def observe_all(self, values: Iterable[float]) -> None:
        """Take in several."""
        self._uncounted.extend(values)
        if len(self._uncounted) >= _MOST_UNCOUNTED:
            self._count()

    def counted(self) -> tuple[list[int], float]:
        """How many values are within each bound, and in all, and their sum."""
        self._count()
        return np.cumsum(self._counts).tolist(), self._total

    def _count(self) -> None:
        values = np.asarray(self._uncounted, np.float64)
        self._uncounted.clear()
        # a value that equals a bound is within it
        places = np.searchsorted(self._bounds, values, side="left")
        self._counts += np.bincount(places, minlength=len(self._counts))
        self._total += float(values.sum())
