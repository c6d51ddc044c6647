"""Which batches start on the event loop of a GPU's engine: those of which one like them started in short time.

Another thread would wait for the interpreter lock at each call of a start.
"""

from __future__ import annotations

from turbofno.service.pipeline.batch import BatchReport
from turbofno.service.pipeline.ticket import Bucket

_Group = tuple[Bucket, int]
"""Bucket, and power of two of the size: mostly, one CUDA graph."""

SHORT_SECONDS = 0.005
"""A short start takes no more CPU time."""
LONG_SECONDS = 0.05
"""What takes longer than this, with waits, is not short."""
_MOST_GROUPS = 256
"""Most groups of batches whose starts are known to be short."""


class ShortStarts:
    """Groups of batches whose last start was short. For the event loop only."""

    def __init__(self) -> None:
        self._known: dict[_Group, float] = {}
        """The device seconds of the last batch of each."""

    def seconds(self, batch: BatchReport) -> float | None:
        """The device seconds that this batch is expected to take, if its start is expected to be short; else None."""
        return self._known.get(_group(batch))

    def note(self, report: BatchReport) -> None:
        """Learn from a batch that has ended."""
        group = _group(report)
        if report.largest_run < report.size:
            # Memory ran out, and the graphs of all models were freed; or the model failed.
            self.forget()
        elif report.start_cpu_seconds > SHORT_SECONDS or report.start_seconds > LONG_SECONDS:
            # A graph that was captured may have evicted others of this model.
            runnable = group[0].runnable
            known = self._known.items()
            self._known = {one: took for one, took in known if one[0].runnable != runnable}
        elif group[0].vjp is None and report.ran.execution != "slabs":
            # Of gradients a later start may take long; that of fields cut over several devices waits for these.
            if len(self._known) == _MOST_GROUPS and group not in self._known:
                self.forget()
            self._known[group] = report.device_seconds

    def forget(self) -> None:
        """Expect nothing any more: CUDA graphs may have been freed."""
        self._known.clear()


def _group(batch: BatchReport) -> _Group:
    return batch.slices[0].ticket.kind.bucket, (batch.size - 1).bit_length()
