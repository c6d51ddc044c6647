"""The queue's event-loop side: takes requests, keeps the device busy, gives every ticket exactly one outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from service.errors import DeadlineExceeded, InferenceFailed, ServiceError, Unavailable
from service.pipeline.batcher import Batcher, Policy
from service.pipeline.engine import PredictResult
from service.pipeline.ticket import Ticket
from service.pipeline.worker import BatchReport, Worker, arithmetic_threads, run_batch
from service.runtime.repository import resolve_device
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.metrics import Metrics
    from service.pipeline.admission import QueueSlots
    from service.pipeline.engine import PredictRequest
    from service.pipeline.ticket import Runnable, Slice
    from service.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

STOP_SECONDS = 1.0
"""How long the device thread may take to end once it has nothing left to do."""


class Scheduler:
    """Hands one thing at a time to the worker: while it runs the queue gathers, and stays in one place.

    All methods are for the event loop that `start` ran on.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        slots: QueueSlots,
        *,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        self._metrics = metrics
        self._slots = slots
        self._on_batch = on_batch
        self._max_batch = settings.max_batch_size
        self._batcher = Batcher(Policy.of(settings))
        self._worker = Worker(
            torch_threads=settings.torch_threads
            or arithmetic_threads(on_cpu=resolve_device(settings.device).type == "cpu")
        )
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._live: set[Ticket] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._busy = False
        self._closed = False
        self._pump_scheduled = False
        self._wake: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start the device thread."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def submit(self, runnable: Runnable, request: PredictRequest) -> PredictResult:
        """Queue the fields and wait for the answer. Cancelling the caller drops what has not started.

        Raises:
            QueueFull, DeadlineExceeded, Unavailable (closed, or out of memory), InvalidField (the output
                is not finite), InferenceFailed.
        """
        if self._closed:
            raise _closed()
        now = time.monotonic()
        self._slots.take(runnable.name, runnable.version, len(request.fields))
        ticket = Ticket(
            runnable,
            request.fields,
            now,
            self._loop.create_future(),
            priority=request.priority,
            deadline=request.deadline,
            request_id=request.request_id,
        )
        self._live.add(ticket)
        self._idle.clear()
        self._batcher.add(ticket)
        timer = (
            None
            if ticket.deadline is None
            else self._loop.call_later(max(0.0, ticket.deadline - now), self._expire, ticket)
        )
        self._schedule_pump()
        try:
            return await ticket.outcome
        finally:
            if timer is not None:
                timer.cancel()
            self._drop(ticket)
            self._live.discard(ticket)
            if not self._live:
                self._idle.set()

    async def run_on_device(self, work: Callable[[], T]) -> T:
        """Run `work` on the device thread, between batches and ahead of the queue. Raises what it raises."""
        if self._closed:
            raise _closed()
        future: asyncio.Future[T] = self._loop.create_future()
        self._jobs.append((work, future))
        self._schedule_pump()
        return await future

    async def close(self, *, within: float) -> None:
        """Take nothing new, finish what was taken within that many seconds, fail the rest, end the thread."""
        self._closed = True
        try:
            async with asyncio.timeout(within):
                await self._idle.wait()
        except TimeoutError:
            logger.warning("%d requests were unfinished when the drain time ended", len(self._live))
        for ticket in list(self._live):
            self._fail(ticket, _closed())
        while self._jobs:
            _, future = self._jobs.popleft()
            if not future.done():
                future.set_exception(_closed())
        if not await asyncio.to_thread(self._worker.stop, timeout=STOP_SECONDS):
            logger.warning("the device thread is still busy and was left behind")

    def _schedule_pump(self) -> None:
        # Not at once: requests that became ready in the same turn of the loop then share a batch.
        if not (self._busy or self._pump_scheduled):
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if self._busy:
            return
        while self._jobs:
            work, future = self._jobs.popleft()
            if not future.done():
                self._hand_over(work, partial(self._finish_job, future))
                return
        now = time.monotonic()
        decision = self._batcher.next_batch(now)
        for ticket in decision.expired:
            self._expire(ticket)
        if decision.batch:
            for part in decision.batch:
                ticket = part.ticket
                self._slots.release(
                    ticket.runnable.name, ticket.runnable.version, part.stop - part.start
                )
                if ticket.started is None:
                    ticket.started = now
            self._hand_over(
                partial(run_batch, decision.batch), partial(self._finish_batch, decision.batch)
            )
        elif decision.wake_at is not None:
            self._wake = self._loop.call_later(max(0.0, decision.wake_at - now), self._pump)

    def _hand_over(
        self, work: Callable[[], T], finish: Callable[[T | BaseException], None]
    ) -> None:
        self._busy = True

        def done(result: T | BaseException) -> None:
            try:
                self._loop.call_soon_threadsafe(self._after, finish, result)
            except RuntimeError:
                logger.warning("a batch ended after the service had stopped; nobody waits for it")

        self._worker.submit(work, done)

    def _after(
        self, finish: Callable[[T | BaseException], None], result: T | BaseException
    ) -> None:
        self._busy = False
        try:
            finish(result)
        finally:
            self._pump()

    def _finish_job(self, future: asyncio.Future[T], result: T | BaseException) -> None:
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _finish_batch(self, slices: tuple[Slice, ...], result: BatchReport | BaseException) -> None:
        if isinstance(result, BaseException):
            logger.error("the device thread failed on a batch", exc_info=result)
            for part in slices:
                name = part.ticket.runnable.name
                self._fail(
                    part.ticket,
                    InferenceFailed(
                        f"model {name!r} failed on the batch of this request; the server's log has the cause"
                    ),
                )
            return
        for index, part in enumerate(slices):
            self._finish_slice(part, result, result.errors.get(index))
        self._record(result)

    def _finish_slice(self, part: Slice, report: BatchReport, error: ServiceError | None) -> None:
        ticket = part.ticket
        ticket.done += part.stop - part.start
        ticket.compute_seconds += report.compute_seconds
        ticket.batch_sizes.append(report.size)
        if error is not None:
            self._fail(ticket, error)
        elif ticket.done == ticket.size and not ticket.settled:
            assert ticket.outputs is not None
            assert ticket.started is not None
            ticket.outcome.set_result(
                PredictResult(
                    model=ticket.runnable.name,
                    version=ticket.runnable.version,
                    fields=ticket.outputs,
                    queue_seconds=ticket.started - ticket.arrival,
                    compute_seconds=ticket.compute_seconds,
                    batch_sizes=tuple(ticket.batch_sizes),
                    backend=ticket.backend,
                )
            )
            self._metrics.fields.labels(
                model=ticket.runnable.name, version=ticket.runnable.version
            ).inc(ticket.size)

    def _record(self, report: BatchReport) -> None:
        runnable = report.slices[0].ticket.runnable
        model, version, backend = runnable.name, runnable.version, report.backend or "none"
        size = report.size
        metrics = self._metrics
        metrics.batch_size.labels(model, version, backend).observe(size)
        metrics.batch_fill_ratio.labels(model, version, backend).observe(size / self._max_batch)
        metrics.batch_queue_depth.labels(model, version, backend).observe(
            self._slots.waiting(model, version)
        )
        metrics.backend_batches.labels(model, backend, "fp32").inc()
        self._slots.note_batch(size, report.compute_seconds)
        self._on_batch(report)

    def _expire(self, ticket: Ticket) -> None:
        if ticket.taken or ticket.settled:
            return
        self._metrics.rejections.labels(reason="deadline").inc()
        waited = time.monotonic() - ticket.arrival
        self._fail(
            ticket,
            DeadlineExceeded(
                f"the request waited {waited:.3g} s in the queue and its deadline passed before it ran; "
                "give it more time, or retry when there is less load (the default deadline is "
                f"{env_name('request_deadline_seconds')})"
            ),
        )

    def _fail(self, ticket: Ticket, error: ServiceError) -> None:
        if not ticket.settled:
            ticket.outcome.set_exception(error)

    def _drop(self, ticket: Ticket) -> None:
        """Take what has not been handed over out of the queue and give its slots back."""
        if waiting := ticket.waiting:
            self._batcher.discard(ticket)
            ticket.taken = ticket.size
            self._slots.release(ticket.runnable.name, ticket.runnable.version, waiting)


def _closed() -> Unavailable:
    return Unavailable(
        "the service stopped before this request could run; retry, another instance may answer",
        retry_after=1.0,
    )
