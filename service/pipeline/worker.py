"""The one thread that uses the device: gathers a batch, runs it, and finds the culprit when it fails."""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import torch

from service.errors import InferenceFailed, InvalidField, ServiceError, Unavailable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from service.pipeline.engine import Fields
    from service.pipeline.ticket import ModelOutput, Slice, Ticket

logger = logging.getLogger(__name__)

T = TypeVar("T")

THREAD_NAME = "turbofno-device"


def arithmetic_threads(*, on_cpu: bool) -> int | None:
    """How many threads torch should use where the settings leave it open; None for its own choice.

    Its threads wait for each other without sleeping, so one that shares its core with the event loop
    stalls all of them, and they the event loop.
    """
    if not on_cpu:
        return None
    affinity = getattr(os, "sched_getaffinity", None)
    cores = len(affinity(0)) if affinity is not None else os.cpu_count() or 1
    return max(1, min(torch.get_num_threads(), cores - 1))


def out_of_memory(error: Exception) -> bool:
    """Whether memory ran out, of the device or of the machine (torch has no exception for its CPU allocator)."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


class Worker:
    """Runs callables one after another on one thread, in the order in which they were given."""

    def __init__(self, *, torch_threads: int | None = None) -> None:
        self._torch_threads = torch_threads
        self._work: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # A daemon: a batch that never ends must not keep the process from exiting after its drain time.
        self._thread = threading.Thread(target=self._loop, name=THREAD_NAME, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def submit(self, work: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
        """Run `work` on the thread, then call `done` there with what it returned or raised."""

        def run() -> None:
            result: T | BaseException
            try:
                result = work()
            except BaseException as error:
                result = error
            done(result)

        self._work.put(run)

    def stop(self, *, timeout: float) -> bool:
        """Finish what was submitted, then end the thread. False if it did not end in time (seconds)."""
        self._work.put(None)
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _loop(self) -> None:
        if self._torch_threads is not None:
            torch.set_num_threads(self._torch_threads)
        while (run := self._work.get()) is not None:
            run()
            del run  # else the arrays of a batch would stay in memory until the next one comes


@dataclass(slots=True)
class BatchReport:
    """What became of a batch: an error for each slice that failed; the outputs are in the tickets."""

    slices: Sequence[Slice]
    gather_seconds: float = 0.0
    compute_seconds: float = 0.0
    scatter_seconds: float = 0.0
    backend: str = ""
    errors: dict[int, ServiceError] = field(default_factory=dict)
    """Index of the slice -> why it failed."""

    @property
    def size(self) -> int:
        return sum(part.stop - part.start for part in self.slices)


def run_batch(slices: Sequence[Slice]) -> BatchReport:
    """Run slices of one bucket as one batch. If the model fails, run them singly, so that mates survive."""
    report = BatchReport(slices)
    runnable = slices[0].ticket.runnable
    started = gathered = time.perf_counter()
    output: ModelOutput | None = None
    try:
        batch = gather([part.fields for part in slices])
        gathered = time.perf_counter()
        output = runnable.run(batch)
    except Exception as error:
        if len(slices) == 1:
            report.errors[0] = _explain(slices[0].ticket, error)
        else:
            logger.warning(
                "a batch of %d requests failed on model %s (%s); running them singly",
                len(slices), runnable.name, type(error).__name__,
            )  # fmt: skip
    computed = time.perf_counter()
    report.gather_seconds = gathered - started
    report.compute_seconds = computed - gathered
    if output is not None:
        report.backend = output.backend
        _scatter(report, output)
        report.scatter_seconds = time.perf_counter() - computed
    elif len(slices) > 1:
        _run_singly(report)
    return report


def gather(parts: Sequence[Fields]) -> Fields:
    """One C-contiguous, aligned, writable float32 array of all parts; without a copy if there is one such part."""
    if len(parts) == 1:
        return np.require(parts[0], np.float32, ["C", "A", "W"])
    return np.concatenate(parts, dtype=np.float32)


def _run_singly(report: BatchReport) -> None:
    for index, part in enumerate(report.slices):
        alone = run_batch([part])
        report.compute_seconds += alone.compute_seconds
        report.scatter_seconds += alone.scatter_seconds
        report.backend = report.backend or alone.backend
        if alone.errors:
            report.errors[index] = alone.errors[0]


def _scatter(report: BatchReport, output: ModelOutput) -> None:
    # NaN and infinity survive a sum, so one cheap pass clears most batches; a sum may also overflow by itself.
    with np.errstate(over="ignore", invalid="ignore"):
        all_finite = bool(np.isfinite(output.fields.sum()))
    start = 0
    for index, part in enumerate(report.slices):
        count = part.stop - part.start
        fields = output.fields[start : start + count]
        start += count
        if not all_finite:
            finite = np.isfinite(fields).reshape(count, -1).all(axis=1)
            if not finite.all():
                report.errors[index] = _not_finite(part, int(np.argmin(finite)))
                continue
        part.ticket.backend = output.backend
        if part.whole:
            part.ticket.outputs = fields
            continue
        if part.ticket.outputs is None:
            part.ticket.outputs = np.empty((part.ticket.size, *fields.shape[1:]), np.float32)
        part.ticket.outputs[part.start : part.stop] = fields


def _not_finite(part: Slice, index: int) -> InvalidField:
    return InvalidField(
        f"model {part.ticket.runnable.name!r} gave NaN or infinity for field {part.start + index} of "
        f"{part.ticket.size} (counted from 0): its values are probably far outside the training range; "
        "compare them with the input statistics in the model's description"
    )


def _explain(ticket: Ticket, error: Exception) -> ServiceError:
    runnable, about = ticket.runnable, {"data": {"request_id": ticket.request_id}}
    if out_of_memory(error):
        logger.error("model %s ran out of memory", runnable.name, extra=about)
        return Unavailable(
            f"there is not enough free memory to run model {runnable.name!r} on this request; "
            "send fewer fields or a coarser grid, or retry later",
            retry_after=5.0,
        )
    logger.error("model %s failed", runnable.name, exc_info=error, extra=about)
    return InferenceFailed(
        f"model {runnable.name!r} failed on this request alone; the server's log has the cause"
    )
