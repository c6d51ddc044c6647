"""An engine without a device: output channel k is (k + 1) * first input channel + k.

For gradients it returns twice its rows: the gradient is twice the input, the output twice the cotangent.
"""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING, Any

import numpy as np

from turbofno.service.engine.interface import (
    Frame,
    ModelCounters,
    ModelStatus,
    PredictResult,
    heap_buffer,
)
from turbofno.service.errors import NotFound, Unavailable

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import Fields, PredictRequest, RolloutRequest


class FakeEngine:
    """Answers at once, or waits for `release` if `held`; records every request."""

    def __init__(self, *configs: ModelConfig) -> None:
        self.configs = {(c.name, c.version): c for c in configs}
        self.requests: list[PredictRequest] = []
        self.rollouts: list[RolloutRequest] = []
        self.cancelled = 0
        self.loaded: list[str] = []
        self.unloaded: list[str] = []
        self.held = False
        self.release = asyncio.Event()
        self.started = asyncio.Event()
        self.error: Exception | None = None
        self.ready = True
        self.failure = ""
        self.alive = False
        self.full = False
        """True if it has no memory for bodies."""
        self.given: list[weakref.ref[Any]] = []
        """The owners of the memory that it gave for bodies."""

    def config(self, model: str, version: str | None = None) -> ModelConfig:
        found = [c for (name, v), c in self.configs.items() if name == model]
        found = [c for c in found if version in (None, c.version)]
        if not found:
            raise NotFound(f"there is no model {model!r} version {version}")
        return found[-1]

    def statuses(self) -> list[ModelStatus]:
        runs = {
            "backend": "cuda",
            "precision": "fp32",
            "asked_precision": "bf16",
            "execution": "graph",
            "execution_reason": "its layers have a norm",
        }
        ready = [ModelStatus(*key, "READY", **runs) for key in self.configs]
        return [*ready, ModelStatus("broken", "1", "UNAVAILABLE", "bad weights")]

    async def counters(self, model: str, version: str) -> ModelCounters:
        self.config(model, version)
        return ModelCounters(
            success_count=3,
            success_ns=30,
            fail_count=1,
            fail_ns=5,
            queue_ns=6,
            compute_input_ns=7,
            compute_infer_ns=8,
            compute_output_ns=9,
            inference_count=5,
            execution_count=2,
            last_inference_ms=1234,
            batches={4: (1, 80), 1: (1, 20)},
        )

    def start(self) -> None:
        self.alive = True

    async def close(self, *, within: float) -> None:
        del within
        self.alive = False

    def buffer(self, size: int, *, aligned_at: int = 0) -> memoryview:
        if self.full:
            raise Unavailable("no memory", retry_after=1.0)
        view = heap_buffer(size, aligned_at)
        self.given.append(weakref.ref(view.obj))
        return view

    @staticmethod
    def answer(fields: Fields, channels: int) -> Fields:
        return np.stack([(k + 1) * fields[:, 0] + k for k in range(channels)], axis=1)

    async def predict(self, request: PredictRequest) -> PredictResult:
        self.requests.append(request)
        self.started.set()
        try:
            if self.held:
                await self.release.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        if self.error is not None:
            raise self.error
        config = self.config(request.model, request.version)
        return PredictResult(
            model=config.name,
            version=config.version,
            fields=self.answer(request.fields, len(config.outputs))
            if request.vjp is None
            else 2 * request.fields,
            queue_seconds=0.002,
            compute_seconds=0.003,
            batch_sizes=(len(request.fields),),
            backend="gemm",
        )

    async def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        """Each step adds 1; an `error` is raised after the first frame."""
        self.rollouts.append(request)
        self.started.set()
        try:
            for step in range(request.start + 1, request.last + 1):
                of_frame = request.initial.fields[:, : request.frame_shape[1]]
                fields = of_frame + np.float32(step - request.start)
                yield Frame(step, fields if request.wants(step) else None)
                if self.error is not None:
                    raise self.error
                if self.held:
                    await self.release.wait()
        except (asyncio.CancelledError, GeneratorExit):
            self.cancelled += 1
            raise

    async def load(self, model: str) -> None:
        self.config(model)
        self.loaded.append(model)

    async def unload(self, model: str) -> None:
        self.config(model)
        self.unloaded.append(model)
