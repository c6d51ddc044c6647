"""An engine process: serves a local engine, of one device or of a group, to front ends by messages and shared memory."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import signal
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbofno.models.core.config import ModelConfig
from turbofno.service.engine.interface import NO_FIELDS, ModelStatus, PredictResult
from turbofno.service.engine.local import LocalEngine
from turbofno.service.errors import InferenceFailed, ServiceError, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.ticket import CANCELLED, Ticket
from turbofno.service.processes import messages
from turbofno.service.processes.channel import Channel, new_endpoint
from turbofno.service.processes.launch import Launch
from turbofno.service.processes.liveness import LivenessPipe
from turbofno.service.processes.memory import AttachedMemory
from turbofno.service.processes.rollout_ring import Writer
from turbofno.service.processes.slab_group import LOST, Rank, SlabGroup
from turbofno.service.runtime.device import resolve_device
from turbofno.service.runtime.page_locked import lock
from turbofno.service.system import keep_models
from turbofno.service.triton_metrics import TritonMetrics

logger = logging.getLogger(__name__)

_GATHER_SECONDS = 0.001
"""Longest time for which predictions are held back while the device has enough to do: those submitted together cost less."""
_STATE_SECONDS = 0.05
"""Interval between checks for changed model states."""
_MAX_CONFIGS = 256
"""Number of configurations kept, including those of models reloaded since."""
_UNKNOWN = ModelConfig.__new__(ModelConfig)
"""Placeholder for a configuration that is no longer kept; it differs from all others."""


@dataclass(eq=False)
class _FrontEnd:
    """A connected front end and its pending requests, by number."""

    identity: bytes
    memory: AttachedMemory
    channel: Channel
    answers: dict[int, _Answer] = field(default_factory=dict)
    """Of joined ones the same for each of them."""
    rollouts: dict[int, tuple[asyncio.Task[None], Writer]] = field(default_factory=dict)

    def send(self, message: messages.Message) -> None:
        self.channel.send(message, self.identity)


class _Answer:
    """The outcome of a prediction, or of joined ones (pipeline/ticket.py), sent as a message."""

    __slots__ = ("_front_end", "_sent", "_unwanted", "numbers", "ticket")

    def __init__(self, front_end: _FrontEnd, numbers: range) -> None:
        """`numbers` are the ids of the joined requests, or of the one."""
        self._front_end, self.numbers = front_end, numbers
        self._unwanted: set[int] = set()
        self._sent = False
        self.ticket: Ticket | None = None
        for number in numbers:
            front_end.answers[number] = self

    def done(self) -> bool:
        return self._sent

    def set_result(self, result: PredictResult) -> None:
        result.fields = NO_FIELDS
        self._end()
        self._front_end.send(messages.Predicted(self.numbers.start, result, len(self.numbers)))

    def set_exception(self, error: ServiceError) -> None:
        self._end()
        for number in self.numbers:
            self._front_end.send(_refused(number, error))

    def alone(self) -> list[_Answer]:
        self._end()
        answers = [_Answer(self._front_end, range(n, n + 1)) for n in self.numbers]
        for number, answer in zip(self.numbers, answers, strict=True):
            if number in self._unwanted:
                answer.set_exception(CANCELLED)
        return answers

    def divided(self, tickets: Sequence[Ticket]) -> None:
        for ticket in tickets:
            outcome = ticket.outcome
            assert isinstance(outcome, _Answer)
            outcome.expect(ticket)

    def expect(self, ticket: Ticket | None) -> None:
        """Note the ticket that sets this, to cancel it, unless it was set already."""
        if not self._sent:
            self.ticket = ticket

    def drop(self, number: int) -> bool:
        """Note that a request is not wanted any more. True if none is."""
        self._unwanted.add(number)
        return len(self._unwanted) == len(self.numbers)

    def _end(self) -> None:
        self._sent = True
        # The ticket refers to this: a cycle would keep its arrays, and so a dead front end's memory.
        self.ticket = None
        for number in self.numbers:
            del self._front_end.answers[number]


class EngineServer:
    """Answers every Predict, StartRollout and Call of a live front end exactly once."""

    def __init__(
        self,
        engine: LocalEngine,
        capacity: QueueCapacity,
        on_call: Callable[[], None],
        on_memory: Callable[[messages.Attach, NDArray[np.uint8]], object] = lambda *_: None,
    ) -> None:
        """`on_call` is called after a model was loaded or unloaded, before the answer is sent.

        `on_memory` is called with the whole memory of each front end before it is used.
        """
        self._engine = engine
        self._on_call = on_call
        self._on_memory = on_memory
        self._capacity = capacity
        self._front_ends: dict[bytes, _FrontEnd] = {}
        self._arrived: list[tuple[_FrontEnd, messages.Predict]] = []
        """Predictions that are submitted together: those of this turn of the event loop, or of `_GATHER_SECONDS`."""
        self._gathering: asyncio.TimerHandle | None = None
        """Submits them then, unless something else does before."""
        engine.when_free(self._submit_arrived)
        self._calls: set[asyncio.Task[Any]] = set()
        """Completed even if the calling front end dies."""
        self._configs: dict[str, ModelConfig] = {}
        self._published: dict[tuple[str, str], tuple[ModelConfig, str, str]] = {}
        """(model, version) -> configuration, its digest, its JSON."""
        self._state, self._queue = messages.EngineState(), messages.QueueState()
        self.endpoint = new_endpoint()
        self._channel = Channel(self._receive, self._refer, self._resolve, self.remove)
        self._channel.listen(self.endpoint)

    async def run(self) -> None:
        """Publish state changes to the front ends until the device fails or the task is cancelled."""
        warm = False
        while not self._engine.failure:
            if not warm and self._engine.ready:
                warm = True
                keep_models()
            self._publish()
            await asyncio.sleep(_STATE_SECONDS)
        self._publish()

    def remove(self, identity: bytes) -> None:
        """Cancel the requests of a dead front end and release its memory."""
        self._submit_arrived()
        front_end = self._front_ends.pop(identity, None)
        if front_end is not None:
            for answer in dict.fromkeys(front_end.answers.values()):
                if answer.ticket is not None:
                    self._engine.cancel(answer.ticket)
            for rollout, _ in front_end.rollouts.values():
                rollout.cancel()

    def _refer(self, value: Any) -> Any:
        if value is NO_FIELDS:
            return None
        return self._front_ends[self._channel.peer].memory.span(value)

    def _resolve(self, kind: type, reference: Any) -> Any:
        if kind is ModelConfig:
            return self._configs.get(reference, _UNKNOWN)
        front_end = self._front_ends.get(self._channel.peer)
        if front_end is None:
            raise Unavailable("the front end is gone")
        return front_end.memory.view(reference)

    def close(self) -> None:
        """Send pending messages and stop listening."""
        self._submit_arrived()
        self._channel.flush()
        self._channel.close()

    def _receive(self, sender: bytes, received: list[messages.Message]) -> None:
        front_end = self._front_ends.get(sender)
        for message in received:
            if isinstance(message, messages.Attach):
                front_end = self._attach(sender, message)
            elif front_end is None:
                continue
            elif isinstance(message, messages.Predict):
                if not self._arrived:
                    self._plan_submission()
                self._arrived.append((front_end, message))
            else:
                # It may concern them.
                self._submit_arrived()
                self._handle(front_end, message)

    def _handle(self, front_end: _FrontEnd, message: messages.Message) -> None:
        match message:
            case messages.StartRollout():
                writer = Writer(message.ring)
                rollout = asyncio.create_task(self._rollout(front_end, message, writer))
                front_end.rollouts[message.id] = rollout, writer
                rollout.add_done_callback(partial(self._answer, front_end, message.id))
            case messages.Call():
                call = asyncio.create_task(self._call(message))
                self._calls.add(call)
                call.add_done_callback(partial(self._answer, front_end, message.id))
            case messages.Ack() if running := front_end.rollouts.get(message.id):
                running[1].ack()
            case messages.Cancel() if running := front_end.rollouts.get(message.id):
                running[0].cancel()
            case messages.Cancel() if answer := front_end.answers.get(message.id):
                if answer.drop(message.id) and answer.ticket is not None:
                    self._engine.cancel(answer.ticket)

    def _attach(self, identity: bytes, attachment: messages.Attach) -> _FrontEnd | None:
        try:
            memory = AttachedMemory(attachment)
        except OSError as error:
            logger.warning("the memory of %s cannot be opened: %s", identity.decode(), error)
            return None
        self._on_memory(attachment, memory.bytes)
        front_end = self._front_ends[identity] = _FrontEnd(identity, memory, self._channel)
        front_end.send(self._state)
        front_end.send(self._queue)
        return front_end

    def _plan_submission(self) -> None:
        loop = asyncio.get_running_loop()
        if self._engine.supplied:
            self._gathering = loop.call_later(_GATHER_SECONDS, self._submit_arrived)
        else:
            loop.call_soon(self._submit_arrived)

    def _submit_arrived(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None
        arrived, self._arrived = self._arrived, []
        if not arrived:
            return
        block = [
            (message.request, _Answer(front_end, _numbers(message)))
            for front_end, message in arrived
        ]
        try:
            tickets = self._engine.submit(block)
        except Exception as error:
            for front_end, message in arrived:
                for number in _numbers(message):
                    if answer := front_end.answers.get(number):
                        answer.set_exception(_unexpected(number, front_end, error))
            return
        for (_, answer), ticket in zip(block, tickets, strict=True):
            answer.expect(ticket)

    def _answer(self, front_end: _FrontEnd, number: int, task: asyncio.Task[Any]) -> None:
        """Send the outcome of a rollout or call, also if it was cancelled before its first step."""
        self._calls.discard(task)
        front_end.rollouts.pop(number, None)
        error = CANCELLED if task.cancelled() else task.exception()
        if error is None:
            front_end.send(messages.Returned(number, task.result()))
            return
        if not isinstance(error, ServiceError):
            error = _unexpected(number, front_end, error)
        front_end.send(_refused(number, error))

    async def _rollout(
        self, front_end: _FrontEnd, message: messages.StartRollout, writer: Writer
    ) -> None:
        initial = message.request.initial
        initial.fields = front_end.memory.copyable(initial.fields)
        async with aclosing(self._engine.rollout(message.request)) as frames:
            async for frame in frames:
                front_end.send(messages.FrameReady(message.id, await writer.put(frame)))

    async def _call(self, message: messages.Call) -> Any:
        method = getattr(self._engine, message.method)
        try:
            value = await method(*message.arguments)
        finally:
            self._on_call()
        # Before the answer, so that the caller then sees the new state.
        self._publish()
        return value

    def _publish(self) -> None:
        statuses = self._engine.statuses()
        models = tuple(map(self._model_state, statuses))
        known = {(status.name, status.version) for status in statuses}
        self._published = {key: of for key, of in self._published.items() if key in known}
        state = messages.EngineState(self._engine.ready, models)
        queue = messages.QueueState(
            tuple((s.name, s.version, self._capacity.waiting(s.name, s.version)) for s in statuses),
            self._capacity.drain_seconds,
        )
        for front_end in self._front_ends.values():
            if state != self._state:
                front_end.send(state)
            if queue != self._queue:
                front_end.send(queue)
        self._state, self._queue = state, queue

    def _model_state(self, status: ModelStatus) -> messages.ModelState:
        if status.state != "READY":
            return messages.ModelState(status, "", "")
        config = self._engine.config(status.name, status.version)
        known, digest, text = self._published.get((status.name, status.version), (None, "", ""))
        if known is not config:
            text = config.model_dump_json()
            digest = hashlib.sha256(text.encode()).hexdigest()
            self._published[status.name, status.version] = config, digest, text
            self._configs[digest] = config
            # However old, those of the models: their requests name them.
            published = {digest: config for config, digest, _ in self._published.values()}
            self._configs = dict(list(self._configs.items())[-_MAX_CONFIGS:]) | published
        return messages.ModelState(status, digest, text)


def _numbers(message: messages.Predict) -> range:
    """The ids of a message's predictions."""
    return range(message.id, message.id + (len(message.request.joined) or 1))


def _refused(number: int, error: ServiceError) -> messages.Failed:
    return messages.Failed(number, type(error).__name__, vars(error))


def _unexpected(number: int, front_end: _FrontEnd, error: BaseException) -> InferenceFailed:
    name = front_end.identity.decode()
    logger.error("unexpected failure of request %d of %s", number, name, exc_info=error)
    return InferenceFailed("the engine failed on this request; the server's log has the cause")


async def run(launch: Launch, ranks: list[Rank]) -> int:
    """Serve front ends until SIGTERM, with the other ranks if there are some. Returns the exit status: 1 if a device failed, or a rank of several.

    Raises:
        ValueError: a wrong repository, model name or device.
    """
    metrics = Metrics()
    if launch.settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    capacity = QueueCapacity(launch.settings, metrics)
    try:
        group = await SlabGroup.start(launch, metrics, ranks) if ranks else None
    except RuntimeError as error:
        logger.error("the ranks of %s have not joined: %s", launch.name, error)
        return 1
    engine = LocalEngine(launch.settings, metrics, capacity, launch.recovery, group)
    engine.start()
    device = resolve_device(launch.settings.device)

    def on_memory(attachment: messages.Attach, memory: NDArray[np.uint8]) -> None:
        if device.type == "cuda":
            lock(memory, attachment.kept, device)
        if group is not None:
            group.map(attachment, memory)

    server = EngineServer(engine, capacity, lambda: pipe.send_heartbeat(), on_memory)

    def heartbeat() -> messages.Heartbeat:
        return messages.Heartbeat(server.endpoint, engine.recovery_records())

    pipe = LivenessPipe(launch, metrics.registry, make_heartbeat=heartbeat)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    ends = [server.run(), stop.wait(), *([] if group is None else [group.watch()])]
    tasks = [asyncio.create_task(end) for end in ends]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()
    if group is not None:
        # First, so that the device thread waits for no rank any more.
        await group.close()
        if group.lost:
            # Else those that wait would be told that the service stopped.
            engine.lose_device(LOST)
    # Errors that this sets are still sent.
    await engine.close(within=0.0)
    await asyncio.sleep(0)
    server.close()
    pipe.close()
    if launch.settings.tracing:
        from turbofno.service.tracing import setup

        await asyncio.to_thread(setup.stop)
    return 1 if engine.failure else 0
