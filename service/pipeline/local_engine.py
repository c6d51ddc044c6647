"""The engine in this process: repository, scheduler and device thread behind the Engine interface."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from service.errors import PayloadTooLarge, ServiceError, Unavailable
from service.pipeline.batcher import Policy
from service.pipeline.engine import PredictResult, heap_buffer
from service.pipeline.rollouts import Rollouts
from service.pipeline.scheduler import Scheduler
from service.pipeline.worker import arithmetic_threads
from service.runtime.device import log_backend, memory_limit, prepare_device
from service.runtime.device_pipeline import DevicePipeline, open_pipeline
from service.runtime.model_slot import ModelSlot
from service.runtime.repository import Repository
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable, Sequence

    from models.config import ModelConfig
    from service.metrics import Metrics
    from service.pipeline.batch import BatchReport
    from service.pipeline.engine import (
        Frame,
        ModelCounters,
        ModelStatus,
        PredictRequest,
        RolloutRequest,
    )
    from service.pipeline.queue_slots import QueueSlots
    from service.pipeline.remembered import Remembered
    from service.pipeline.vjp import VjpShapes
    from service.settings import Settings

logger = logging.getLogger(__name__)


class LocalEngine:
    """Implements service.pipeline.engine.Engine. `start` before use, `close` after."""

    def __init__(
        self,
        settings: Settings,
        metrics: Metrics,
        slots: QueueSlots,
        remembered: Sequence[Remembered] = (),
    ) -> None:
        """Find device and models, those of a predecessor if there was one.

        Raises ValueError on a wrong repository, model name or device.
        """
        device = self._device = prepare_device(settings)
        pipeline = open_pipeline(device)
        self._scheduler = Scheduler(
            settings,
            metrics,
            slots,
            max_in_flight=pipeline.max_in_flight,
            prepare_thread=partial(_prepare_thread, device, settings.torch_threads),
            on_batch=_trace_and_note_batch() if settings.tracing else _note_batch,
        )
        self._slots = slots
        self._max_gradient_bytes = settings.max_gradient_bytes
        self._rollouts = Rollouts(Policy.of(settings), metrics, self._scheduler.run_on_device)
        self._repository = Repository(
            settings,
            metrics,
            device=device,
            pipeline=pipeline,
            run_on_device=self._scheduler.run_on_device,
        )
        self._locations = self._repository.find(remembered)
        if isinstance(pipeline, DevicePipeline):
            metrics.device_memory.watch(
                device,
                limit=memory_limit(device, settings.device_memory_fraction),
                models=lambda: self._repository.device_bytes,
                staging=lambda: pipeline.staging_bytes,
            )
        self._loading: asyncio.Task[None] | None = None
        self._draining = False

    def start(self) -> None:
        # Models load in the background, so that the service can say that it is alive but not ready.
        log_backend(self._device)
        self._scheduler.start()
        self._loading = asyncio.create_task(self._repository.load_all(self._locations))

    def start_draining(self) -> None:
        self._draining = True

    async def close(self, *, within: float) -> None:
        self._draining = True
        if self._loading is not None:
            self._loading.cancel()
            await asyncio.gather(self._loading, return_exceptions=True)
            self._loading = None
            await self._scheduler.close(within=within)
            self._repository.close()

    def remembered(self) -> tuple[Remembered, ...]:
        """What a successor should know, should this process die now."""
        return self._repository.remembered()

    def config(self, model: str, version: str | None = None) -> ModelConfig:
        return self._repository.slot(model, version).config

    def statuses(self) -> list[ModelStatus]:
        return self._repository.statuses()

    async def counters(self, model: str, version: str) -> ModelCounters:
        return self._repository.slot(model, version).totals.snapshot()

    def buffer(self, size: int, *, aligned_at: int = 0) -> memoryview:
        return heap_buffer(size, aligned_at)

    async def predict(self, request: PredictRequest) -> PredictResult:
        with self._repository.lease(request.model, request.version) as slot:
            _check_unchanged(slot, request)
            if not len(request.fields):
                return _empty(slot, request)
            if request.vjp is not None:
                self._check_memory(slot, request.vjp)
            started = time.perf_counter()
            try:
                result = await self._scheduler.submit(slot, request)
            except ServiceError:
                slot.totals.note_failure(seconds=time.perf_counter() - started)
                raise
            slot.totals.note_success(
                fields=len(request.fields),
                seconds=time.perf_counter() - started,
                queue_seconds=result.queue_seconds,
            )
            return result

    def _check_memory(self, slot: ModelSlot, shapes: VjpShapes) -> None:
        needed, most = slot.kept_bytes(shapes), self._max_gradient_bytes
        if needed > most:
            raise PayloadTooLarge(
                f"the gradient of one field on the grid {list(shapes.input[1:])} takes about {needed} bytes in model "
                f"{slot.name!r}, the limit is {most} ({env_name('max_gradient_bytes')}); use a coarser grid"
            )

    async def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        initial = request.initial
        with (
            self._repository.lease(initial.model, initial.version) as slot,
            self._slots.in_work(initial),
        ):
            _check_unchanged(slot, initial)
            async with aclosing(self._rollouts.run(slot, request)) as frames:
                async for frame in frames:
                    yield frame

    async def load(self, model: str) -> None:
        await self._repository.load(model)

    async def unload(self, model: str) -> None:
        await self._repository.unload(model)

    @property
    def ready(self) -> bool:
        return not (self._draining or self.failure) and self._repository.ready

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
    assert isinstance(runnable, ModelSlot)
    runnable.totals.note_batch(report)


def _trace_and_note_batch() -> Callable[[BatchReport], None]:
    from service.tracing.batches import trace_batch
    from service.tracing.setup import start

    start()

    def on_batch(report: BatchReport) -> None:
        trace_batch(report)
        _note_batch(report)

    return on_batch


def _check_unchanged(slot: ModelSlot, request: PredictRequest) -> None:
    old, new = request.config, slot.config
    if old is None or old is new:
        return
    for part in ("architecture", "inputs", "outputs", "grid"):
        if getattr(old, part) != getattr(new, part):
            raise Unavailable(
                f"model {slot.name!r} version {slot.version} was replaced by one with another {part} while "
                "this request was read; send it again if it still fits the model's description",
                retry_after=1.0,
            )


def _empty(slot: ModelSlot, request: PredictRequest) -> PredictResult:
    """No fields in, no fields out: legal in the protocol, and nothing for the device to do."""
    channels = slot.config.architecture.out_channels
    return PredictResult(
        model=slot.name,
        version=slot.version,
        fields=np.empty((0, channels, *request.fields.shape[2:]), np.float32),
        queue_seconds=0.0,
        compute_seconds=0.0,
        batch_sizes=(),
        backend=slot.backend,
        precision=slot.precision,
    )
