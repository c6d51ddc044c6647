"""Continuous batching of rollouts: shared batches, back-pressure, and endings."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import aclosing
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from turbofno.service.engine import interface
from turbofno.service.engine.interface import Fields, Frame, PredictRequest, RolloutRequest
from turbofno.service.engine.runnable import Turn
from turbofno.service.errors import BlowUp, DeadlineExceeded, InferenceFailed, Unavailable
from turbofno.service.logs import JsonFormatter, request_id
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batcher import Policy
from turbofno.service.pipeline.rollouts import Rollouts
from turbofno.service.runtime.judgement import judged_by
from turbofno.service.runtime.rollout_turn import Excess, run_turn

if TYPE_CHECKING:
    from turbofno.service.engine.runnable import State

pytestmark = pytest.mark.timeout(20)

POISON, HUGE = 666.0, 888.0
CPU = torch.device("cpu")


class Counter:
    """Adds 1 in each step. Fails on POISON and above `most` fields (memory); `turns` records (fields, steps)."""

    name, version = "counter", "1"

    def __init__(self, most: int = 1000) -> None:
        self.turns: list[tuple[int, int]] = []
        self.most = most
        self.freed = 0

    def advance(self, states: list[State], wanted: list[list[int]], *, steps: int) -> Turn:
        def forward(x: torch.Tensor) -> torch.Tensor:
            if len(x) > self.most:
                raise torch.OutOfMemoryError("out of memory")
            if (x == POISON).any():
                raise ZeroDivisionError("poison")
            return torch.where(x + 1 > 1000, torch.nan, x + 1)

        self.turns.append((sum(map(len, states)), steps))
        return run_turn(
            forward, states, wanted, steps=steps, excess=Excess(None, CPU), device=CPU,
            judge=partial(judged_by, lambda _, y: {"residual": 100 - y.amax((1, 2))}),
        )  # fmt: skip

    def free_memory(self) -> None:
        self.freed += 1


async def at_once(work: Callable[[], Any]) -> tuple[Any, float]:
    await asyncio.sleep(0)
    return work(), 0.001


def rollouts(limit: int = 8) -> Rollouts:
    return Rollouts(Policy(limit, 1 << 30), Metrics(), at_once)


def job(value: float, last: int, *, n: int = 1, grid: int = 4, **options: Any) -> RolloutRequest:
    deadline, identity = options.pop("deadline", None), options.pop("request_id", "id")
    fields: Fields = np.full((n, 1, grid), value, np.float32)
    return RolloutRequest(
        PredictRequest("counter", None, fields, identity, deadline=deadline), last=last, **options
    )


async def until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - told by state only
        await asyncio.sleep(0)


async def collect(frames: Any) -> list[Frame]:
    return [one async for one in frames if one.fields is not None]


def steps_and_values(frames: list[Frame]) -> list[tuple[int, float]]:
    return [(one.step, float(one.fields.max())) for one in frames if one.fields is not None]


def test_a_frame_is_one_of_the_past_states() -> None:
    fields = np.zeros((3, 6, 1 << 18), np.float32)
    request = RolloutRequest(PredictRequest("counter", None, fields, "id"), last=9, past_steps=3)
    assert request.frame_shape == (3, 2, 1 << 18)
    assert request.frame_bytes == request.unread_bytes == fields.nbytes // 3
    small = RolloutRequest(PredictRequest("counter", None, fields[:1], "id"), last=9, past_steps=3)
    assert (small.frame_bytes, small.unread_bytes) == (2 << 20, 4 << 20)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1, 2, 3, 4, 5, 6, 7]),
        ({"every": 3}, [3, 6, 7]),
        ({"every": 0}, [7]),
        ({"every": 3, "start": 4}, [6, 7]),
    ],
)
def test_frames_are_those_asked_for(options: Any, expected: list[int]) -> None:
    frames = asyncio.run(collect(rollouts().run(Counter(), job(0, 7, **options))))
    start = options.get("start", 0)
    assert steps_and_values(frames) == [(step, step - start) for step in expected]


@pytest.mark.parametrize(
    ("every", "expected"),
    [(1, [99, 98, 97, 96, 95, 94, 93]), (3, [99, 96, 93]), (0, [99])],
)
def test_a_frame_carries_the_largest_signals_since_the_frame_before(
    every: int, expected: list[float]
) -> None:
    async def main() -> None:
        some, model = rollouts(limit=8), Counter()
        alone, shared, more_than_a_batch = await asyncio.gather(
            collect(some.run(model, job(0, 7, every=every))),
            collect(some.run(model, job(50, 7, every=every, n=2))),
            collect(some.run(model, job(20, 7, every=every, n=20))),
        )
        for frames, start, n in ((alone, 0, 1), (shared, 50, 2), (more_than_a_batch, 20, 20)):
            found = [frame.trust["residual"] for frame in frames]
            assert found == [(value - start,) * n for value in expected]

    asyncio.run(main())


def test_rollouts_of_different_length_share_batches_join_and_leave() -> None:
    async def main() -> None:
        some, model = rollouts(), Counter()
        first = asyncio.create_task(collect(some.run(model, job(0, 40, every=5))))
        await until(lambda: len(model.turns) >= 2)
        second = asyncio.create_task(collect(some.run(model, job(100, 3, n=2))))
        third = asyncio.create_task(collect(some.run(model, job(200, 3, grid=5))))
        assert steps_and_values(await second) == [(1, 101), (2, 102), (3, 103)]
        assert steps_and_values(await third) == [(1, 201), (2, 202), (3, 203)]
        assert [step for step, _ in steps_and_values(await first)] == list(range(5, 41, 5))
        sizes = [fields for fields, _ in model.turns]
        assert set(sizes) == {1, 3}, "alone, and with the second; never with another grid's"
        assert sizes[0] == sizes[-1] == 1
        assert some._groups == {}

    asyncio.run(main())


def test_more_than_a_batch_take_turns() -> None:
    async def main() -> None:
        some, model = rollouts(limit=4), Counter()
        jobs = [some.run(model, job(10 * i, 6, n=3)) for i in range(3)]
        jobs.append(some.run(model, job(90, 6, n=9)))
        all_frames = await asyncio.gather(*map(collect, jobs))
        for i, frames in enumerate(all_frames):
            base = 90 if i == 3 else 10 * i
            assert steps_and_values(frames) == [(s, base + s) for s in range(1, 7)]
        assert {fields for fields, _ in model.turns} == {3, 4, 1}, "none is more than a batch"

    asyncio.run(main())


def test_a_rollout_waits_for_one_batch_of_another_that_exceeds_it() -> None:
    async def main() -> None:
        some, model = rollouts(limit=4), Counter()
        large = asyncio.create_task(collect(some.run(model, job(0, 6, n=400))))
        await until(lambda: len(model.turns) > 2)
        await collect(some.run(model, job(0, 9)))
        assert len(model.turns) < 50, "not all hundred batches of a step of the other"
        await large

    asyncio.run(main())


def test_a_rollout_larger_than_a_batch_keeps_its_fields_in_order() -> None:
    async def main() -> None:
        some, model = rollouts(limit=4), Counter()
        request = job(0, 6, n=9, every=2)
        request.initial.fields[:] = np.arange(9)[:, None, None]
        frames = await collect(some.run(model, request))
        assert [one.step for one in frames] == [2, 4, 6]
        for one in frames:
            assert one.fields is not None
            assert (one.fields == request.initial.fields + one.step).all()
        # The ninth field is in the last piece.
        request = job(0, 6, n=9)
        request.initial.fields[8] = 998
        with pytest.raises(BlowUp, match=r"field 8 .* step 3"):
            await collect(some.run(model, request))

    asyncio.run(main())


def test_a_rollout_whose_client_left_runs_no_more_pieces() -> None:
    async def main() -> None:
        some, model = rollouts(limit=1), Counter()
        frames = some.run(model, job(0, 6, n=4000))
        first = asyncio.create_task(anext(frames))
        await until(lambda: len(model.turns) > 2)
        first.cancel()
        await asyncio.gather(first, return_exceptions=True)
        await until(lambda: not some._groups)
        assert len(model.turns) < 10

    asyncio.run(main())


def test_a_blow_up_names_its_step_after_all_frames_before_and_spares_its_mates() -> None:
    async def main() -> None:
        some, model = rollouts(), Counter()
        mate = asyncio.create_task(collect(some.run(model, job(0, 30))))
        frames: list[Frame] = []
        run = some.run(model, job(995, 30, n=2))

        async def keep() -> None:
            async for frame in run:
                frames.append(frame)

        with pytest.raises(BlowUp, match=r"field 0 .* step 6: NaN.* to square$") as caught:
            await keep()
        assert (caught.value.step, caught.value.reason) == (6, "not_finite")
        assert steps_and_values(frames) == [(s, 995 + s) for s in range(1, 6)]
        assert len(await mate) == 30
        registry = some._metrics.registry
        labels = {"model": "counter", "version": "1", "outcome": "blow_up"}
        assert registry.get_sample_value("turbofno_rollouts_ended_total", labels) == 1

    asyncio.run(main())


class Slow(Counter):
    """Takes 2**-10 s for each field and step."""

    def __init__(self, *, waits: float = 0.0) -> None:
        super().__init__()
        self._waits = waits

    async def time_on_device(self, work: Callable[[], Any]) -> tuple[Any, float]:
        await asyncio.sleep(self._waits)
        result = work()
        fields, steps = self.turns[-1]
        return result, 2**-10 * fields * steps

    def rollouts(self) -> Rollouts:
        return Rollouts(Policy(32, 1 << 30), Metrics(), self.time_on_device)


def test_a_turn_that_waits_for_other_work_on_the_device_is_as_long() -> None:
    async def main() -> None:
        model = Slow(waits=0.03)
        await collect(model.rollouts().run(model, job(0, 200, every=0)))
        assert (1, 20) in model.turns

    asyncio.run(main())


def test_a_turn_is_no_longer_when_others_join() -> None:
    async def main() -> None:
        model = Slow()
        some = model.rollouts()
        first = asyncio.create_task(collect(some.run(model, job(0, 200, every=0))))
        await until(lambda: (1, 20) in model.turns)
        for n in (15, 16):
            await collect(some.run(model, job(0, 5, n=n)))
        await first
        assert max(fields * steps for fields, steps in model.turns) <= 20
        assert model.turns[-2] == (1, 20), "and as long as before, once they have left"

    asyncio.run(main())


def test_a_rollout_stops_when_its_client_leaves_and_pauses_when_it_does_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(interface, "UNREAD_BYTES", 3 * 16)

    async def main() -> None:
        some, model = rollouts(), Counter()
        mate = asyncio.create_task(collect(some.run(model, job(500, 100))))
        async with aclosing(some.run(model, job(0, 10_000))) as frames:
            assert (await anext(frames)).step == 1
            await mate
            done = len(model.turns)
            for _ in range(50):
                await asyncio.sleep(0)
            assert len(model.turns) == done, "nobody reads, so nothing runs"
            assert (await anext(frames)).step == 2
        for _ in range(20):
            await asyncio.sleep(0)
        assert some._groups == {}
        assert sum(steps for _, steps in model.turns) < 250

    asyncio.run(main())


def test_progress_is_reported_between_frames() -> None:
    async def main() -> None:
        some = rollouts()
        frames = [one async for one in some.run(Counter(), job(0, 300, every=0))]
        steps = [one.step for one in frames]
        assert steps == sorted(steps)
        assert len(steps) > 2
        assert [one.step for one in frames if one.fields is not None] == [300]

    asyncio.run(main())


def test_a_failing_rollout_does_not_stop_the_others_and_is_logged_under_its_own_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.handler.setFormatter(JsonFormatter())

    async def asked(model: Counter, value: float, identity: str) -> list[Frame]:
        request_id.set(identity)
        return await collect(some.run(model, job(value, 9, request_id=identity)))

    some = rollouts()

    async def main() -> None:
        model = Counter()
        good = asyncio.create_task(asked(model, 0, "good"))
        bad = asyncio.create_task(asked(model, POISON - 4, "bad"))
        with pytest.raises(InferenceFailed, match="this rollout alone"):
            await bad
        assert len(await good) == 9

    asyncio.run(main())
    of_both, of_one = map(json.loads, caplog.text.splitlines())
    assert "request_id" not in of_both
    assert of_one["request_id"] == "bad"
    assert "ZeroDivisionError" in of_one["exception"]


def test_out_of_memory_makes_smaller_batches_and_ends_only_what_never_fits() -> None:
    async def main() -> None:
        some, model = rollouts(), Counter(most=2)
        frames = await asyncio.gather(*(collect(some.run(model, job(i, 5, n=3))) for i in range(2)))
        assert [steps_and_values(one)[-1] for one in frames] == [(5, 5), (5, 6)]
        assert model.freed
        with pytest.raises(Unavailable, match="not enough free memory"):
            await collect(rollouts().run(Counter(most=0), job(0, 5)))

    asyncio.run(main())


def test_a_rollout_past_its_deadline_is_dropped_and_counted() -> None:
    metrics = Metrics()
    some = Rollouts(Policy(8, 1 << 30), metrics, at_once)

    async def main() -> None:
        with pytest.raises(DeadlineExceeded):
            await collect(some.run(Counter(), job(0, 5, deadline=time.monotonic() - 1)))

    asyncio.run(main())
    of = {"reason": "deadline", "model": "counter"}
    assert metrics.registry.get_sample_value("turbofno_rejections_total", of) == 1


def test_closing_the_engine_ends_rollouts() -> None:
    async def main() -> None:
        async def closed(work: Callable[[], Any]) -> Any:
            raise Unavailable("the service stopped")

        some = Rollouts(Policy(8, 1 << 30), Metrics(), closed)
        with pytest.raises(Unavailable, match="stopped"):
            await collect(some.run(Counter(), job(0, 5)))

    asyncio.run(main())
