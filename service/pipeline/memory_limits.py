"""Temporarily smaller batches after a batch ran out of memory."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batch import BatchReport
from turbofno.service.pipeline.batcher import Batcher
from turbofno.service.pipeline.ticket import Bucket

logger = logging.getLogger(__name__)

SHORTEST, LONGEST = 10.0, 300.0
"""Seconds after which full batches run again. Each time is twice the one before, if that was not enough: another process may
need the memory for a moment, but every batch that does not fit costs the graphs of all models."""


class MemoryLimits:
    """Lowers limits of a batcher for a time. For the event loop only."""

    def __init__(self, batcher: Batcher, metrics: Metrics) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._timers: dict[Bucket, tuple[asyncio.TimerHandle, float]] = {}
        """With their seconds. The first one lifts a limit, the next forgets it, once full batches have fitted for as long."""

    def lower(self, bucket: Bucket, report: BatchReport) -> None:
        """After a batch was split, limit batches of its bucket to the size that fit."""
        self._metrics.out_of_memory_splits.labels(bucket.model, bucket.version).inc(report.splits)
        fields = max(1, report.largest_run)
        seconds = SHORTEST
        if bucket in self._timers:
            timer, seconds = self._timers[bucket]
            timer.cancel()
            if bucket not in self._batcher.lowered:
                seconds = min(2 * seconds, LONGEST)
        self._call_later(seconds, self._lift, bucket)
        self._batcher.lowered[bucket] = fields
        self._show(bucket)
        logger.warning(
            "%d fields of model %s, %s each, did not fit into memory together; batches have at most %d for %g s",
            report.size, bucket.model, "x".join(map(str, bucket.shape)), fields, seconds,
        )  # fmt: skip

    def _call_later(
        self, seconds: float, function: Callable[[Bucket], object], bucket: Bucket
    ) -> None:
        timer = asyncio.get_running_loop().call_later(seconds, function, bucket)
        self._timers[bucket] = timer, seconds

    def _lift(self, bucket: Bucket) -> None:
        del self._batcher.lowered[bucket]
        self._call_later(self._timers[bucket][1], self._timers.pop, bucket)
        self._show(bucket)

    def _show(self, bucket: Bucket) -> None:
        gauge, labels = self._metrics.lowered_batch_limit, (bucket.model, bucket.version)
        limits = [n for other, n in self._batcher.lowered.items() if other[:2] == bucket[:2]]
        if limits:
            gauge.labels(*labels).set(min(limits))
        else:
            gauge.remove(*labels)
