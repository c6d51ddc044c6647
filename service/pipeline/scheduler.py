"""The event-loop side of the queue: accepts tickets, keeps the device busy, gives every ticket exactly one outcome."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextvars import Context
from functools import partial
from typing import TypeAlias, TypeVar

from turbofno.service.engine.interface import NO_FIELDS, PredictResult
from turbofno.service.errors import (
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    ServiceError,
    Unavailable,
)
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batch import Batch, BatchReport
from turbofno.service.pipeline.batcher import Batcher, Policy
from turbofno.service.pipeline.deadlines import Deadlines
from turbofno.service.pipeline.jobs import Job, Jobs
from turbofno.service.pipeline.memory_limits import MemoryLimits
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.short_starts import ShortStarts
from turbofno.service.pipeline.ticket import CANCELLED, Slice, Ticket, by_kind
from turbofno.service.pipeline.worker import Start, Worker
from turbofno.service.settings import Settings, env_name
from turbofno.service.system import cores

logger = logging.getLogger(__name__)

T = TypeVar("T")

Finish: TypeAlias = Callable[[T | BaseException, float], None]
"""Receives the result of work, or its error, and the seconds that it took on the device."""

SHORT_SECONDS = 0.01
"""On a single core, a batch expected to take no longer runs on the event loop: another thread would use the same core
and add thread switches."""
ALONE_SECONDS = 0.001
"""On a GPU, the event loop waits for the batch of a request that comes alone, if it is expected to take no longer: to hand it
to another thread and back takes as long as a small network."""
STOP_SECONDS = 1.0
"""Seconds that the device threads may take to end once idle."""


class Scheduler:
    """Dispatches batches to the worker; while they run, tickets accumulate in the queue.

    A device with at most one batch gets whatever waits, so that with overlap the next batch is ready when that ends.
    Further batches are dispatched only if full: a partial one gains more from waiting. Jobs alternate with batches. All
    methods are for the event loop that called `start`. On a single core, short batches run there too, and on a GPU those of
    requests that come alone.
    """

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        capacity: QueueCapacity,
        *,
        max_in_flight: int = 1,
        prepare_thread: Callable[[], None] = lambda: None,
        on_batch: Callable[[BatchReport], None] = lambda _: None,
        on_ended: Callable[[list[Ticket]], None] = lambda _: None,
    ) -> None:
        """`max_in_flight` batches may be on the device at once; `prepare_thread` runs on each thread that starts batches.

        `on_batch` is called after each batch; `on_ended` once for each ticket, after its outcome was set. Those who wait for
        the outcomes run before both.
        """
        self._metrics = metrics
        self._capacity = capacity
        self._on_batch = on_batch
        self._on_ended = on_ended
        self.on_free: Callable[[], None] = lambda: None
        """Called when the device has room for a batch again, to submit tickets that were held back meanwhile."""
        self._max_batch = settings.max_batch_size
        self._batcher = Batcher(Policy.of(settings))
        self._memory_limits = MemoryLimits(self._batcher, metrics)
        self._worker = Worker(overlap=max_in_flight > 1, prepare_thread=prepare_thread)
        self._max_in_flight = max_in_flight
        self._one_core = max_in_flight == 1 and cores() == 1
        self._short_starts = ShortStarts()
        self._in_flight = 0
        self._jobs = Jobs()
        self._job_is_next = True
        self._free_since = 0.0
        """Time at which the last work on the device ended. For the worker's thread."""
        self._live: set[Ticket] = set()
        self._deadlines = Deadlines(self._live, self._expire)
        self._closed = False
        self._idle = asyncio.Event()
        """Set once no ticket is left after `close`."""
        self._over = False
        """True once nothing can run any more."""
        self._pump_scheduled = False
        self._wake: asyncio.TimerHandle | None = None
        self.failure = ""
        """Why the device was lost, or empty."""

    def start(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._worker.start()

    @property
    def supplied(self) -> bool:
        """True if the device has more than one batch: none starts before one of them ends, but a full one."""
        return self._in_flight > 1

    def submit(self, block: Sequence[Ticket], *, at_once: bool = False) -> None:
        """Queue tickets that arrived together; `at_once` starts a batch without waiting for others of this event-loop turn.

        Each gets exactly one outcome, at once or later:

        a result, or QueueFull, PayloadTooLarge (both also by the caller's own limit), DeadlineExceeded, Unavailable
        (closed, or out of memory), InvalidField (the output is not finite), InferenceFailed.
        """
        if self.failure or self._closed:
            for ticket in block:
                self._refuse(ticket, self._unavailable())
            return
        groups, busy = by_kind(block), self._live or self._jobs or self._in_flight
        if not busy:
            self._capacity.forget_jobs()
        if at_once and len(groups) == 1 and not busy and self._start_at_once(block):
            return
        for _, tickets in groups:
            self._queue(tickets)
        if not at_once:
            self._schedule_pump()
        elif not self._pump_scheduled:
            self._pump()

    def cancel(self, ticket: Ticket) -> None:
        """Drop the part of a ticket that has not started. Its outcome is still set."""
        self._fail(ticket, CANCELLED)

    async def run_on_device(self, work: Callable[[], T]) -> T:
        """Run `work` on the device thread, alternating with batches, and return its result or raise its error."""
        result, _ = await self.time_on_device(work)
        return result

    async def time_on_device(self, work: Callable[[], T]) -> tuple[T, float]:
        """As `run_on_device`; also return the seconds that it took, without waits for batches before it."""
        if self.failure or self._closed:
            raise self._unavailable()
        job = Job(work)
        self._jobs.add(job)
        self._schedule_pump()
        return await job.outcome

    async def close(self, *, within: float) -> None:
        """Refuse new tickets, finish queued ones within that many seconds, fail the rest, end the threads."""
        self._closed = True
        try:
            async with asyncio.timeout(within):
                if self._live:
                    await self._idle.wait()
        except TimeoutError:
            if within:
                logger.warning(
                    "%d requests were unfinished when the drain time ended", len(self._live)
                )
        self._deadlines.close()
        self._fail_all()
        if not await asyncio.to_thread(self._worker.stop, timeout=STOP_SECONDS):
            logger.warning("the device thread is still busy and was left behind")

    def lose_device(self, failure: str) -> None:
        """Fail everything, now and from now on."""
        self.failure = failure
        self._fail_all()

    def _schedule_pump(self) -> None:
        # Deferred, so that requests of the same event-loop iteration share a batch.
        if self._in_flight < self._max_in_flight and not self._pump_scheduled:
            self._pump_scheduled = True
            self._loop.call_soon(self._pump)

    def _pump(self) -> None:
        self._pump_scheduled = False
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        while self._in_flight < self._max_in_flight and self._dispatch_next():
            pass

    def _dispatch_next(self) -> bool:
        """Dispatch the next job or batch. False if there is none to run now."""
        job_first = self._job_is_next and self._jobs.may_run
        for job in (job_first, not job_first):
            if self._dispatch_job() if job else self._dispatch_batch():
                self._job_is_next = not job
                return True
        return False

    def _dispatch_job(self) -> bool:
        job = self._jobs.next()
        if job is None:
            return False
        self._dispatch(job.start, partial(self._finish_job, job))
        return True

    def _dispatch_batch(self) -> bool:
        now = time.monotonic()
        decision = self._batcher.next_batch(now, full_only=self._in_flight > 1)
        for ticket in decision.expired:
            self._expire(ticket, now)
        if decision.batch:
            return self._start(decision.batch, now)
        if self._in_flight <= 1:
            # None waits, not even to be full.
            self._jobs.note_no_batch()
        if decision.wake_at is not None:
            self._wake = self._loop.call_later(max(0.0, decision.wake_at - now), self._pump)
        return False

    def _start_at_once(self, tickets: Sequence[Ticket]) -> bool:
        """Start tickets of one kind as a batch on the idle device, past the empty queue. False if they have to be queued."""
        if not (self._batcher.fit(tickets) and self._capacity.reserve_all(tickets, at_once=True)):
            return False
        self._live.update(tickets)
        self._start(self._batcher.batch_of(tickets), time.monotonic(), waited=False)
        return True

    def _start(self, batch: tuple[Slice, ...], now: float, *, waited: bool = True) -> bool:
        """Start a batch. False if the event loop started it, which should go on with other things before the next."""
        expected = self._capacity.dispatch(batch, now, waited=waited)
        for ticket, *_ in batch:
            ticket.running_slices += 1
            if ticket.result is None:
                ticket.result = _empty_result(ticket, now)
        run = Batch(batch)
        finish = partial(self._finish_batch, run.report)
        gradients = batch[0].ticket.request.vjp is not None
        seconds = self._short_starts.seconds(run.report)
        on_one_core = self._one_core and 0.0 < expected <= SHORT_SECONDS and not gradients
        alone = not waited and seconds is not None and seconds <= ALONE_SECONDS
        if on_one_core or alone:
            self._run_inline(run.start, finish)
            return False
        short = seconds is not None
        self._dispatch(run.start, finish, run.start_whole if short else None)
        if short:
            self._schedule_pump()
        return not short

    def _dispatch(
        self,
        work: Start[T],
        finish: Finish[T],
        attempt: Callable[[], Callable[[], T] | None] | None = None,
    ) -> None:
        """Have `work` started on the device thread, or by `attempt` on the event loop."""
        self._in_flight += 1
        dispatched = time.monotonic()

        def done(result: T | BaseException) -> None:
            before, self._free_since = self._free_since, time.monotonic()
            seconds = self._free_since - max(dispatched, before)
            try:
                self._loop.call_soon_threadsafe(self._after, finish, result, seconds, self._pump)
            except RuntimeError:
                logger.warning("a batch ended after the service had stopped; it is dropped")

        self._worker.submit(work, done, attempt)

    def _run_inline(self, work: Start[T], finish: Finish[T]) -> None:
        """Run a batch on the event loop. The next one starts in a later iteration, after pending I/O."""
        self._in_flight += 1
        began = time.monotonic()
        result: T | BaseException
        try:
            # As on the device thread: what is logged does not belong to the request that is served here.
            result = Context().run(lambda: work()())
        except Exception as error:
            result = error
        self._after(finish, result, time.monotonic() - began, self._schedule_pump)

    def _after(
        self,
        finish: Finish[T],
        result: T | BaseException,
        seconds: float,
        go_on: Callable[[], None],
    ) -> None:
        self._in_flight -= 1
        self.on_free()
        try:
            finish(result, seconds)
        finally:
            if self._live or self._jobs:
                # While the device has other work, answers are sent before the next start.
                (self._schedule_pump if self._in_flight else go_on)()

    def _finish_job(self, job: Job[T], result: T | BaseException, seconds: float) -> None:
        self._jobs.note_job(seconds)
        # It may have freed models, or captured graphs that evicted others.
        self._short_starts.forget()
        if isinstance(result, DeviceLost):
            self.lose_device(result.message)
        job.end(result, seconds)

    def _finish_batch(
        self, report: BatchReport, result: BatchReport | BaseException, seconds: float
    ) -> None:
        """End a batch, which gave its report, or an error instead."""
        self._capacity.note_jobs(self._jobs.note_batch(seconds), seconds)
        self._capacity.end_batch(time.monotonic())
        if failed := isinstance(result, BaseException):
            logger.error("the device thread failed on a batch", exc_info=result)
            model = report.slices[0].ticket.kind.flow.model
            why = f"model {model!r} failed on the batch of this request; the server's log has the cause"
            report.errors = {index: InferenceFailed(why) for index in range(len(report.slices))}
        sizes = (report.size,)
        ended = []
        for index, (ticket, *_) in enumerate(report.slices):
            ticket.running_slices -= 1
            answer = ticket.result
            assert answer is not None
            answer.batch_sizes += sizes
            answer.compute_seconds += report.compute_seconds
            answer.backend, answer.precision = report.ran[:2]
            error = report.errors.get(index)
            if ticket.ended:
                # Its outcome was delayed only because the batch might still write to its output buffer.
                if not ticket.running_slices and ticket.request.output_buffer is not None:
                    ended.append(ticket)
            elif error is not None:
                self._fail(ticket, error)
            elif ticket.dispatched == ticket.size and not ticket.running_slices:
                ticket.ended = True
                ended.append(ticket)
        self._resolve(ended)
        if failed:
            return
        if self._max_in_flight > 1:
            self._short_starts.note(report)
        self._record(report, sum([ticket.size for ticket in ended if ticket.error is None]))
        if report.splits:
            self._memory_limits.lower(report.slices[0].ticket.kind.bucket, report)
        for error in report.errors.values():
            if isinstance(error, DeviceLost):
                self.lose_device(error.message)

    def _record(self, report: BatchReport, answered: int) -> None:
        """Count a batch and the fields of the tickets that it completed."""
        kind = report.slices[0].ticket.kind
        model, version = kind.bucket[:2]
        self._metrics.ran(
            model,
            version,
            report.ran.backend or "none",
            report.ran.precision,
            report.size,
            report.size / self._max_batch,
            self._capacity.waiting(model, version),
            0 if kind.bucket.vjp else answered,
            answered if kind.bucket.vjp else 0,
        )
        self._metrics.note_trust(model, version, report.trust)
        full = self._batcher.limit(kind) * kind.field_bytes
        self._capacity.note_batch(model, full, report.device_seconds)
        self._batcher.note_ran(report.slices, report.device_seconds)
        self._loop.call_soon(self._on_batch, report)

    def _fail_all(self) -> None:
        self._over = True
        for ticket in list(self._live):
            self._fail(ticket, self._unavailable())
        self._jobs.fail_all(self._unavailable)

    def _unavailable(self) -> ServiceError:
        if self.failure:
            return DeviceLost(self.failure, retry_after=1.0)
        return Unavailable(
            "the service stopped before this request was done; retry, another instance may answer",
            retry_after=1.0,
        )

    def _queue(self, tickets: Sequence[Ticket]) -> None:
        """Queue those tickets of one kind that fit into the queue; refuse the others."""
        limit = self._batcher.limit(tickets[0].kind)
        if [one for one in tickets if one.size > limit and one.request.joined]:
            tickets = self._alone(tickets)
        if not self._capacity.reserve_all(tickets):
            tickets = [one for ticket in tickets for one in self._fitting(ticket)]
        if not tickets:
            return
        self._batcher.add(*tickets)
        self._watch(tickets)

    def _watch(self, tickets: Sequence[Ticket]) -> None:
        """Wait for the end of tickets that were queued, and for their deadlines."""
        self._live.update(tickets)
        self._deadlines.watch(tickets)

    def _alone(self, tickets: Sequence[Ticket]) -> list[Ticket]:
        """Tickets for the single requests, without those that nobody wants any more."""
        alone = [one for ticket in tickets for one in ticket.alone()]
        for one in alone:
            if one.settled:
                self._refuse(one, CANCELLED)
        return [one for one in alone if not one.ended]

    def _fitting(self, ticket: Ticket) -> list[Ticket]:
        """The ticket if it fits as a whole, else the tickets of those joined in it that fit; the others are refused."""
        if self._capacity.reserve_all([ticket]):
            return [ticket]
        return [one for one in self._alone([ticket]) if self._reserve(one)]

    def _reserve(self, ticket: Ticket) -> bool:
        """True if the ticket got its capacity; else it was refused."""
        try:
            self._capacity.reserve(ticket)
        except ServiceError as error:
            # The frames of its traceback refer to the ticket, which keeps it: a cycle.
            self._refuse(ticket, error.with_traceback(None))
            return False
        return True

    def _expire(self, ticket: Ticket, now: float) -> None:
        if not ticket.request.joined:
            self._metrics.reject("deadline", ticket.kind.flow.model)
        self._fail(
            ticket,
            DeadlineExceeded(
                f"the request waited {now - ticket.arrival:.3g} s in the queue and its deadline passed before it ran; "
                "give it more time, or retry when there is less load (the default deadline is "
                f"{env_name('request_deadline_seconds')})"
            ),
        )

    def _fail(self, ticket: Ticket, error: ServiceError) -> None:
        """Drop what still waits of a ticket and set its error, once no batch can write to its output buffer any more."""
        if ticket.ended:
            return
        ticket.ended, ticket.error = True, error
        if ticket.waiting:
            self._batcher.discard(ticket)
            self._capacity.release((Slice(ticket, ticket.dispatched, ticket.size),))
            ticket.dispatched = ticket.size
        if not ticket.running_slices or ticket.request.output_buffer is None:
            self._resolve([ticket])

    def _resolve(self, ended: list[Ticket]) -> None:
        """Set the outcomes of queued tickets that ended. Joined requests that failed together run again, alone."""
        failed_together = []
        for ticket in ended:
            if ticket.outcome.done():
                continue
            if ticket.error is None:
                assert ticket.result is not None
                ticket.outcome.set_result(ticket.result)
            elif ticket.request.joined and ticket.error is not CANCELLED and not self._over:
                failed_together.append(ticket)
            else:
                ticket.outcome.set_exception(ticket.error)
        self._live.difference_update(ended)
        for ticket in failed_together:
            ended.remove(ticket)
            self._run_alone(ticket)
        self._capacity.release_quota(*[ticket.request for ticket in ended])
        if self._closed and not self._live:
            self._idle.set()
        # Behind the answers, which are sent in this order too.
        self._loop.call_soon(self._on_ended, ended)

    def _run_alone(self, ticket: Ticket) -> None:
        """Queue joined requests again, where they were: they were admitted. They have no quota, else they were apart before."""
        if tickets := self._alone([ticket]):
            if ticket.result is not None:
                # Their work had started in time.
                for one in tickets:
                    one.request.deadline = None
            self._capacity.restore(tickets)
            self._batcher.restore(tickets)
            self._watch(tickets)
            self._schedule_pump()

    def _refuse(self, ticket: Ticket, error: ServiceError) -> None:
        """Set the error of a ticket that was not queued; its caller may have left."""
        ticket.ended, ticket.error = True, error
        if not ticket.outcome.done():
            ticket.outcome.set_exception(error)
        self._on_ended([ticket])


def _empty_result(ticket: Ticket, now: float) -> PredictResult:
    """A result with what is known when the ticket's first slice is dispatched."""
    bucket, request = ticket.kind.bucket, ticket.request
    fields = NO_FIELDS if request.output_buffer is None else request.output_buffer
    return PredictResult(bucket.model, bucket.version, fields, now - ticket.arrival, 0.0, (), "")
