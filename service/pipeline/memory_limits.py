"""Temporarily smaller batches after a batch ran out of memory."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.batch import BatchReport
    from turbofno.service.pipeline.batcher import Batcher
    from turbofno.service.pipeline.ticket import Bucket

logger = logging.getLogger(__name__)

SECONDS = 300.0
"""Time after which a full batch is tried again."""


class MemoryLimits:
    """The lowered limits of a batcher, by bucket. For the event loop only."""

    def __init__(self, batcher: Batcher, metrics: Metrics) -> None:
        self._batcher = batcher
        self._metrics = metrics
        self._lowered: dict[Bucket, tuple[int, asyncio.TimerHandle]] = {}

    def lower(self, bucket: Bucket, report: BatchReport) -> None:
        """After a batch was split, limit batches of its bucket to the size that fit."""
        self._metrics.out_of_memory_splits.labels(bucket.model, bucket.version).inc(report.splits)
        fields = max(1, report.largest_run)
        if bucket in self._lowered:
            self._lowered.pop(bucket)[1].cancel()
        timer = asyncio.get_running_loop().call_later(SECONDS, self._lift, bucket)
        self._lowered[bucket] = fields, timer
        self._batcher.lower_limit(bucket, fields)
        self._show(bucket)
        logger.warning(
            "%d fields of model %s, %s each, did not fit into memory together; batches have at most %d for %g s",
            report.size, bucket.model, "x".join(map(str, bucket.shape)), fields, SECONDS,
        )  # fmt: skip

    def _lift(self, bucket: Bucket) -> None:
        del self._lowered[bucket]
        self._batcher.restore_limit(bucket)
        self._show(bucket)

    def _show(self, bucket: Bucket) -> None:
        gauge, labels = self._metrics.lowered_batch_limit, (bucket.model, bucket.version)
        limits = [fields for other, (fields, _) in self._lowered.items() if other[:2] == bucket[:2]]
        if limits:
            gauge.labels(*labels).set(min(limits))
        else:
            gauge.remove(*labels)
