"""One engine process, as a front end sees it: what it told of itself, and what waits for its answer."""

from __future__ import annotations

import asyncio
import itertools
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from service import errors
from service.errors import InferenceFailed, ServiceError, Unavailable
from service.processes.channel import Channel
from service.processes.messages import (
    Ask,
    Attach,
    Begin,
    Cancel,
    Framed,
    Message,
    Predict,
    Predicted,
    Queue,
    Refused,
    State,
    Taken,
    Told,
)
from service.processes.rollout_ring import Reader

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from service.pipeline.engine import Fields, Frame


class EngineLink:
    """Every prediction, rollout and call ends in exactly one way: the engine's answer, or `close` because it is dead."""

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        attachment: Attach,
        *,
        on_state: Callable[[], None],
        on_queue: Callable[[], None],
    ) -> None:
        self._on_state, self._on_queue = on_state, on_queue
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._lent: dict[int, tuple[Fields, Fields]] = {}
        """The slots that the engine may read and write: kept until it answers, even if nobody waits any more."""
        self._readers: dict[int, Reader] = {}
        self._channel = Channel.connect(endpoint, identity, self._receive)
        self._channel.send(attachment)
        self.state = State(ready=False, failure="", models=())
        self.queue = Queue((), 0.0)
        self.digests: dict[tuple[str, str], str] = {}
        """(model, version) that can serve -> digest of its configuration."""
        self.fields_under_way = 0

    async def predict(
        self, fields: Fields, answer: Fields, message: Callable[[int], Predict]
    ) -> Predicted:
        """Have the engine fill `answer`. Cancelling drops work not yet started. Raises as Engine.predict."""
        number = next(self._numbers)
        future = self._lend(number, fields, answer)
        self._channel.send(message(number))
        try:
            predicted: Predicted = await future
        except asyncio.CancelledError:
            self._channel.send(Cancel(number))
            raise
        finally:
            # Else an error and this frame would refer to each other, and keep the slots until garbage is collected.
            del future
        return predicted

    async def rollout(
        self, fields: Fields, ring: Fields, message: Callable[[int], Begin]
    ) -> AsyncGenerator[Frame]:
        """Have the engine send frames through `ring`. Closing ends the rollout. Raises as Engine.rollout."""
        number = next(self._numbers)
        end = self._lend(number, fields, ring)
        reader = self._readers[number] = Reader(ring)
        self._channel.send(message(number))
        try:
            async with aclosing(reader.frames()) as frames:
                async for frame in frames:
                    self._channel.send(Taken(number))
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
        future = self._expect(number)
        self._channel.send(Ask(number, method, arguments))
        told: Told = await future
        return told.value

    def close(self, why: str) -> None:
        """The engine will answer nothing more: refuse what waits for it."""
        self._channel.close()
        for number in list(self._waiting):
            self._settle(number, Unavailable(why, retry_after=1.0))

    def _lend(self, number: int, fields: Fields, answer: Fields) -> asyncio.Future[Any]:
        self._lent[number] = (fields, answer)
        self.fields_under_way += len(fields)
        return self._expect(number)

    def _expect(self, number: int) -> asyncio.Future[Any]:
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        return future

    def _receive(self, _: bytes, message: Message) -> None:
        match message:
            case Predicted() | Told():
                self._settle(message.id, message)
            case Framed() if reader := self._readers.get(message.id):
                reader.arrived(message)
            case Refused():
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

    def _settle(self, number: int, outcome: Predicted | Told | ServiceError) -> None:
        future = self._waiting.pop(number)
        lent = self._lent.pop(number, None)
        if lent is not None:
            self.fields_under_way -= len(lent[0])
        if future.done():
            return
        if reader := self._readers.get(number):
            reader.ended()
        if isinstance(outcome, ServiceError):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)


def _error(refused: Refused) -> ServiceError:
    """The error that the engine raised."""
    kind = getattr(errors, refused.error, InferenceFailed)
    error: ServiceError = kind(**refused.values)
    return error
