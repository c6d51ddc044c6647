"""The queue's event-loop side: takes requests, keeps the device busy, gives every ticket exactly one outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from service.errors import DeadlineExceeded, DeviceLost, InferenceFailed, ServiceError, Unavailable
from service.pipeline.batch import BatchReport, start_batch
from service.pipeline.batcher import Batcher, Policy
from service.pipeline.engine import PredictResult
from service.pipeline.memory_limits import MemoryLimits
from service.pipeline.ticket import Ticket
from service.pipeline.worker import Worker, cores
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from service.metrics import Metrics
    from service.pipeline.engine import PredictRequest
    from service.pipeline.queue_slots import QueueSlots
    from service.pipeline.ticket import Runnable, Slice
    from service.settings import Settings

logger = logging.getLogger(__name__)

T = TypeVar("T")

SHORT_SECONDS = 0.004
"""On a single core a batch that should take no longer runs on the event loop: in another thread it would take as much
of the core from it, and each of the two wait for the other besides."""
STOP_SECONDS = 1.0
"""How long the device threads may take to end once they have nothing left to do."""


class Scheduler:
    """Hands batches to the worker: while they run the queue gathers, and stays in one place.

    An idle device gets what is there, and so does one that runs a single batch, where they may overlap: the next is
    ready when that ends. Beyond it only full batches go early: a part batch gains more from company. All methods are
    for the event loop that `start` ran on. On a single core short batches run there too.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        slots: QueueSlots,
        *,
        max_in_flight: int = 1,
        prepare_thread: Callable[[], None] = lambda: None,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
    ) -> None:
        """`max_in_flight` batches may be on the device at once; `prepare_thread` runs on each of its threads."""
        self._metrics = metrics
        self._slots = slots
        self._on_batch = on_batch
        self._max_batch = settings.max_batch_size
        self._batcher = Batcher(Policy.of(settings))
        self._memory_limits = MemoryLimits(self._batcher, metrics)
        self._worker = Worker(overlap=max_in_flight > 1, prepare_thread=prepare_thread)
        self._max_in_flight = max_in_flight
        self._one_core = max_in_flight == 1 and cores() == 1
        self._in_flight = 0
        self._jobs: deque[tuple[Callable[[], Any], asyncio.Future[Any]]] = deque()
        self._job_is_next = True
        """Device threads on which a batch could run as well."""
        self._live: set[Ticket] = set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._closed = False
        self._pump_scheduled = False
        self._wake: asyncio.TimerHandle | None = None
        self.failure = ""
        """Why the device can run nothing more, or empty."""

    def start(self) -> None:
        """Start the device thread."""
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    async def submit(self, runnable: Runnable, request: PredictRequest) -> PredictResult:
        """Queue the fields and wait for the answer. Cancelling the caller drops what has not started.

        Raises:
            QueueFull, PayloadTooLarge (both also by the caller's own limit), DeadlineExceeded, Unavailable
                (closed, or out of memory), InvalidField (the output is not finite), InferenceFailed.
        """
        self._refuse_if_over()
        ticket = Ticket(
            runnable,
            request.fields,
            time.monotonic(),
            self._loop.create_future(),
            priority=request.priority,
            deadline=request.deadline,
            request_id=request.request_id,
            trace=request.trace,
            answer=request.answer,
            vjp=request.vjp,
        )
        with self._slots.in_work(request):
            self._slots.take(ticket)
            return await self._outcome(ticket)

    async def _outcome(self, ticket: Ticket) -> PredictResult:
        self._live.add(ticket)
        self._idle.clear()
        self._batcher.add(ticket)
        timer = (
            None
            if ticket.deadline is None
            else self._loop.call_later(
                max(0.0, ticket.deadline - ticket.arrival), self._expire, ticket
            )
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
            if ticket.under_way and ticket.answer is not None:
                # Cancelled, or failed, while a batch may still write there.
                ticket.landed = self._loop.create_future()
                await ticket.landed

    async def run_on_device(self, work: Callable[[], T]) -> T:
        """Run `work` on the device thread, in turns with the batches if there are any. Raises what it raises."""
        self._refuse_if_over()
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
        if self._in_flight < self._max_in_flight and not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        while self._in_flight < self._max_in_flight and self._hand_over_next():
            pass

    def _hand_over_next(self) -> bool:
        """Give the worker its next job or batch, in turns. False if there is none to run now."""
        for job in (self._job_is_next, not self._job_is_next):
            if self._hand_over_job() if job else self._hand_over_batch():
                self._job_is_next = not job
                return True
        return False

    def _hand_over_job(self) -> bool:
        while self._jobs:
            work, future = self._jobs.popleft()
            if not future.done():
                self._hand_over(partial(_job, work), partial(self._finish_job, future))
                return True
        return False

    def _hand_over_batch(self) -> bool:
        now = time.monotonic()
        decision = self._batcher.next_batch(now, full_only=self._in_flight > 1)
        for ticket in decision.expired:
            self._expire(ticket)
        if decision.batch:
            first = decision.batch[0].ticket
            count = sum(part.stop - part.start for part in decision.batch)
            expected = self._slots.start_batch(first.runnable.name, count * first.field_bytes, now)
            for part in decision.batch:
                ticket = part.ticket
                ticket.under_way += 1
                self._slots.release(ticket, part.stop - part.start)
                if ticket.started is None:
                    ticket.started = now
            work, finish = (
                partial(start_batch, decision.batch),
                partial(self._finish_batch, decision.batch),
            )
            if self._one_core and 0.0 < expected <= SHORT_SECONDS and first.vjp is None:
                self._run_here(work, finish)
                return False
            self._hand_over(work, finish)
            return True
        if decision.wake_at is not None:
            self._wake = self._loop.call_later(max(0.0, decision.wake_at - now), self._pump)
        return False

    def _hand_over(
        self, work: Callable[[], Callable[[], T]], finish: Callable[[T | BaseException], None]
    ) -> None:
        self._in_flight += 1

        def done(result: T | BaseException) -> None:
            try:
                self._loop.call_soon_threadsafe(self._after, finish, result)
            except RuntimeError:
                logger.warning("a batch ended after the service had stopped; nobody waits for it")

        self._worker.submit(work, done)

    def _run_here(
        self, work: Callable[[], Callable[[], T]], finish: Callable[[T | BaseException], None]
    ) -> None:
        """As `_hand_over`, and wait for it. What came meanwhile is looked at before the next batch."""
        self._in_flight += 1
        result: T | BaseException
        try:
            result = work()()
        except Exception as error:
            result = error
        self._in_flight -= 1
        self._schedule_pump()
        finish(result)

    def _after(
        self, finish: Callable[[T | BaseException], None], result: T | BaseException
    ) -> None:
        self._in_flight -= 1
        try:
            finish(result)
        finally:
            self._pump()

    def _finish_job(self, future: asyncio.Future[T], result: T | BaseException) -> None:
        if isinstance(result, DeviceLost):
            self._give_up(result.message)
        if future.done():
            return
        if isinstance(result, BaseException):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _finish_batch(self, slices: tuple[Slice, ...], result: BatchReport | BaseException) -> None:
        self._slots.end_batch(time.monotonic())
        for part in slices:
            _land(part.ticket)
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
        size = result.size
        for index, part in enumerate(slices):
            self._finish_slice(part, result, size, result.errors.get(index))
        self._record(result)
        if result.splits:
            self._memory_limits.lower(slices[0].ticket.bucket, result)
        for error in result.errors.values():
            if isinstance(error, DeviceLost):
                self._give_up(error.message)

    def _finish_slice(
        self, part: Slice, report: BatchReport, size: int, error: ServiceError | None
    ) -> None:
        ticket = part.ticket
        ticket.done += part.stop - part.start
        ticket.compute_seconds += report.compute_seconds
        ticket.batch_sizes.append(size)
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
                    precision=ticket.precision,
                    trust={name: tuple(values) for name, values in ticket.trust.items()},
                )
            )
            answered = self._metrics.fields if ticket.vjp is None else self._metrics.gradients
            answered.labels(ticket.runnable.name, ticket.runnable.version).inc(ticket.size)

    def _record(self, report: BatchReport) -> None:
        runnable = report.runnable
        model, version, backend = runnable.name, runnable.version, report.backend or "none"
        size = report.size
        metrics = self._metrics
        metrics.batch_size.labels(model, version, backend).observe(size)
        metrics.batch_fill_ratio.labels(model, version, backend).observe(size / self._max_batch)
        metrics.batch_queue_depth.labels(model, version, backend).observe(
            self._slots.waiting(model, version)
        )
        metrics.backend_batches.labels(model, backend, report.precision).inc()
        metrics.note_trust(model, version, report.trust)
        ticket = report.slices[0].ticket
        room = self._batcher.limit(ticket) * ticket.field_bytes
        self._slots.note_batch(model, room, report.device_seconds)
        self._batcher.note_ran(report.slices, report.device_seconds)
        self._on_batch(report)

    def _give_up(self, failure: str) -> None:
        """The device is lost: fail everything with that, now and from now on."""
        self.failure = failure
        for ticket in list(self._live):
            self._fail(ticket, self._lost())
        for _, future in self._jobs:
            if not future.done():
                future.set_exception(self._lost())
        self._jobs.clear()

    def _lost(self) -> DeviceLost:
        return DeviceLost(self.failure, retry_after=1.0)

    def _refuse_if_over(self) -> None:
        if self.failure:
            raise self._lost()
        if self._closed:
            raise _closed()

    def _expire(self, ticket: Ticket) -> None:
        if ticket.taken or ticket.settled:
            return
        self._metrics.reject("deadline", ticket.runnable.name)
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
            self._slots.release(ticket, waiting)


def _job(work: Callable[[], T]) -> Callable[[], T]:
    """All of a job happens in its first step."""
    result = work()
    return lambda: result


def _land(ticket: Ticket) -> None:
    """The device threads are done with one of its slices."""
    ticket.under_way -= 1
    if not ticket.under_way and ticket.landed is not None and not ticket.landed.done():
        ticket.landed.set_result(None)


def _closed() -> Unavailable:
    return Unavailable(
        "the service stopped before this request could run; retry, another instance may answer",
        retry_after=1.0,
    )
