"""Continuous batching of rollouts: those of one model on one grid advance together, and join and leave between turns.

A turn is a few steps of a batch, run as one job of the device thread. It is short, because predictions wait meanwhile,
and ends no later than the first of its rollouts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbofno.service.engine.interface import Fields, Frame, RolloutRequest
from turbofno.service.engine.out_of_memory import out_of_memory, release_frames
from turbofno.service.engine.runnable import State, Steppable, Turn, signals_of_all
from turbofno.service.errors import (
    BlowUp,
    DeadlineExceeded,
    InferenceFailed,
    ServiceError,
    Unavailable,
)
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batcher import Policy

TimeOnDevice = Callable[[Callable[[], Any]], Awaitable[tuple[Any, float]]]
"""Scheduler.time_on_device."""

logger = logging.getLogger(__name__)

_TURN_SECONDS = 0.02
"""Target duration of a turn: predictions that arrive meanwhile wait for its end."""
_MAX_STEPS = 64
"""In a turn."""


class Rollouts:
    """All rollouts of an engine. For the event loop only."""

    def __init__(self, policy: Policy, metrics: Metrics, time_on_device: TimeOnDevice) -> None:
        self._policy = policy
        self._metrics = metrics
        self._time_on_device = time_on_device
        self._groups: dict[tuple[int, tuple[int, ...], int], _Group] = {}
        """By the id of the model's instance, since a reload makes a new one, and the shape of a field; a rollout that exceeds a
        batch has a group of its own, by its id: others would wait until all its batches have run."""

    async def run(self, model: Steppable, request: RolloutRequest) -> AsyncGenerator[Frame]:
        """Yield the frames of one rollout; see Engine.rollout."""
        member = _Member(request)
        group = self._join(model, member)
        outcome = "left"
        try:
            while (frame := await member.next_frame()) is not None:
                # It may have room for more frames now.
                group.changed.set()
                yield frame
            outcome = "done"
        except ServiceError as error:
            outcome = "blow_up" if isinstance(error, BlowUp) else "failed"
            raise
        finally:
            group.leave(member)
            member.forget_error()
            self._metrics.rollouts_ended.labels(model.name, model.version, outcome).inc()

    def _join(self, model: Steppable, member: _Member) -> _Group:
        fields = member.request.initial.fields
        limit = self._policy.limit(fields.nbytes // len(fields), model=model.name)
        key = id(model), fields.shape[1:], id(member) if member.size > limit else 0
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = _Group(model, limit, self._metrics, self._time_on_device)
            # What is logged there does not belong to the request that is served here.
            group.task = asyncio.create_task(
                group.run(partial(self._groups.pop, key)), context=Context()
            )
        group.join(member)
        return group


class _Member:
    """The state of one rollout, between its group and the reader of its frames."""

    def __init__(self, request: RolloutRequest) -> None:
        self.request = request
        self.size = len(request.initial.fields)
        self.states: list[State] = [request.initial.fields]
        """Its fields, in several pieces if they exceed a batch."""
        self.step = request.start
        self._frames: deque[Frame] = deque()
        self._trust: dict[str, NDArray[np.float32]] = {}
        """Largest values of each signal, [n], since the last frame with fields."""
        self._unread = 0
        self._max_unread = request.unread_bytes // request.frame_bytes
        """Number of unread frames at which the rollout pauses."""
        self._error: ServiceError | None = None
        self._changed = asyncio.Event()

    async def next_frame(self) -> Frame | None:
        """The oldest unread frame; None after the last. After its frames, raises the error that ended the rollout."""
        while not self._frames:
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            self._changed.clear()
            await self._changed.wait()
        frame = self._frames.popleft()
        self._unread -= frame.fields is not None
        return frame

    @property
    def ended(self) -> bool:
        return self._error is not None or self.step == self.request.last

    @property
    def possible_steps(self) -> int:
        """Number of steps that it can run before its unread frames reach their limit."""
        left = self.request.last - self.step
        frames = self._max_unread - self._unread
        return min(left, frames * self.request.every) if self.request.every else left

    @property
    def late(self) -> bool:
        """True if its deadline passed before its first step."""
        deadline, begun = self.request.initial.deadline, self.step > self.request.start
        return deadline is not None and not begun and deadline < time.monotonic()

    def wanted(self, steps: int) -> list[int]:
        """Those of the next steps, counted from 1, that give a frame."""
        return [one for one in range(1, steps + 1) if self.request.wants(self.step + one)]

    def advance(
        self,
        states: list[State],
        frames: dict[int, Fields],
        excess: NDArray[np.float32],
        trust: dict[str, NDArray[np.float32]],
        steps: int,
    ) -> None:
        # False for NaN, too
        fine = (excess <= 1.0).all(axis=1)
        good = steps if fine.all() else int(np.argmin(fine))
        reported = 0
        for step, fields in frames.items():
            if step <= good:
                self._note_trust(trust, reported, step)
                reported = step
                found = {name: tuple(values.tolist()) for name, values in self._trust.items()}
                self._push(Frame(self.step + step, fields, found))
                self._trust.clear()
        self._note_trust(trust, reported, steps)
        if good < steps:
            self.fail(_blow_up(self.step + good + 1, excess[good]))
            return
        self.states = states
        self.step += steps
        if steps not in frames:
            if self._frames and self._frames[-1].fields is None:
                self._frames.pop()
            self._push(Frame(self.step))

    def _note_trust(self, trust: dict[str, NDArray[np.float32]], begin: int, end: int) -> None:
        """Keep the largest signals of steps `begin:end` of a turn."""
        for name, values in trust.items():
            largest = values[begin:end].max(axis=0, initial=0.0)
            self._trust[name] = np.maximum(self._trust.get(name, 0.0), largest)

    def fail(self, error: ServiceError) -> None:
        self._error = error
        self._changed.set()

    def forget_error(self) -> None:
        """Drop the error once raised: its traceback refers to this, and would keep the fields until the garbage collection."""
        self._error = None

    def _push(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._unread += frame.fields is not None
        self._changed.set()


@dataclass(eq=False, slots=True)
class _Group:
    """The rollouts of one key; they take turns if they do not all fit into a batch."""

    model: Steppable
    limit: int
    metrics: Metrics
    time_on_device: TimeOnDevice
    members: list[_Member] = field(default_factory=list)
    """The one that has waited longest comes first."""
    suspects: list[_Member] = field(default_factory=list)
    """Members of a failed turn: each runs alone once."""
    steps: int = 1
    fields: int = 1
    """Of the turn for which `steps` are fitting."""
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[None] | None = None
    """Takes the turns."""

    def join(self, member: _Member) -> None:
        self.members.append(member)
        self.changed.set()

    def leave(self, member: _Member) -> None:
        if member in self.members:
            self.members.remove(member)
        self.changed.set()

    async def run(self, on_end: Callable[[], object]) -> None:
        try:
            while self.members:
                self.changed.clear()
                if chosen := self._choose():
                    await self._turn(chosen)
                    self.members = [one for one in self.members if not one.ended]
                else:
                    await self.changed.wait()
        except Exception as error:
            logger.exception("rollouts of model %s failed", self.model.name)
            fatal = InferenceFailed(f"rollouts of model {self.model.name!r} failed")
            for member in self.members:
                member.fail(error if isinstance(error, ServiceError) else fatal)
        finally:
            on_end()

    def _choose(self) -> list[_Member]:
        """The members of the next turn: as many as fit into a batch, or one that alone exceeds a batch."""
        for member in [one for one in self.members if one.late]:
            self.members.remove(member)
            self.metrics.reject("deadline", self.model.name)
            member.fail(
                DeadlineExceeded("the rollout's deadline passed before its first step could run")
            )
        ready = [one for one in self.members if one.possible_steps > 0]
        for suspect in self.suspects:
            if suspect in ready:
                self.suspects.remove(suspect)
                return [suspect]
        chosen: list[_Member] = []
        room = self.limit
        for member in ready:
            if chosen and member.size > room:
                break
            chosen.append(member)
            room -= member.size
        return chosen

    async def _turn(self, chosen: list[_Member]) -> None:
        fields = sum(member.size for member in chosen)
        # Each step of more fields may take as many times as long.
        fitting = max(1, self.steps * min(self.fields, fields) // fields)
        steps = min(fitting, *(member.possible_steps for member in chosen))
        wanted = [member.wanted(steps) for member in chosen]
        seconds = 0.0
        turns: list[Turn] = []
        try:
            for states in self._batches(chosen):
                if turns and chosen[0] not in self.members:
                    # Its client left.
                    return
                work = partial(self.model.advance, states, wanted, steps=steps)
                turn, taken = await self.time_on_device(work)
                turns.append(turn)
                seconds += taken
        except Exception as error:
            await self._on_failure(chosen, error)
            return
        fitting = max(1, int(_TURN_SECONDS * steps / max(seconds, 1e-6)))
        self.steps, self.fields = min(fitting, 2 * self.steps, _MAX_STEPS), fields
        labels = (self.model.name, self.model.version)
        self.metrics.rollout_steps.labels(*labels).inc(fields * steps)
        self.metrics.rollout_batch_size.labels(*labels).observe(fields)
        for index, member in enumerate(chosen):
            signals = signals_of_all([turn.trust[index] for turn in turns])
            member.advance(
                [turn.states[index] for turn in turns],
                {
                    step: _concatenate([turn.frames[index][step] for turn in turns])
                    for step in wanted[index]
                },
                _concatenate([turn.excess[index] for turn in turns], axis=1),
                {name: _concatenate(values, axis=1) for name, values in signals.items()},
                steps,
            )
        # Requeue them behind the others, unless they left meanwhile.
        others = [one for one in self.members if one not in chosen]
        self.members = others + [one for one in chosen if one in self.members]

    def _batches(self, chosen: list[_Member]) -> list[list[State]]:
        """The batches of a turn: one, or several for a member that exceeds a batch, so that other work runs between."""
        if len(chosen) > 1:
            # A member that fits into a batch is in one piece, since limits are only ever lowered.
            return [[member.states[0] for member in chosen]]
        return [
            [state[start : start + self.limit]]
            for state in chosen[0].states
            for start in range(0, len(state), self.limit)
        ]

    async def _on_failure(self, chosen: list[_Member], error: Exception) -> None:
        """Retry in smaller batches or each rollout alone (a failed turn changes no state), or fail the members."""
        fatal: ServiceError
        if isinstance(error, ServiceError):
            fatal = error
        elif out_of_memory(error):
            release_frames(error)
            await self.time_on_device(self.model.free_memory)
            if self.limit > 1 or self.steps > 1:
                self.limit, self.steps = max(1, self.limit // 2), 1
                return
            fatal = Unavailable(
                f"there is not enough free memory to go on with this rollout of model {self.model.name!r}; resume "
                "it later from where it ended, with fewer fields or a coarser grid",
                retry_after=5.0,
            )
        elif len(chosen) > 1:
            logger.warning(
                "a turn of %d rollouts failed on model %s (%s); each runs alone once",
                len(chosen), self.model.name, type(error).__name__,
            )  # fmt: skip
            self.suspects = list(chosen)
            return
        else:
            about = {"data": {"request_id": chosen[0].request.initial.request_id}}
            logger.error("model %s failed", self.model.name, exc_info=error, extra=about)
            fatal = InferenceFailed(
                f"model {self.model.name!r} failed on this rollout alone; the server's log has the cause"
            )
        for member in chosen:
            member.fail(fatal)


def _concatenate(parts: list[NDArray[np.float32]], axis: int = 0) -> NDArray[np.float32]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _blow_up(step: int, excess: NDArray[np.float32]) -> BlowUp:
    field = int(np.argmin(excess <= 1.0))
    worst = excess[field]
    reason, why = "not_finite", "NaN, infinity, or values too large to square"
    if np.isfinite(worst):
        limit = "the value range in the model's statistics allows"
        reason, why = "energy", f"its energy is {worst:.3g} times the most that {limit}"
    return BlowUp(
        f"field {field} (counted from 0) blew up at step {step}: {why}",
        step=step,
        reason=reason,
    )
