"""Running totals of one loaded model, in the terms of the protocol's statistics extension."""

from __future__ import annotations

import time
from dataclasses import replace

from turbofno.service.engine.interface import ModelCounters

_NS = 1e9
"""Nanoseconds in a second."""


class ModelTotals:
    """Counts since load. For the event loop only."""

    def __init__(self) -> None:
        self._counters = ModelCounters()

    def note_batch(
        self,
        *,
        requests: int,
        fields: int,
        gather_seconds: float,
        compute_seconds: float,
        scatter_seconds: float,
    ) -> None:
        """Add a batch; the protocol counts its times once for each request in it."""
        counters, compute_ns = self._counters, int(compute_seconds * _NS)
        counters.compute_input_ns += int(gather_seconds * _NS) * requests
        counters.compute_infer_ns += compute_ns * requests
        counters.compute_output_ns += int(scatter_seconds * _NS) * requests
        counters.execution_count += 1
        count, total = counters.batches.get(fields, (0, 0))
        counters.batches[fields] = (count + 1, total + compute_ns)

    def note_success(
        self, requests: int, *, fields: int, seconds: float, queue_seconds: float
    ) -> None:
        """Add answered requests; fields and seconds are their sums."""
        counters = self._counters
        counters.success_count += requests
        counters.success_ns += int(seconds * _NS)
        counters.queue_ns += int(queue_seconds * _NS)
        counters.inference_count += fields
        counters.last_inference_ms = int(time.time() * 1e3)

    def note_failures(self, requests: int, *, seconds: float) -> None:
        """Add requests that failed together after `seconds`."""
        counters = self._counters
        counters.fail_count += requests
        counters.fail_ns += int(seconds * _NS) * requests
        counters.last_inference_ms = int(time.time() * 1e3)

    def snapshot(self) -> ModelCounters:
        return replace(self._counters, batches=dict(self._counters.batches))
