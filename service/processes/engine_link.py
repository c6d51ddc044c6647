"""One engine process, as a front end sees it: what it told of itself, and what waits for its answer."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from turbofno.service import errors
from turbofno.service.engine.interface import NO_FIELDS
from turbofno.service.errors import InferenceFailed, ServiceError, Unavailable
from turbofno.service.processes.channel import Channel
from turbofno.service.processes.messages import (
    Ack,
    Ask,
    Begin,
    Cancel,
    Failed,
    FrameReady,
    Message,
    Predict,
    Predicted,
    Queue,
    Returned,
    State,
)
from turbofno.service.processes.rollout_ring import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import (
        Fields,
        Frame,
        PredictRequest,
        PredictResult,
        RolloutRequest,
    )
    from turbofno.service.processes.memory import SlotMemory


class _Call(NamedTuple):
    """A call that waits for an engine's answer."""

    outcome: asyncio.Future[Any]
    lent: tuple[Fields, Fields] | None
    """The slots that the engine may read and write: kept until it answers, even if nobody waits any more."""


class EngineLink:
    """Every prediction, rollout and call ends in exactly one way: the engine's answer, or `close` because it is dead."""

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        memory: SlotMemory,
        *,
        digest_of: Callable[[ModelConfig], str],
        on_state: Callable[[], None],
        on_queue: Callable[[], None],
    ) -> None:
        """`memory` is where all arrays lie that pass here; `digest_of` tells a configuration from all others."""
        self._memory, self._digest_of = memory, digest_of
        self._on_state, self._on_queue = on_state, on_queue
        self._numbers = itertools.count()
        self._calls: dict[int, _Call] = {}
        self._readers: dict[int, Reader] = {}
        self.state = State(ready=False, failure="", models=())
        self.queue = Queue((), 0.0)
        self.digests: dict[tuple[str, str], str] = {}
        """(model, version) that can serve -> digest of its configuration."""
        self.fields_under_way = 0
        self._dead = ""
        """The reason why nothing is answered any more, or empty."""
        self._channel = Channel.connect(endpoint, identity, self._receive, self)
        # In a message of its own: arrays in the same one could not be resolved yet. And last: it may be answered here.
        self._channel.send(memory.attachment())
        self._channel.flush()

    async def predict(self, request: PredictRequest) -> PredictResult:
        """Have the engine fill the request's `answer`. Cancelling drops work not yet started. Raises as Engine.predict."""
        number = next(self._numbers)
        assert request.answer is not None
        outcome = self._lend(number, request.fields, request.answer)
        self._channel.send(Predict(number, request))
        try:
            result: PredictResult = await outcome
        except asyncio.CancelledError:
            self._channel.send(Cancel(number))
            raise
        finally:
            # Else an error and this frame would refer to each other, and keep the slots until garbage is collected.
            del outcome
        result.fields = request.answer
        return result

    async def rollout(self, request: RolloutRequest, ring: Fields) -> AsyncGenerator[Frame]:
        """Have the engine send frames through `ring`. Closing ends the rollout. Raises as Engine.rollout."""
        number = next(self._numbers)
        end = self._lend(number, request.initial.fields, ring)
        reader = self._readers[number] = Reader()
        self._channel.send(Begin(number, request, ring))
        try:
            async with aclosing(reader.frames()) as frames:
                async for frame in frames:
                    self._channel.send(Ack(number))
                    yield frame
            end.result()
        finally:
            del self._readers[number]
            if end.cancel():
                self._channel.send(Cancel(number))
            else:
                # Looked at, else asyncio complains of an error that nobody saw.
                end.exception()
            # As in predict.
            del end

    async def ask(self, method: str, arguments: tuple[str, ...]) -> Any:
        """Call `load`, `unload` or `counters` of the engine."""
        number = next(self._numbers)
        outcome = self._expect(number)
        self._channel.send(Ask(number, method, arguments))
        return await outcome

    def close(self, why: str) -> None:
        """The engine will answer nothing more: refuse what waits for it."""
        self._dead = why
        self._channel.close()
        for number in list(self._calls):
            self._settle(number, Unavailable(why, retry_after=1.0))

    def refer(self, value: Any) -> Any:
        """See References."""
        if isinstance(value, np.ndarray):
            return self._memory.span(value)
        return self._digest_of(value)

    def resolve(self, _: type, reference: Any) -> Fields:
        """See References."""
        return NO_FIELDS if reference is None else self._memory.at(reference)

    def _lend(self, number: int, fields: Fields, answer: Fields) -> asyncio.Future[Any]:
        outcome = self._expect(number, (fields, answer))
        self.fields_under_way += len(fields)
        return outcome

    def _expect(
        self, number: int, lent: tuple[Fields, Fields] | None = None
    ) -> asyncio.Future[Any]:
        if self._dead:
            # It died between the choice of this engine and now.
            raise Unavailable(self._dead, retry_after=1.0)
        outcome = asyncio.get_running_loop().create_future()
        self._calls[number] = _Call(outcome, lent)
        return outcome

    def _receive(self, _: bytes, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Predicted():
                    self._settle(message.id, message.result)
                case Returned():
                    self._settle(message.id, message.value)
                case FrameReady() if reader := self._readers.get(message.id):
                    reader.arrived(message.frame)
                case Failed():
                    self._settle(message.id, _error(message))
                case State():
                    self.state = message
                    self.digests = {
                        (model.status.name, model.status.version): model.digest
                        for model in message.models
                        if model.digest
                    }
                    self._on_state()
                case Queue():
                    self.queue = message
                    self._on_queue()

    def _settle(self, number: int, outcome: Any) -> None:
        call = self._calls.pop(number)
        if call.lent is not None:
            self.fields_under_way -= len(call.lent[0])
        if call.outcome.done():
            return
        if reader := self._readers.get(number):
            reader.ended()
        if isinstance(outcome, ServiceError):
            call.outcome.set_exception(outcome)
        else:
            call.outcome.set_result(outcome)


def _error(refused: Failed) -> ServiceError:
    """The error that the engine raised."""
    kind = getattr(errors, refused.error, InferenceFailed)
    error: ServiceError = kind(**refused.values)
    return error
