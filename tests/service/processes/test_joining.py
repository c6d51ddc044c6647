"""Predictions of one turn are joined: each caller gets its own part, its own error, and its memory back."""

from __future__ import annotations

import asyncio
import random
import weakref
from collections import Counter
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.service.processes.test_engine_link import Engine, linked
from tests.service.tiny import rollable_config
from tests.service.waiting import until
from turbofno.service.engine import turn
from turbofno.service.engine.interface import PredictRequest, PredictResult
from turbofno.service.engine.turn import Asked
from turbofno.service.errors import InvalidField, ServiceError, Unavailable
from turbofno.service.processes.engine_link import EngineLink
from turbofno.service.processes.joining import MOST_BYTES, alike

pytestmark = pytest.mark.timeout(20)

CONFIG = rollable_config()
FINER = CONFIG.model_copy(
    update={
        "architecture": CONFIG.architecture.model_copy(
            update={"resolution_scaling": ((2.0,), (2.0,)), "n_layers": 2}
        )
    }
)
"""It answers on a grid of four times as many points."""


class Doubler(Engine):
    """Doubles fields; with `hold` it keeps what it was asked for."""

    def __init__(self, *, hold: bool = False) -> None:
        super().__init__()
        self.hold = hold
        self.asked: list[tuple[PredictRequest, Any]] = []
        self.cancelled: list[str] = []

    def submit(self, block: Any) -> list[Any]:
        self.asked += block
        if not self.hold:
            for request, outcome in block:
                outcome.set_result(self.result(request))
        return [SimpleNamespace(ended=not self.hold, id=one.request_id) for one, _ in block]

    def cancel(self, ticket: Any) -> None:
        self.cancelled.append(ticket.id)

    @staticmethod
    def result(request: PredictRequest) -> PredictResult:
        fields = request.output_buffer
        assert fields is not None
        fields[:] = 2 * request.fields
        distances = tuple(request.fields[:, 0, 0].tolist())
        return PredictResult(
            "m", "1", fields, 0.5, 0.25, (len(fields),), "fake", trust={"distance": distances}
        )


def asking(link: EngineLink, *values: float, **options: Any) -> asyncio.Task[PredictResult]:
    fields = np.repeat(np.float32(values)[:, None, None], 8, axis=2)
    options = {"config": CONFIG, **options}
    request = PredictRequest("m", None, fields, f"id-{values[0]:g}", **options)
    return asyncio.create_task(link.predict(request))


def test_each_gets_its_own_part() -> None:
    async def main() -> None:
        engine = Doubler()
        async with linked(engine) as (_, link, memory):
            values = [(1.0,), (2.0, 3.0), (4.0,), (5.0,), (6.0, 7.0, 8.0, 9.0, 10.0)]
            results = await asyncio.gather(*[asking(link, *one) for one in values])
            for one, result in zip(values, results, strict=True):
                np.testing.assert_array_equal(result.fields[:, 0, 0], 2 * np.array(one))
                assert result.trust == {"distance": one}
            # At most four fields together, and a larger request as it came.
            assert [len(request.fields) for request, _ in engine.asked] == [4, 1, 5]
            joined = engine.asked[0][0].joined
            assert [(one.request_id, one.size) for one in joined] == [
                ("id-1", 1),
                ("id-2", 2),
                ("id-4", 1),
            ]
            assert link.fields_in_flight == 0
            engine.asked.clear()
            del results, result
            # The callback that runs now refers to the results.
            await asyncio.sleep(0)
            assert memory.used_bytes == 0

    asyncio.run(main())


def test_while_the_engine_is_busy_small_requests_wait_for_others_until_an_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(turn, "PATIENCE_SECONDS", 10.0)

    async def main() -> None:
        engine = Doubler(hold=True)

        def answer() -> None:
            for request, outcome in engine.asked:
                if not outcome.done():
                    outcome.set_result(engine.result(request))

        async with linked(engine) as (_, link, _):
            asked = [asking(link, float(value)) for value in range(8)]
            await until(lambda: len(engine.asked) == 2)
            asked.append(asking(link, 8.0))
            await asyncio.sleep(0.01)
            asked.append(asking(link, 9.0))
            await asyncio.sleep(0.01)
            assert len(engine.asked) == 2
            answer()
            await until(lambda: len(engine.asked) == 3)
            assert [one.request_id for one in engine.asked[2][0].joined] == ["id-8", "id-9"]
            answer()
            results = await asyncio.gather(*asked)
            assert [result.fields[0, 0, 0] for result in results] == [2.0 * n for n in range(10)]

    asyncio.run(main())


def test_bodies_are_not_kept_until_the_answer() -> None:
    async def main() -> None:
        engine = Doubler(hold=True)
        async with linked(engine) as (_, link, _):
            bodies = [np.full((1, 1, 8), value, np.float32) for value in (1.0, 2.0)]
            kept = [weakref.ref(body) for body in bodies]
            requests = [PredictRequest("m", None, body, "id", config=CONFIG) for body in bodies]
            del bodies
            asking = [asyncio.create_task(link.predict(request)) for request in requests]
            await until(lambda: engine.asked)
            assert [reference() for reference in kept] == [None, None]
            for request, outcome in engine.asked:
                outcome.set_result(engine.result(request))
            for value, task in zip((2.0, 4.0), asking, strict=True):
                np.testing.assert_array_equal((await task).fields, np.full((1, 1, 8), value))
            engine.asked.clear()

    asyncio.run(main())


OTHER = rollable_config()


def asked(size: int = 1, **options: Any) -> Asked[int]:
    given: dict[str, Any] = {"version": None, "config": CONFIG} | options
    fields = np.zeros((size, 1, 8), np.float32)
    return Asked(PredictRequest("m", given.pop("version"), fields, "id", **given), None)  # type: ignore[arg-type]


def test_different_requests_are_not_joined() -> None:
    draw = random.Random(8)
    kinds: list[dict[str, Any]] = [
        {}, {"priority": 3}, {"client": "a"}, {"version": "2"}, {"config": OTHER}, {"deadline": 3.0},
    ]  # fmt: skip
    for _ in range(50):
        turn = [asked(draw.randint(1, 6), **draw.choice(kinds)) for _ in range(draw.randint(1, 30))]
        groups = list(alike(turn, 4))
        assert Counter(id(one) for group in groups for one in group) == Counter(map(id, turn))
        for group in groups:
            requests = [one.request for one in group]
            assert len(group) == 1 or sum(len(one.fields) for one in requests) <= 4
            about = {
                (one.priority, one.client, one.version, id(one.config), one.deadline)
                for one in requests
            }
            assert len(about) == 1
    large = MOST_BYTES // 32 + 1
    alone = [asked(large), asked(large), asked(0), asked(0), asked(1, trace="00-1-1-01"), asked(1)]
    assert [len(group) for group in alike(alone, 4 * large)] == [1] * 6


def test_deadlines_that_are_close_are_joined() -> None:
    turn = [asked(deadline=seconds) for seconds in (60.01, 60.02, 60.6, 60.2)]
    groups = [[one.request.deadline for one in group] for group in alike(turn, 4)]
    assert groups == [[60.01, 60.02, 60.2], [60.6]]


def test_few_bytes_are_joined() -> None:
    half = [asked(MOST_BYTES // 64) for _ in range(40)]
    assert [len(group) for group in alike(half, 10**6)] == [16, 16, 8]
    architecture = CONFIG.architecture.model_copy(update={"out_channels": 4})
    wide = CONFIG.model_copy(update={"architecture": architecture})
    half = [asked(MOST_BYTES // 64, config=wide) for _ in range(10)]
    assert [len(group) for group in alike(half, 10**6)] == [4, 4, 2]
    half = [asked(MOST_BYTES // 64, config=FINER) for _ in range(10)]
    assert [len(group) for group in alike(half, 10**6)] == [4, 4, 2]


def test_outputs_have_the_grid_of_layers_that_change_the_resolution() -> None:
    async def main() -> None:
        engine = Doubler(hold=True)
        async with linked(engine) as (_, link, _):
            waiting = [asking(link, 1.0, config=FINER), asking(link, 2.0, 3.0, config=FINER)]
            await until(lambda: bool(engine.asked))
            request, _ = engine.asked[0]
            assert request.fields.shape == (3, 1, 8)
            assert request.output_buffer is not None
            assert request.output_buffer.shape == (3, 1, 32)
            for one in waiting:
                one.cancel()

    asyncio.run(main())


def test_each_gets_its_own_error() -> None:
    async def main() -> None:
        engine = Doubler(hold=True)
        async with linked(engine) as (_, link, _):
            tasks = [asking(link, float(value)) for value in range(3)]
            await until(lambda: bool(engine.asked))
            ((request, outcome),) = engine.asked
            first, second, third = outcome.alone()
            alone = request.alone()
            third.set_result(engine.result(alone[2]))
            second.set_exception(InvalidField("the second is wrong"))
            first.set_result(engine.result(alone[0]))
            assert (await tasks[0]).fields[0, 0, 0] == 0.0
            with pytest.raises(InvalidField, match="the second is wrong"):
                await tasks[1]
            assert (await tasks[2]).fields[0, 0, 0] == 4.0
            assert link.fields_in_flight == 0

    asyncio.run(main())


def test_joined_requests_are_dropped_once_all_are_cancelled() -> None:
    async def main() -> None:
        engine = Doubler(hold=True)
        async with linked(engine) as (_, link, _):
            unsent = asking(link, 9.0)
            tasks = [asking(link, float(value)) for value in range(3)]
            await asyncio.sleep(0)
            unsent.cancel()
            await until(lambda: bool(engine.asked))
            ((request, outcome),) = engine.asked
            assert [one.request_id for one in request.joined] == ["id-0", "id-1", "id-2"]
            tasks[0].cancel()
            tasks[1].cancel()
            await asyncio.sleep(0.05)
            assert not engine.cancelled
            tasks[2].cancel()
            await until(lambda: bool(engine.cancelled))
            assert engine.cancelled == ["id-0"]
            outcome.set_exception(Unavailable("cancelled"))
            await until(lambda: link.fields_in_flight == 0)

    asyncio.run(main())


def test_those_for_which_there_is_memory_are_sent() -> None:
    async def main() -> None:
        engine = Doubler()
        async with linked(engine, 8 * 4096) as (_, link, memory):
            held = memory.array((5 * 1024,))
            # Three pages are free. Three requests of a page each take two pages together, and two alone.
            grid = 1024
            requests = [
                PredictRequest("m", None, np.ones((1, 1, grid), np.float32), f"{i}", config=CONFIG)
                for i in range(3)
            ]
            found = await asyncio.gather(*map(link.predict, requests), return_exceptions=True)
            assert [type(one) for one in found] == [PredictResult, Unavailable, Unavailable]
            assert link.fields_in_flight == 0
            del found, held
            requests.clear()
            engine.asked.clear()
            await asyncio.sleep(0)
            assert memory.used_bytes == 0

    asyncio.run(main())


def test_an_engine_that_dies_in_the_turn_fails_all() -> None:
    async def main() -> None:
        engine = Doubler(hold=True)
        async with linked(engine) as (_, link, _):
            before = [asking(link, 1.0), asking(link, 2.0)]
            await until(lambda: bool(engine.asked))
            after = [asking(link, 3.0), asking(link, 4.0)]
            await asyncio.sleep(0)
            link.close("it is dead")
            found = await asyncio.gather(*before, *after, return_exceptions=True)
            assert all(isinstance(one, ServiceError) and "dead" in str(one) for one in found)
            await asyncio.sleep(0)
            assert link.fields_in_flight == 0

    asyncio.run(main())


def test_an_unexpected_failure_is_no_endless_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with linked(Doubler()) as (_, link, memory):
            monkeypatch.setattr(memory, "array", lambda _: 1 / 0)
            for one in (asking(link, 1.0), asking(link, 2.0)):
                with pytest.raises(ZeroDivisionError):
                    await one

    asyncio.run(main())
