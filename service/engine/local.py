"""The engine in this process: repository, scheduler and device threads behind the Engine interface."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from turbofno.models.core.config import ModelConfig
from turbofno.service.engine.interface import (
    Frame,
    ModelCounters,
    ModelStatus,
    PredictRequest,
    PredictResult,
    RecoveryRecord,
    RolloutRequest,
    heap_buffer,
    not_any_more,
)
from turbofno.service.engine.turn import Asked, Turn
from turbofno.service.errors import PayloadTooLarge, ServiceError, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batch import BatchReport
from turbofno.service.pipeline.batcher import Policy
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.rollouts import Rollouts
from turbofno.service.pipeline.scheduler import Scheduler
from turbofno.service.pipeline.ticket import CANCELLED, Kind, Outcome, Ticket, by_kind
from turbofno.service.pipeline.worker import arithmetic_threads
from turbofno.service.runtime.device import log_backend, memory_limit, prepare_device
from turbofno.service.runtime.device_pipeline import open_pipeline
from turbofno.service.runtime.model_instance import ModelInstance
from turbofno.service.runtime.repository import Repository
from turbofno.service.settings import Settings, env_name

if TYPE_CHECKING:
    from turbofno.service.runtime.slabs import SlabGroup


class LocalEngine:
    """Implements turbofno.service.engine.interface.Engine. Call `start` before use, `close` after."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        capacity: QueueCapacity,
        recovery: Sequence[RecoveryRecord] = (),
        group: SlabGroup | None = None,
    ) -> None:
        """Find the device and the models: those in `recovery` if the engine replaces another.

        `group` has all devices, if there are several; the device of the settings is the first.

        Raises ValueError for a wrong repository, model name or device.
        """
        device = self._device = prepare_device(settings)
        self._on_cpu = device.type == "cpu"
        pipeline = open_pipeline(device)
        self._scheduler = Scheduler(
            settings,
            metrics,
            capacity,
            max_in_flight=pipeline.max_in_flight,
            prepare_thread=partial(_prepare_thread, device, settings.torch_threads),
            on_batch=_trace_and_note_batch() if settings.tracing else _note_batch,
            on_ended=self._ended,
        )
        self._capacity = capacity
        self._max_gradient_bytes = settings.max_gradient_bytes
        policy = Policy.of(settings)
        self._rollouts = Rollouts(policy, metrics, self._scheduler.time_on_device)
        self._repository = Repository(
            settings,
            metrics,
            device=device,
            pipeline=pipeline,
            run_on_device=self._scheduler.run_on_device,
            max_fields=lambda model, size: policy.limit(size, model=model),
            group=group,
        )
        self._locations = self._repository.find(recovery)
        if not self._on_cpu:
            metrics.device_memory.watch(
                device,
                limit=memory_limit(device, settings.device_memory_fraction),
                models=lambda: self._repository.device_bytes,
            )
        self._loading: asyncio.Task[None] | None = None
        self._turn = Turn(self._submit_turn, self.cancel)

    def start(self) -> None:
        # Models load in the background, so that the service can report alive but not ready.
        log_backend(self._device)
        self._scheduler.start()
        self._loading = asyncio.create_task(self._repository.load_all(self._locations))

    async def close(self, *, within: float) -> None:
        self._turn.end()
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
            self._loading = None
            await self._scheduler.close(within=within)
            self._repository.close()

    def lose_device(self, failure: str) -> None:
        """Fail everything, now and from now on, for a reason that the device thread may not find."""
        self._scheduler.lose_device(failure)

    def recovery_records(self) -> tuple[RecoveryRecord, ...]:
        """Records for an engine that replaces this one if the process dies."""
        return self._repository.recovery_records()

    def config(self, model: str, version: str | None = None) -> ModelConfig:
        return self._repository.get(model, version).config

    def statuses(self) -> list[ModelStatus]:
        return self._repository.statuses()

    async def counters(self, model: str, version: str) -> ModelCounters:
        # What was answered in this turn of the event loop is counted at its end.
        await asyncio.sleep(0.0)
        return self._repository.get(model, version).totals.snapshot()

    def buffer(self, size: int, *, aligned_at: int = 0) -> memoryview | None:
        # On a CPU numpy gathers a batch from any memory; torch, for a GPU, from writable memory only.
        return None if self._on_cpu else heap_buffer(size, aligned_at)

    def predict(self, request: PredictRequest) -> Coroutine[Any, Any, PredictResult]:
        return self._turn.ask(request, at_once=request.at_once)

    def _submit_turn(self, turn: list[Asked[Ticket]]) -> None:
        tickets = self.submit([(one.request, one.outcome) for one in turn], at_once=True)
        for asked, ticket in zip(turn, tickets, strict=True):
            asked.work = ticket

    def submit(
        self, block: Sequence[tuple[PredictRequest, Outcome]], *, at_once: bool = False
    ) -> list[Ticket | None]:
        """Submit requests that arrived together, each with its own outcome (see `predict`).

        Returns a ticket for each, to cancel it; None for those refused at once. `at_once`: no other block is
        expected in this turn of the event loop.
        """
        now = time.monotonic()
        kinds: dict[object, Kind] = {}
        tickets = [self._ticket(request, outcome, now, kinds) for request, outcome in block]
        self._scheduler.submit([one for one in tickets if one is not None], at_once=at_once)
        return tickets

    def _ticket(
        self, request: PredictRequest, outcome: Outcome, now: float, kinds: dict[object, Kind]
    ) -> Ticket | None:
        """The ticket of a request; None if it was refused. `kinds` caches the kinds of a block."""
        shape = request.fields.shape
        size = shape[0]
        key = (
            id(request.config), request.model, request.version, shape[1:], request.priority, request.vjp,
        )  # fmt: skip
        try:
            kind = kinds.get(key)
            if kind is None:
                kind = kinds[key] = self._kind(self._instance(request), request)
        except ServiceError as error:
            outcome.set_exception(error)
            return None
        ticket = Ticket(kind, request, now, outcome, size)
        assert isinstance(kind.runnable, ModelInstance)
        self._repository.acquire(kind.runnable, ticket.requests)
        return ticket

    @property
    def supplied(self) -> bool:
        """True if the device has enough to do: predictions may be held back until it has room, to be submitted together."""
        return self._scheduler.supplied

    def when_free(self, call: Callable[[], None]) -> None:
        """Have `call` called whenever the device has room for a batch again."""
        self._scheduler.on_free = call

    def cancel(self, ticket: Ticket) -> None:
        """Drop the part of a request that has not started. Its outcome is still set."""
        self._scheduler.cancel(ticket)

    def _instance(self, request: PredictRequest) -> ModelInstance:
        """The requested model. Raises NotFound; Unavailable, also if a reload changed what the fields are for."""
        try:
            instance = self._repository.get(request.model, request.version)
        except Unavailable as error:
            raise not_any_more(error) from None
        _check_unchanged(instance, request)
        return instance

    def _kind(self, instance: ModelInstance, request: PredictRequest) -> Kind:
        """The kind of a request. Raises NotDifferentiable; PayloadTooLarge if its gradients take too much memory."""
        kind = Kind.of(instance, request)
        if kind.gradient_bytes > self._max_gradient_bytes:
            assert request.vjp is not None
            raise PayloadTooLarge(
                f"the gradient of one field on the grid {list(request.vjp.input[1:])} takes about {kind.gradient_bytes} "
                f"bytes in model {instance.name!r}, the limit is {self._max_gradient_bytes} "
                f"({env_name('max_gradient_bytes')}); use a coarser grid"
            )
        return kind

    def _ended(self, tickets: list[Ticket]) -> None:
        """Count outcomes in the totals of their models, and release the models."""
        now = time.monotonic()
        for kind, ended in by_kind(tickets):
            instance = kind.runnable
            assert isinstance(instance, ModelInstance)
            requests, fields, seconds, queue_seconds = 0, 0, 0.0, 0.0
            for one in ended:
                if one.error is None:
                    assert one.result is not None
                    requests += one.requests
                    fields += one.size
                    seconds += (now - one.arrival) * one.requests
                    queue_seconds += one.result.queue_seconds * one.requests
                elif one.error is not CANCELLED:
                    instance.totals.note_failures(one.requests, seconds=now - one.arrival)
            if requests:
                instance.totals.note_success(
                    requests, fields=fields, seconds=seconds, queue_seconds=queue_seconds
                )
            self._repository.release(instance, sum([ticket.requests for ticket in ended]))

    async def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        initial = request.initial
        instance = self._instance(initial)
        self._repository.acquire(instance, 1)
        try:
            with self._capacity.quota(initial):
                async with aclosing(self._rollouts.run(instance, request)) as frames:
                    async for frame in frames:
                        yield frame
        finally:
            self._repository.release(instance, 1)

    async def load(self, model: str) -> None:
        self._turn.end()
        await self._repository.load(model)

    async def unload(self, model: str) -> None:
        self._turn.end()
        await self._repository.unload(model)

    @property
    def ready(self) -> bool:
        return not self.failure and self._repository.ready

    @property
    def failure(self) -> str:
        return self._scheduler.failure


def _prepare_thread(device: torch.device, torch_threads: int | None) -> None:
    on_cpu = device.type == "cpu"
    if not on_cpu:
        torch.cuda.set_device(device)
    torch.set_num_threads(torch_threads or arithmetic_threads(on_cpu=on_cpu))


def _note_batch(report: BatchReport) -> None:
    runnable = report.runnable
    assert isinstance(runnable, ModelInstance)
    runnable.totals.note_batch(
        requests=sum([part.ticket.requests for part in report.slices]),
        fields=report.size,
        gather_seconds=report.gather_seconds,
        compute_seconds=report.compute_seconds,
        scatter_seconds=report.scatter_seconds,
    )


def _trace_and_note_batch() -> Callable[[BatchReport], None]:
    from turbofno.service.tracing.batches import trace_batch
    from turbofno.service.tracing.setup import start

    start()

    def on_batch(report: BatchReport) -> None:
        trace_batch(report)
        _note_batch(report)

    return on_batch


def _check_unchanged(instance: ModelInstance, request: PredictRequest) -> None:
    old, new = request.config, instance.config
    if old is None or old is new:
        return
    for part in ("architecture", "inputs", "outputs", "grid"):
        # A configuration that is no longer known has no attributes.
        if getattr(old, part, None) != getattr(new, part):
            raise Unavailable(
                f"model {instance.name!r} version {instance.version} was replaced by one with another {part} while "
                "this request was read; send it again if it still fits the model's description",
                retry_after=1.0,
            )
