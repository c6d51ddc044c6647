"""Running totals of one loaded model, in the terms of the protocol's statistics extension."""

from __future__ import annotations

import time

from turbofno.service.engine.interface import ModelCounters


def _ns(seconds: float) -> int:
    return round(seconds * 1e9)


class ModelTotals:
    """Counts since load. Used from the event loop only."""

    def __init__(self) -> None:
        self._success_count = self._success_ns = self._fail_count = self._fail_ns = 0
        self._queue_ns = self._input_ns = self._infer_ns = self._output_ns = 0
        self._inference_count = self._execution_count = self._last_ms = 0
        self._batches: dict[int, tuple[int, int]] = {}

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
        compute_ns = _ns(compute_seconds)
        self._input_ns += _ns(gather_seconds) * requests
        self._infer_ns += compute_ns * requests
        self._output_ns += _ns(scatter_seconds) * requests
        self._execution_count += 1
        count, total = self._batches.get(fields, (0, 0))
        self._batches[fields] = (count + 1, total + compute_ns)

    def note_success(
        self, requests: int, *, fields: int, seconds: float, queue_seconds: float
    ) -> None:
        """Add answered requests, all of their fields and seconds together."""
        self._success_count += requests
        self._success_ns += _ns(seconds)
        self._queue_ns += _ns(queue_seconds)
        self._inference_count += fields
        self._last_ms = round(time.time() * 1e3)

    def note_failure(self, *, seconds: float) -> None:
        """Add a request that got an error after `seconds`."""
        self._fail_count += 1
        self._fail_ns += _ns(seconds)
        self._last_ms = round(time.time() * 1e3)

    def snapshot(self) -> ModelCounters:
        """The totals as they are now."""
        return ModelCounters(
            success_count=self._success_count,
            success_ns=self._success_ns,
            fail_count=self._fail_count,
            fail_ns=self._fail_ns,
            queue_ns=self._queue_ns,
            compute_input_ns=self._input_ns,
            compute_infer_ns=self._infer_ns,
            compute_output_ns=self._output_ns,
            inference_count=self._inference_count,
            execution_count=self._execution_count,
            last_inference_ms=self._last_ms,
            batches=dict(self._batches),
        )
