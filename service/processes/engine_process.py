"""An engine process: the local engine of one device, for front ends that reach it by messages and shared memory."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import signal
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from service.errors import InferenceFailed, ServiceError, Unavailable
from service.metrics import Metrics
from service.pipeline.engine import PredictRequest
from service.pipeline.local_engine import LocalEngine
from service.pipeline.queue_slots import QueueSlots
from service.pipeline.vjp import VjpShapes
from service.processes.channel import Channel, new_endpoint
from service.processes.lifeline import Lifeline
from service.processes.memory import HEAVY_BYTES, LentMemory
from service.processes.messages import (
    Ask,
    Attach,
    Beat,
    Cancel,
    Gone,
    Message,
    ModelState,
    Predict,
    Predicted,
    Queue,
    Refused,
    State,
    Told,
)
from service.triton_metrics import TritonMetrics
from service.version import VERSION

if TYPE_CHECKING:
    from models.config import ModelConfig
    from service.pipeline.engine import ModelStatus, PredictResult
    from service.processes.lifeline import Launch

logger = logging.getLogger(__name__)

_STATE_SECONDS = 0.05
"""How often to look whether models changed their state."""
_REMEMBERED = 256
"""Configurations, of models that were reloaded since."""


class EngineServer:
    """Answers every Predict and Ask of every front end exactly once, as long as that front end lives."""

    def __init__(self, engine: LocalEngine, slots: QueueSlots) -> None:
        self._engine = engine
        self._slots = slots
        self._memories: dict[bytes, LentMemory] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._work: dict[tuple[bytes, int], asyncio.Task[PredictResult]] = {}
        """Of each front end by number: what it may cancel."""
        self._configs: dict[str, ModelConfig] = {}
        self._published: dict[tuple[str, str], tuple[ModelConfig, str, str]] = {}
        """(model, version) -> its configuration, the digest and JSON of that."""
        self._state = State(ready=False, failure="", models=())
        self._queue = Queue((), 0.0)
        self.endpoint = new_endpoint()
        self._channel = Channel.listen(self.endpoint, self._receive)

    async def run(self) -> None:
        """Tell the front ends of every change, until the device fails or the task is cancelled."""
        while not self._engine.failure:
            self._publish()
            await asyncio.sleep(_STATE_SECONDS)
        self._publish()

    def forget(self, front_end: bytes) -> None:
        """It is dead: stop what it asked for, let go of its memory."""
        self._memories.pop(front_end, None)
        for (sender, _), work in self._work.items():
            if sender == front_end:
                work.cancel()

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models that can serve now."""
        ready = (status for status in self._engine.statuses() if status.state == "READY")
        return tuple(dict.fromkeys(status.name for status in ready))

    def close(self) -> None:
        """Send what is ready to be sent, and listen no more."""
        self._channel.flush()
        self._channel.close()

    def _receive(self, sender: bytes, message: Message) -> None:
        match message:
            case Attach():
                try:
                    self._memories[sender] = LentMemory(message)
                except OSError as error:
                    logger.warning("the memory of %s is gone: %s", sender.decode(), error)
                self._channel.send(self._state, sender)
                self._channel.send(self._queue, sender)
            case Predict() | Ask():
                task = asyncio.create_task(self._answer(sender, message))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            case Cancel() if work := self._work.get((sender, message.id)):
                work.cancel()

    async def _answer(self, sender: bytes, message: Predict | Ask) -> None:
        answer: Predicted | Told | Refused
        try:
            if isinstance(message, Predict):
                answer = await self._predict(sender, message)
            else:
                answer = await self._call(message)
        except asyncio.CancelledError:
            answer = Refused(message.id, Unavailable.__name__, "cancelled", None)
        except ServiceError as error:
            answer = Refused(message.id, type(error).__name__, error.message, error.retry_after)
        except Exception:
            logger.exception("unexpected failure of request %d of %s", message.id, sender.decode())
            answer = Refused(
                message.id, InferenceFailed.__name__, "the engine failed on this request", None
            )
        self._channel.send(answer, sender)

    async def _predict(self, sender: bytes, message: Predict) -> Predicted:
        memory = self._memories.get(sender)
        if memory is None:
            raise Unavailable("the front end that asked is gone")
        config = self._configs.get(message.digest)
        if config is None:
            raise Unavailable(
                f"model {message.request['model']!r} was replaced while this request was read; send it again",
                retry_after=1.0,
            )
        vjp = msgspec.convert(message.request["vjp"], VjpShapes | None)
        request = PredictRequest(
            **message.request | {"vjp": vjp}, fields=memory.array(message.fields), config=config
        )
        key = (sender, message.id)
        work = self._work[key] = asyncio.create_task(self._engine.predict(request))
        try:
            result = await work
        finally:
            del self._work[key]
        answer = memory.array(message.answer)
        if answer.shape != result.fields.shape:
            raise InferenceFailed(
                f"the model gave shape {result.fields.shape}, expected {answer.shape}"
            )
        # Once begun it is carried through: the slot is the front end's again when it is told so, not earlier.
        if answer.nbytes > HEAVY_BYTES:
            await asyncio.to_thread(np.copyto, answer, result.fields)
        else:
            np.copyto(answer, result.fields)
        return Predicted(
            message.id,
            result.version,
            result.queue_seconds,
            result.compute_seconds,
            result.batch_sizes,
            result.backend,
            result.precision,
        )

    async def _call(self, message: Ask) -> Told:
        method = getattr(self._engine, message.method)
        value = await method(*message.arguments)
        # So that who asked for a change sees it when it has been told that it is done.
        self._publish()
        return Told(message.id, None if value is None else dataclasses.asdict(value))

    def _publish(self) -> None:
        statuses = self._engine.statuses()
        state = State(
            self._engine.ready,
            self._engine.failure,
            tuple(map(self._model_state, statuses)),
        )
        queue = Queue(
            tuple((s.name, s.version, self._slots.waiting(s.name, s.version)) for s in statuses),
            self._slots.drain_seconds,
        )
        for front_end in self._memories:
            if state != self._state:
                self._channel.send(state, front_end)
            if queue != self._queue:
                self._channel.send(queue, front_end)
        self._state, self._queue = state, queue

    def _model_state(self, status: ModelStatus) -> ModelState:
        if status.state != "READY":
            return ModelState(status, "", "")
        config = self._engine.config(status.name, status.version)
        known = self._published.get((status.name, status.version))
        if known is None or known[0] is not config:
            text = config.model_dump_json()
            known = (config, hashlib.sha256(text.encode()).hexdigest(), text)
            self._published[status.name, status.version] = known
            self._configs[known[1]] = config
            while len(self._configs) > _REMEMBERED:
                del self._configs[next(iter(self._configs))]
        return ModelState(status, *known[1:])


async def run(launch: Launch) -> int:
    """Serve front ends until SIGTERM. Returns the exit status: 1 if the device failed.

    Raises:
        ValueError: a wrong repository, model name or device.
    """
    metrics = Metrics(version=VERSION)
    if launch.settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    slots = QueueSlots(launch.settings, metrics)
    engine = LocalEngine(launch.settings, metrics, slots)
    engine.start()
    server = EngineServer(engine, slots)

    def tell(message: Message) -> None:
        if isinstance(message, Gone):
            server.forget(message.identity)

    line = Lifeline(
        launch,
        metrics.registry,
        beat=lambda: Beat(engine.ready, server.endpoint, server.models),
        receive=tell,
    )
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    running = asyncio.create_task(server.run())
    stopped = asyncio.create_task(stop.wait())
    await asyncio.wait({running, stopped}, return_when=asyncio.FIRST_COMPLETED)
    running.cancel()
    # What it fails now is still answered.
    await engine.close(within=0.0)
    await asyncio.sleep(0)
    server.close()
    line.close()
    if launch.settings.tracing:
        from service.tracing import setup

        await asyncio.to_thread(setup.stop)
    return 1 if engine.failure else 0
