"""Temporarily smaller batches after a batch ran out of memory."""

from __future__ import annotations

import asyncio
import logging

from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batch import BatchReport
from turbofno.service.pipeline.batcher import Batcher
from turbofno.service.pipeline.ticket import Bucket

logger = logging.getLogger(__name__)

SECONDS = 300.0
"""Time after which a full batch is tried again."""


class MemoryLimits:
    """Lowers limits of a batcher for a time. For the event loop only."""

    def __init__(self, batcher: Batcher, metrics: Metrics) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._timers: dict[Bucket, asyncio.TimerHandle] = {}

    def lower(self, bucket: Bucket, report: BatchReport) -> None:
        """After a batch was split, limit batches of its bucket to the size that fit."""
        self._metrics.out_of_memory_splits.labels(bucket.model, bucket.version).inc(report.splits)
        fields = max(1, report.largest_run)
        if bucket in self._timers:
            self._timers[bucket].cancel()
        self._timers[bucket] = asyncio.get_running_loop().call_later(SECONDS, self._lift, bucket)
        self._batcher.lowered[bucket] = fields
        self._show(bucket)
        logger.warning(
            "%d fields of model %s, %s each, did not fit into memory together; batches have at most %d for %g s",
            report.size, bucket.model, "x".join(map(str, bucket.shape)), fields, SECONDS,
        )  # fmt: skip

    def _lift(self, bucket: Bucket) -> None:
        del self._timers[bucket], self._batcher.lowered[bucket]
        self._show(bucket)

    def _show(self, bucket: Bucket) -> None:
        gauge, labels = self._metrics.lowered_batch_limit, (bucket.model, bucket.version)
        limits = [n for other, n in self._batcher.lowered.items() if other[:2] == bucket[:2]]
        if limits:
            gauge.labels(*labels).set(min(limits))
        else:
            gauge.remove(*labels)
