"""An engine process: the local engine of one device, for front ends that reach it by messages and shared memory."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import logging
import signal
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from service.errors import InferenceFailed, ServiceError, Unavailable
from service.metrics import Metrics
from service.pipeline.engine import PredictRequest, RolloutRequest
from service.pipeline.local_engine import LocalEngine
from service.pipeline.queue_slots import QueueSlots
from service.pipeline.vjp import VjpShapes
from service.processes.channel import Channel, new_endpoint
from service.processes.lifeline import Lifeline
from service.processes.memory import LentMemory
from service.processes.messages import (
    Ask,
    Attach,
    Beat,
    Begin,
    Cancel,
    Framed,
    Gone,
    Message,
    ModelState,
    Predict,
    Predicted,
    Queue,
    Refused,
    State,
    Taken,
    Told,
)
from service.processes.rollout_ring import Writer
from service.runtime.device import resolve_device
from service.runtime.page_locked import lock
from service.server import keep_objects
from service.triton_metrics import TritonMetrics
from service.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    import numpy as np
    from numpy.typing import NDArray

    from models.config import ModelConfig
    from service.pipeline.engine import Fields, ModelStatus
    from service.processes.lifeline import Launch

logger = logging.getLogger(__name__)

_STATE_SECONDS = 0.05
"""How often to look whether models changed their state."""
_REMEMBERED = 256
"""Configurations, of models that were reloaded since."""


class EngineServer:
    """Answers every Predict, Begin and Ask of every front end exactly once, as long as that front end lives."""

    def __init__(
        self,
        engine: LocalEngine,
        slots: QueueSlots,
        on_call: Callable[[], None],
        on_memory: Callable[[NDArray[np.uint8]], object] = lambda _: None,
    ) -> None:
        """`on_call` is called when a model was loaded or unloaded, before whoever asked for it is told.

        `on_memory` is called with the memory of each front end, all of it, before anything there is used.
        """
        self._engine = engine
        self._on_call = on_call
        self._on_memory = on_memory
        self._slots = slots
        self._memories: dict[bytes, LentMemory] = {}
        self._work: dict[tuple[bytes, int], asyncio.Task[Predicted | Told]] = {}
        """Of each front end by number: what it may cancel."""
        self._calls: dict[tuple[bytes, int], asyncio.Task[Predicted | Told]] = {}
        """The same, carried through whatever becomes of the front end."""
        self._writers: dict[tuple[bytes, int], Writer] = {}
        self._configs: dict[str, ModelConfig] = {}
        self._published: dict[tuple[str, str], tuple[ModelConfig, str, str]] = {}
        """(model, version) -> its configuration, the digest and JSON of that."""
        self._state = State(ready=False, failure="", models=())
        self._queue = Queue((), 0.0)
        self.endpoint = new_endpoint()
        self._channel = Channel.listen(self.endpoint, self._receive)

    async def run(self) -> None:
        """Tell the front ends of every change, until the device fails or the task is cancelled."""
        warm = False
        while not self._engine.failure:
            if not warm and self._engine.ready:
                warm = True
                keep_objects()
            self._publish()
            await asyncio.sleep(_STATE_SECONDS)
        self._publish()

    def forget(self, front_end: bytes) -> None:
        """It is dead: stop what it asked for, let go of its memory."""
        self._memories.pop(front_end, None)
        for (sender, _), work in self._work.items():
            if sender == front_end:
                work.cancel()

    def close(self) -> None:
        """Send what is ready to be sent, and listen no more."""
        self._channel.flush()
        self._channel.close()

    def _receive(self, sender: bytes, message: Message) -> None:
        match message:
            case Attach():
                try:
                    memory = self._memories[sender] = LentMemory(message)
                except OSError as error:
                    logger.warning("the memory of %s is gone: %s", sender.decode(), error)
                else:
                    self._on_memory(memory.bytes)
                self._channel.send(self._state, sender)
                self._channel.send(self._queue, sender)
            case Predict() | Begin() | Ask():
                self._work_on(sender, message)
            case Taken() if writer := self._writers.get((sender, message.id)):
                writer.taken()
            case Cancel() if work := self._work.get((sender, message.id)):
                work.cancel()

    def _work_on(self, sender: bytes, message: Predict | Begin | Ask) -> None:
        """Begin, and see to it that it is answered: also what is cancelled before its task ran at all."""
        key = (sender, message.id)
        tasks = self._calls if isinstance(message, Ask) else self._work
        tasks[key] = task = asyncio.create_task(self._work_of(sender, message))
        task.add_done_callback(partial(self._answer, key))

    def _work_of(
        self, sender: bytes, message: Predict | Begin | Ask
    ) -> Coroutine[Any, Any, Predicted | Told]:
        match message:
            case Predict():
                return self._predict(sender, message)
            case Begin():
                return self._rollout(sender, message)
            case Ask():
                return self._call(message)

    def _answer(self, key: tuple[bytes, int], task: asyncio.Task[Predicted | Told]) -> None:
        self._calls.pop(key, None)
        self._work.pop(key, None)
        sender, number = key
        error = None if task.cancelled() else task.exception()
        if task.cancelled():
            error = Unavailable("cancelled")
        elif error is not None and not isinstance(error, ServiceError):
            logger.error(
                "unexpected failure of request %d of %s", number, sender.decode(), exc_info=error
            )
            error = InferenceFailed(
                "the engine failed on this request; the server's log has the cause"
            )
        answer = (
            task.result() if error is None else Refused(number, type(error).__name__, vars(error))
        )
        self._channel.send(answer, sender)

    def _request(
        self, sender: bytes, message: Predict | Begin, answer: Fields | None = None
    ) -> PredictRequest:
        config = self._configs.get(message.digest)
        if config is None:
            raise Unavailable(
                f"model {message.request['model']!r} was replaced while this request was read; send it again",
                retry_after=1.0,
            )
        fields = self._memory_of(sender).array(message.fields)
        vjp = msgspec.convert(message.request["vjp"], VjpShapes | None)
        values = message.request | {"vjp": vjp}
        return PredictRequest(fields=fields, config=config, answer=answer, **values)

    def _memory_of(self, sender: bytes) -> LentMemory:
        memory = self._memories.get(sender)
        if memory is None:
            raise Unavailable("the front end that asked is gone")
        return memory

    async def _predict(self, sender: bytes, message: Predict) -> Predicted:
        answer = self._memory_of(sender).array(message.answer)
        # Until this ends, in whichever way, batches may write into the answer.
        result = await self._engine.predict(self._request(sender, message, answer))
        return Predicted(
            message.id,
            result.version,
            result.queue_seconds,
            result.compute_seconds,
            result.batch_sizes,
            result.backend,
            result.precision,
            result.trust,
        )

    async def _rollout(self, sender: bytes, message: Begin) -> Told:
        request = RolloutRequest(self._request(sender, message), **message.rollout)
        key = (sender, message.id)
        writer = self._writers[key] = Writer(self._memory_of(sender).array(message.ring))
        try:
            async with aclosing(self._engine.rollout(request)) as frames:
                async for frame in frames:
                    await writer.put(frame)
                    self._channel.send(
                        Framed(message.id, frame.step, frame.fields is not None, frame.trust),
                        sender,
                    )
        finally:
            del self._writers[key]
        return Told(message.id, None)

    async def _call(self, message: Ask) -> Told:
        method = getattr(self._engine, message.method)
        try:
            value = await method(*message.arguments)
        finally:
            self._on_call()
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
    engine = LocalEngine(launch.settings, metrics, slots, launch.remembered)
    engine.start()
    device = resolve_device(launch.settings.device)
    server = EngineServer(
        engine,
        slots,
        on_call=lambda: line.beat(),
        on_memory=partial(lock, device=device) if device.type == "cuda" else lambda _: None,
    )

    def tell(message: Message) -> None:
        if isinstance(message, Gone):
            server.forget(message.identity)

    line = Lifeline(
        launch,
        metrics.registry,
        sign=lambda: Beat(server.endpoint, engine.remembered()),
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
