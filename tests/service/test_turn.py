"""Predictions of a turn are taken together at its end; one that no other can join is taken at once."""

from __future__ import annotations

import asyncio

import pytest

from tests.service.http.raw import FIELD, in_loop
from turbofno.service.engine.interface import PredictRequest, PredictResult
from turbofno.service.engine.turn import Asked, Turn

RESULT = PredictResult("m", "1", FIELD, 0.0, 0.0, (1,), "gemm")


class Taken:
    """Notes what a turn takes; sets each outcome there, as a batch that runs on the event loop does."""

    def __init__(self, error: Exception | None = None) -> None:
        self.turns: list[int] = []
        self.error = error
        self.turn: Turn[int] = Turn(self.take, lambda _: None)

    def take(self, asked: list[Asked[int]]) -> None:
        self.turns.append(len(asked))
        if self.error is not None:
            raise self.error
        for one in asked:
            one.outcome.set_result(RESULT)

    async def ask(self, *, at_once: bool = False, patient: bool = False) -> PredictResult:
        request = PredictRequest("m", "1", FIELD, "id")
        return await self.turn.ask(request, at_once=at_once, patient=patient)


@in_loop
async def test_requests_of_a_turn_are_taken_together_at_its_end() -> None:
    taken = Taken()
    await asyncio.gather(taken.ask(), taken.ask())
    assert taken.turns == [2]


@in_loop
async def test_a_request_that_no_other_can_join_is_answered_without_another_turn() -> None:
    taken = Taken()
    with pytest.raises(StopIteration) as end:
        taken.ask(at_once=True).send(None)
    assert end.value.value is RESULT
    assert taken.turns == [1]
    assert taken.turn.fields_awaited == 0
    await asyncio.sleep(0)
    assert taken.turns == [1], "the end of the turn takes nothing more"


@in_loop
async def test_it_takes_those_that_were_asked_for_before_it_along() -> None:
    taken = Taken()
    await asyncio.gather(taken.ask(), taken.ask(at_once=True))
    assert taken.turns == [2]


@in_loop
async def test_an_error_of_taking_it_is_raised() -> None:
    taken = Taken(ValueError("no memory"))
    with pytest.raises(ValueError, match="no memory"):
        await taken.ask(at_once=True)
    assert taken.turn.fields_awaited == 0


@in_loop
async def test_a_patient_request_waits_for_those_of_later_turns() -> None:
    taken = Taken()
    first = asyncio.ensure_future(taken.ask(patient=True))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(taken.ask(patient=True))
    await asyncio.sleep(0)
    taken.turn.end()
    await asyncio.gather(first, second)
    assert taken.turns == [2]
    await taken.ask(patient=True)
    assert taken.turns == [2, 1], "alone it is taken in the end"


@in_loop
async def test_one_that_is_not_patient_takes_it_along() -> None:
    taken = Taken()
    first = asyncio.ensure_future(taken.ask(patient=True))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(taken.ask())
    await asyncio.sleep(0)
    assert taken.turns == []
    await asyncio.sleep(0)
    assert taken.turns == [2]
    await asyncio.gather(first, second)
