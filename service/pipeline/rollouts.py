"""Rollouts under way: those of one model on one grid step together; each joins and leaves between turns.

A turn is a few steps of a batch, run as one job of the device thread: short, because predictions wait meanwhile, and
never beyond the step at which the first of its rollouts ends, so that nothing runs for nobody.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from turbofno.service.engine.interface import Frame, unread_bytes
from turbofno.service.engine.out_of_memory import out_of_memory, release_frames
from turbofno.service.errors import (
    BlowUp,
    DeadlineExceeded,
    InferenceFailed,
    ServiceError,
    Unavailable,
)

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Awaitable, Callable
    from typing import Any, Protocol

    from numpy.typing import NDArray

    from turbofno.service.engine.interface import Fields, RolloutRequest
    from turbofno.service.engine.runnable import State, Steppable, Turn
    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.batcher import Policy

    class RunOnDevice(Protocol):
        """Scheduler.run_on_device."""

        def __call__(self, work: Callable[[], Any]) -> Awaitable[Any]: ...


logger = logging.getLogger(__name__)

_TURN_SECONDS = 0.02
"""About what a turn may take: predictions that come meanwhile wait for its end."""
_MOST_STEPS = 64
"""In a turn."""


class _Key(NamedTuple):
    """Rollouts with equal keys can share a batch. `model` is an identity: a reloaded model is another."""

    model: int
    shape: tuple[int, ...]


class Rollouts:
    """All rollouts of an engine. For its event loop only."""

    def __init__(self, policy: Policy, metrics: Metrics, run_on_device: RunOnDevice) -> None:
        self._policy = policy
        self._metrics = metrics
        self._run_on_device = run_on_device
        self._groups: dict[_Key, _Group] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self, model: Steppable, request: RolloutRequest) -> AsyncGenerator[Frame]:
        """The frames of one rollout; see Engine.rollout."""
        member = _Member(request)
        group = self._join(model, member)
        outcome = "left"
        try:
            while (frame := await member.next_frame()) is not None:
                group.wake()
                yield frame
            outcome = "done"
        except ServiceError as error:
            outcome = "blow_up" if isinstance(error, BlowUp) else "failed"
            raise
        finally:
            group.leave(member)
            self._metrics.rollouts_ended.labels(model.name, model.version, outcome).inc()

    def _join(self, model: Steppable, member: _Member) -> _Group:
        fields = member.request.initial.fields
        key = _Key(id(model), fields.shape[1:])
        group = self._groups.get(key)
        if group is None:
            limit = self._policy.for_model(model.name).limit(fields.nbytes // len(fields))
            group = self._groups[key] = _Group(model, limit, self._metrics, self._run_on_device)
            task = asyncio.create_task(group.run(partial(self._groups.pop, key)))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        group.join(member)
        return group


class _Member:
    """One rollout between its group and whoever reads its frames."""

    def __init__(self, request: RolloutRequest) -> None:
        self.request = request
        self.size = len(request.initial.fields)
        self.states: list[State] = [request.initial.fields]
        """All its fields; in several pieces where they are more than a batch."""
        self.step = request.start
        self._frames: deque[Frame] = deque()
        self._trust: dict[str, NDArray[np.float32]] = {}
        """Each signal's largest values, [n], since the last frame with fields."""
        self._unread = 0
        fields = request.initial.fields
        self._most_unread = unread_bytes(fields) // fields.nbytes
        """Frames; with so many not taken it waits."""
        self._error: ServiceError | None = None
        self._news = asyncio.Event()

    async def next_frame(self) -> Frame | None:
        """The oldest frame not yet taken; None after the last. Raises what ended the rollout, after its frames."""
        while not self._frames:
            if self._error is not None:
                raise self._error
            if self.ended:
                return None
            self._news.clear()
            await self._news.wait()
        frame = self._frames.popleft()
        self._unread -= frame.fields is not None
        return frame

    @property
    def ended(self) -> bool:
        return self._error is not None or self.step == self.request.last

    @property
    def room(self) -> int:
        """Steps that it can make now, with room for the frames that they give."""
        left = self.request.last - self.step
        frames = self._most_unread - self._unread
        return min(left, frames * self.request.every) if self.request.every else left

    @property
    def late(self) -> bool:
        """It has not begun, and its deadline has passed."""
        deadline, begun = self.request.initial.deadline, self.step > self.request.start
        return deadline is not None and not begun and deadline < time.monotonic()

    def wanted(self, steps: int) -> list[int]:
        """Which of the next steps, counted from 1, give a frame."""
        return [one for one in range(1, steps + 1) if self.request.wants(self.step + one)]

    def advance(
        self,
        states: list[State],
        frames: dict[int, Fields],
        excess: NDArray[np.float32],
        trust: dict[str, NDArray[np.float32]],
        steps: int,
    ) -> None:
        """Take in what a turn gave."""
        # NaN is not at most 1 either
        fine = (excess <= 1.0).all(axis=1)
        good = steps if fine.all() else int(np.argmin(fine))
        judged = 0
        for step, fields in frames.items():
            if step <= good:
                self._judged(trust, judged, step)
                judged = step
                found = {name: tuple(values.tolist()) for name, values in self._trust.items()}
                self._put(Frame(self.step + step, fields, found))
                self._trust.clear()
        self._judged(trust, judged, steps)
        if good < steps:
            self.fail(_blow_up(self.step + good + 1, excess[good]))
            return
        self.states = states
        self.step += steps
        if steps not in frames:
            if self._frames and self._frames[-1].fields is None:
                self._frames.pop()
            self._put(Frame(self.step))

    def _judged(self, trust: dict[str, NDArray[np.float32]], begin: int, end: int) -> None:
        """Note the signals of those steps of a turn."""
        for name, values in trust.items():
            largest = values[begin:end].max(axis=0, initial=0.0)
            self._trust[name] = np.maximum(self._trust.get(name, 0.0), largest)

    def fail(self, error: ServiceError) -> None:
        """End it with that."""
        self._error = error
        self._news.set()

    def _put(self, frame: Frame) -> None:
        self._frames.append(frame)
        self._unread += frame.fields is not None
        self._news.set()


class _Group:
    """The rollouts of one key; they take turns where not all fit into a batch."""

    def __init__(
        self, model: Steppable, limit: int, metrics: Metrics, run_on_device: RunOnDevice
    ) -> None:
        self._model = model
        self._limit = limit
        self._metrics = metrics
        self._run_on_device = run_on_device
        self._members: list[_Member] = []
        """The one that has waited longest first."""
        self._suspects: list[_Member] = []
        """A turn of theirs failed: each runs alone once."""
        self._steps = 1
        self._changed = asyncio.Event()

    def join(self, member: _Member) -> None:
        self._members.append(member)
        self._changed.set()

    def leave(self, member: _Member) -> None:
        if member in self._members:
            self._members.remove(member)
        self._changed.set()

    def wake(self) -> None:
        """A frame was taken: there may be room for another."""
        self._changed.set()

    async def run(self, on_end: Callable[[], object]) -> None:
        """Turn after turn until nobody is left."""
        try:
            while self._members:
                self._changed.clear()
                if chosen := self._choose():
                    await self._turn(chosen)
                    self._members = [one for one in self._members if not one.ended]
                else:
                    await self._changed.wait()
        except Exception as error:
            logger.exception("rollouts of model %s failed", self._model.name)
            fatal = (
                error
                if isinstance(error, ServiceError)
                else InferenceFailed(f"rollouts of model {self._model.name!r} failed")
            )
            for member in self._members:
                member.fail(fatal)
        finally:
            on_end()

    def _choose(self) -> list[_Member]:
        """The members of the next turn: as many as fit into a batch, or one that is larger than a batch by itself."""
        for member in [one for one in self._members if one.late]:
            self._members.remove(member)
            member.fail(
                DeadlineExceeded("the rollout's deadline passed before its first step could run")
            )
        able = [one for one in self._members if one.room > 0]
        for suspect in [one for one in self._suspects if one in able][:1]:
            self._suspects.remove(suspect)
            return [suspect]
        chosen: list[_Member] = []
        room = self._limit
        for member in able:
            if chosen and member.size > room:
                break
            chosen.append(member)
            room -= member.size
        return chosen

    async def _turn(self, chosen: list[_Member]) -> None:
        steps = min(self._steps, *(member.room for member in chosen))
        wanted = [member.wanted(steps) for member in chosen]
        started = time.perf_counter()
        turns: list[Turn] = []
        try:
            for states in self._batches(chosen):
                if turns and chosen[0] not in self._members:
                    # Nobody wants the rest.
                    return
                work = partial(self._model.advance, states, wanted, steps=steps)
                turns.append(await self._run_on_device(work))
        except Exception as error:
            await self._failed(chosen, error)
            return
        self._learn(time.perf_counter() - started, steps)
        self._count(chosen, steps)
        for index, member in enumerate(chosen):
            member.advance(
                [turn.states[index] for turn in turns],
                {
                    step: _joined([turn.frames[index][step] for turn in turns])
                    for step in wanted[index]
                },
                _joined([turn.excess[index] for turn in turns], axis=1),
                _joined_signals([turn.trust[index] for turn in turns]),
                steps,
            )
        # To the end of the line, unless they left meanwhile.
        others = [one for one in self._members if one not in chosen]
        self._members = others + [one for one in chosen if one in self._members]

    def _batches(self, chosen: list[_Member]) -> list[list[State]]:
        """One of all that were chosen; of one that is larger than a batch several, so that others run between them."""
        if len(chosen) > 1:
            # Who fits into a batch is in one piece: limits are only ever lowered.
            return [[member.states[0] for member in chosen]]
        return [
            [state[start : start + self._limit]]
            for state in chosen[0].states
            for start in range(0, len(state), self._limit)
        ]

    def _learn(self, seconds: float, steps: int) -> None:
        """How many steps a turn may have; waiting for the device counts, so that under load turns are short."""
        most = max(1, int(_TURN_SECONDS * steps / max(seconds, 1e-6)))
        self._steps = min(most, 2 * self._steps, _MOST_STEPS)

    def _count(self, chosen: list[_Member], steps: int) -> None:
        labels = (self._model.name, self._model.version)
        fields = sum(member.size for member in chosen)
        self._metrics.rollout_steps.labels(*labels).inc(fields * steps)
        self._metrics.rollout_batch_size.labels(*labels).observe(fields)

    async def _failed(self, chosen: list[_Member], error: Exception) -> None:
        """A turn left nothing behind, so it can be tried again in smaller pieces, or each of its rollouts alone."""
        fatal: ServiceError
        if isinstance(error, ServiceError):
            fatal = error
        elif out_of_memory(error):
            release_frames(error)
            await self._run_on_device(self._model.free_memory)
            if self._limit > 1 or self._steps > 1:
                self._limit, self._steps = max(1, self._limit // 2), 1
                return
            fatal = Unavailable(
                f"there is not enough free memory to go on with this rollout of model {self._model.name!r}; resume "
                "it later from its last frame, with fewer fields or a coarser grid",
                retry_after=5.0,
            )
        elif len(chosen) > 1:
            logger.warning(
                "a turn of %d rollouts failed on model %s (%s); each runs alone once",
                len(chosen), self._model.name, type(error).__name__,
            )  # fmt: skip
            self._suspects = list(chosen)
            return
        else:
            logger.error("model %s failed", self._model.name, exc_info=error)
            fatal = InferenceFailed(
                f"model {self._model.name!r} failed on this rollout alone; the server's log has the cause"
            )
        for member in chosen:
            member.fail(fatal)


def _joined(parts: list[NDArray[np.float32]], axis: int = 0) -> NDArray[np.float32]:
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis)


def _joined_signals(parts: list[dict[str, NDArray[np.float32]]]) -> dict[str, NDArray[np.float32]]:
    """The signals that all parts have, each [steps, n]: a part that could not be judged has none."""
    shared = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: _joined([part[name] for part in parts], axis=1) for name in shared}


def _blow_up(step: int, excess: NDArray[np.float32]) -> BlowUp:
    field = int(np.argmin(excess <= 1.0))
    worst = excess[field]
    if np.isfinite(worst):
        return BlowUp(
            f"field {field} (counted from 0) blew up at step {step}: its energy is {worst:.3g} times the most that "
            "the value range in the model's statistics allows; the frames before that step were given",
            step=step,
            reason="energy",
        )
    return BlowUp(
        f"field {field} (counted from 0) blew up at step {step}: NaN, infinity, or values too large to square; "
        "the frames before that step were given",
        step=step,
    )
