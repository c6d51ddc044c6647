"""A front end's connection to one engine process: its published state, and pending requests."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from typing import Any, NamedTuple

import numpy as np

from turbofno.models.core.config import ModelConfig
from turbofno.service import errors
from turbofno.service.engine.interface import (
    NO_FIELDS,
    Fields,
    Frame,
    PredictRequest,
    PredictResult,
    RolloutRequest,
)
from turbofno.service.engine.turn import Asked, Turn
from turbofno.service.errors import InferenceFailed, ServiceError, Unavailable
from turbofno.service.processes import messages
from turbofno.service.processes.channel import Channel
from turbofno.service.processes.joining import MOST_BYTES, alike, join, part_of
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.rollout_ring import copy_completely

_ENOUGH = 8
"""Requests at the engine with which it has enough to do: a further small one waits for others, since a message costs the engine
far more than a field."""


class _Pending(NamedTuple):
    """A request that waits for the engine's answer."""

    outcome: asyncio.Future[Any]
    sent: Any = None
    """The request as sent: its arrays are kept until the engine answers, even if nobody waits any more."""
    part: slice = slice(None)
    """The fields of a prediction among those of all that were joined with it."""


class EngineLink:
    """Every request ends exactly once: by the engine's answer, or by `close` if the engine died."""

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        memory: SlotMemory,
        *,
        most_joined: int,
        digest_of: Callable[[ModelConfig], str],
        on_state: Callable[[], None],
        on_queue: Callable[[], None],
    ) -> None:
        """`memory` holds all arrays that are sent; at most `most_joined` fields of several requests become one request.

        `digest_of` gives the digest of a configuration.
        """
        self._memory, self._digest_of = memory, digest_of
        self._most_joined = most_joined
        self._on_state, self._on_queue = on_state, on_queue
        self._numbers = itertools.count()
        self._pending: dict[int, _Pending] = {}
        self._turn = Turn(self._send_turn, self._cancel)
        self._frames: dict[int, asyncio.Queue[Frame | None]] = {}
        """Of each rollout, the frames not yet read; None marks the end."""
        self.state, self.queue = messages.EngineState(), messages.QueueState()
        self.told = False
        """True once the engine has told its state."""
        self.digests: dict[tuple[str, str], str] = {}
        """READY (model, version) -> digest of its configuration."""
        self._rolled_out = 0
        """Number of fields of rollouts whose callers wait."""
        self._dead = ""
        """Why the engine answers no more, or empty."""
        self._channel = Channel(self._receive, self._refer, self._resolve).connect(
            endpoint, identity
        )
        # Sent alone, since arrays of the same batch could not be resolved yet.
        self._channel.send(memory.attachment())
        self._channel.flush()

    @property
    def fields_in_flight(self) -> int:
        """Number of fields of predictions and rollouts whose callers wait."""
        return self._turn.fields_awaited + self._rolled_out

    def predict(self, request: PredictRequest) -> Coroutine[Any, Any, PredictResult]:
        """Send a request at the end of this turn of the event loop, joined with those like it (see `joining.join`).

        While the engine has enough to do, a small one waits for others, at most a millisecond.
        Cancelling drops work not yet started; of joined requests, once all are cancelled. Raises as Engine.predict.
        """
        busy = len(self._pending) >= _ENOUGH
        return self._turn.ask(request, patient=busy and request.fields.nbytes <= MOST_BYTES)

    def _send_turn(self, turn: list[Asked[int]]) -> None:
        for several in alike(turn, self._most_joined):
            self._send(several)
        self._channel.flush()

    def _cancel(self, number: int) -> None:
        self._channel.send(messages.Cancel(number))

    def _send(self, several: Sequence[Asked[int]]) -> None:
        failure = None
        try:
            self._refuse_if_dead()
            request = join(several, self._memory)
        except ServiceError as error:
            # The frames of its traceback keep what was allocated.
            failure = error.with_traceback(None)
        if failure is not None:
            if len(several) == 1:
                several[0].outcome.set_exception(failure)
                return
            # There may be room for some of them.
            for asked in several:
                self._send((asked,))
            return
        numbers, stop = [*itertools.islice(self._numbers, len(several))], 0
        for number, asked in zip(numbers, several, strict=True):
            start, stop = stop, stop + len(asked.request.fields)
            asked.work = number
            self._pending[number] = _Pending(asked.outcome, request, slice(start, stop))
            if request.joined:
                # Its fields are in shared memory now. Freed at once, the body's memory takes the next one while in the caches.
                asked.request.fields = NO_FIELDS
        self._channel.send(messages.Predict(numbers[0], request))

    async def rollout(self, request: RolloutRequest, ring: Fields) -> AsyncGenerator[Frame]:
        """Yield frames that the engine sends through `ring`. Closing ends the rollout. Raises as Engine.rollout."""
        number = next(self._numbers)
        end = self._expect(number, (request, ring))
        frames = self._frames[number] = asyncio.Queue()
        # Behind the last frame.
        end.add_done_callback(lambda _: frames.put_nowait(None))
        size = len(request.initial.fields)
        self._rolled_out += size
        self._channel.send(messages.StartRollout(number, request, ring))
        try:
            while (frame := await frames.get()) is not None:
                if frame.fields is not None:
                    fields = np.empty_like(frame.fields)
                    await copy_completely(fields, frame.fields)
                    frame.fields = fields
                self._channel.send(messages.Ack(number))
                yield frame
            end.result()
        finally:
            del self._frames[number]
            self._rolled_out -= size
            if end.cancel():
                self._channel.send(messages.Cancel(number))
            else:
                # Retrieved, else asyncio logs it as never retrieved.
                end.exception()
            # As in Turn.ask.
            del end

    async def ask(self, method: str, arguments: tuple[str, ...]) -> Any:
        """Call `load`, `unload` or `counters` of the engine."""
        self._turn.end()
        number = next(self._numbers)
        outcome = self._expect(number)
        self._channel.send(messages.Call(number, method, arguments))
        return await outcome

    def close(self, why: str) -> None:
        """Fail pending requests with Unavailable: the engine will not answer any more."""
        self._dead = why
        self._channel.close()
        for number in list(self._pending):
            self._settle(number, Unavailable(why, retry_after=1.0))
        self._turn.end()

    def _refer(self, value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return self._memory.span(value)
        return self._digest_of(value)

    def _resolve(self, _: type, reference: Any) -> Fields:
        return NO_FIELDS if reference is None else self._memory.view(reference)

    def _expect(self, number: int, sent: object = None) -> asyncio.Future[Any]:
        self._refuse_if_dead()
        outcome = asyncio.get_running_loop().create_future()
        self._pending[number] = _Pending(outcome, sent)
        return outcome

    def _refuse_if_dead(self) -> None:
        if self._dead:
            # It died after this engine was chosen.
            raise Unavailable(self._dead, retry_after=1.0)

    def _receive(self, _: bytes, received: list[messages.Message]) -> None:
        for message in received:
            match message:
                case messages.Predicted():
                    self._settle_all(message)
                case messages.Returned():
                    self._settle(message.id, message.value)
                case messages.FrameReady() if frames := self._frames.get(message.id):
                    frames.put_nowait(message.frame)
                case messages.Failed():
                    kind = getattr(errors, message.error, InferenceFailed)
                    self._settle(message.id, kind(**message.values))
                case messages.EngineState():
                    self.state, self.told = message, True
                    self.digests = {
                        (model.status.name, model.status.version): model.digest
                        for model in message.models
                        if model.digest
                    }
                    self._on_state()
                case messages.QueueState():
                    self.queue = message
                    self._on_queue()
        if len(self._pending) < _ENOUGH:
            self._turn.end()

    def _settle_all(self, message: messages.Predicted) -> None:
        """Give each of the predictions that were joined its part of the result."""
        for number in range(message.id, message.id + message.count):
            outcome, request, part = self._pending.pop(number)
            if not outcome.done():
                outcome.set_result(part_of(message.result, part, request.output_buffer))

    def _settle(self, number: int, outcome: Any) -> None:
        pending = self._pending.pop(number)
        if pending.outcome.done():
            return
        if isinstance(outcome, ServiceError):
            pending.outcome.set_exception(outcome)
        else:
            pending.outcome.set_result(outcome)
