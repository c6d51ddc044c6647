"""Joined requests: a request of several gets each its own outcome, as if it had come alone."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.service.pipeline.bench import BAD, NAN, Bench, fields, on_bench
from turbofno.service.engine.interface import Joined, PredictRequest
from turbofno.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidField,
    QueueFull,
    Unavailable,
)
from turbofno.service.pipeline.ticket import Kind, Ticket

if TYPE_CHECKING:
    from collections.abc import Sequence


class Outcomes:
    """The outcome of joined requests: a future for all, and one for each once they run alone."""

    def __init__(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        self.together: asyncio.Future[Any] = loop.create_future()
        self.each = [loop.create_future() for _ in range(count)]
        self.tickets: list[Ticket] = []
        self.done = self.together.done
        self.set_result = self.together.set_result
        self.set_exception = self.together.set_exception

    def alone(self) -> list[asyncio.Future[Any]]:
        self.together.cancel()
        return self.each

    def divided(self, tickets: Sequence[Ticket]) -> None:
        self.tickets = list(tickets)


def joined(bench: Bench, *parts: tuple[float, ...], deadlines: Any = ()) -> tuple[Ticket, Outcomes]:
    """Submit requests with these values as one."""
    given = list(deadlines) or [None] * len(parts)
    values = [value for part in parts for value in part]
    request = PredictRequest(
        "doubler", None, fields(*values), "id",
        deadline=min((one for one in given if one is not None), default=None),
        joined=tuple(
            Joined(f"id-{i}", len(part), deadline)
            for i, (part, deadline) in enumerate(zip(parts, given, strict=True))
        ),
        output_buffer=np.zeros_like(fields(*values)),
    )  # fmt: skip
    outcomes = Outcomes(len(parts))
    ticket = Ticket(Kind.of(bench.model, request), request, time.monotonic(), outcomes, len(values))
    bench.scheduler.submit([ticket])
    return ticket, outcomes


async def errors(outcomes: Outcomes) -> list[type | None]:
    """The type of each request's error, or None, once all have their outcomes."""
    found = await asyncio.wait_for(asyncio.gather(*outcomes.each, return_exceptions=True), 10)
    return [type(one) if isinstance(one, BaseException) else None for one in found]


@on_bench()
async def test_requests_that_succeed_together_share_a_result(bench: Bench) -> None:
    ticket, outcomes = joined(bench, (1.0,), (2.0, 3.0))
    result = await asyncio.wait_for(outcomes.together, 10)
    assert result.batch_sizes == (3,)
    assert ticket.requests == 2
    np.testing.assert_array_equal(result.fields[:, 0, 0], [2.0, 4.0, 6.0])


@on_bench(max_batch_size=4)
async def test_a_failing_request_fails_alone(bench: Bench) -> None:
    ticket, outcomes = joined(bench, (1.0,), (BAD,), (NAN, 2.0), (4.0,))
    assert await errors(outcomes) == [None, InferenceFailed, InvalidField, None]
    assert outcomes.together.cancelled()
    # As if it had come alone: the field is counted in its own request.
    assert "field 0 of 2" in str(outcomes.each[2].exception())
    for index, value in ((0, 2.0), (3, 8.0)):
        result = outcomes.each[index].result()
        assert result.fields.shape == (1, 1, 4)
        assert (result.fields == value).all()
        assert np.shares_memory(result.fields, ticket.request.output_buffer)


@on_bench(max_queued_fields_per_model=3, max_fields_per_request=3)
async def test_those_that_fit_into_the_queue_are_not_refused(bench: Bench) -> None:
    blocking = await bench.block()
    _, outcomes = joined(bench, (1.0,), (2.0, 3.0), (4.0,))
    bench.model.gate.set()
    assert await errors(outcomes) == [None, None, QueueFull]
    assert bench.rejections("queue_full") == 1
    await blocking


@on_bench()
async def test_only_the_late_one_misses_its_deadline(bench: Bench) -> None:
    blocking = await bench.block()
    now = time.monotonic()
    _, outcomes = joined(bench, (1.0,), (2.0,), (3.0,), deadlines=(now + 60.0, now + 0.01, None))
    late = await asyncio.wait_for(asyncio.wait([outcomes.each[1]]), 10)
    assert late[0]
    assert not outcomes.each[0].done()
    bench.model.gate.set()
    assert await errors(outcomes) == [None, DeadlineExceeded, None]
    assert bench.rejections("deadline") == 1
    await blocking


@on_bench(max_queued_fields_per_model=4, max_fields_per_request=4)
async def test_those_that_were_admitted_are_not_refused_when_they_run_again(bench: Bench) -> None:
    bench.model.gate.clear()
    _, outcomes = joined(bench, (1.0,), (NAN,), (3.0,))
    await asyncio.to_thread(bench.model.entered.wait, 5)
    others = [bench.submit(float(value)) for value in (5, 6, 7, 8)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await bench.submit(9.0)
    bench.model.gate.set()
    assert await errors(outcomes) == [None, InvalidField, None]
    await asyncio.gather(*others)
    assert bench.rejections("queue_full") == 1


@on_bench(max_batch_size=2)
async def test_they_run_again_where_they_were(bench: Bench) -> None:
    bench.model.gate.clear()
    _, outcomes = joined(bench, (1.0,), (NAN,))
    await asyncio.to_thread(bench.model.entered.wait, 5)
    later = [bench.submit(float(value)) for value in (5, 6, 7, 8)]
    await asyncio.sleep(0)
    bench.model.gate.set()
    assert await errors(outcomes) == [None, InvalidField]
    await asyncio.gather(*later)
    assert bench.model.values == [[1.0, NAN], [1.0, NAN], [5.0, 6.0], [7.0, 8.0]]


@on_bench(max_batch_size=8, model_limits={"doubler": {"batch": 2}})
async def test_what_does_not_fit_into_a_batch_is_not_joined(bench: Bench) -> None:
    _, outcomes = joined(bench, (1.0,), (2.0,), (3.0,))
    assert await errors(outcomes) == [None, None, None]
    sizes = [one.result().batch_sizes for one in outcomes.each]
    assert all(len(batches) == 1 and batches[0] <= 2 for batches in sizes)


@on_bench()
async def test_what_nobody_wants_any_more_does_not_run_again(bench: Bench) -> None:
    blocking = await bench.block()
    ticket, outcomes = joined(bench, (1.0,), (NAN,), (3.0,))
    outcomes.each[0].cancel()
    bench.model.gate.set()
    found = await asyncio.wait(outcomes.each, timeout=10)
    assert not found[1]
    assert bench.model.values.count([1.0]) == 0
    await blocking
    # Yet it is counted as ended, once, as each of the others.
    assert [bench.ended.count(one) for one in outcomes.tickets] == [1, 1, 1]
    assert ticket not in bench.ended


@on_bench()
async def test_a_deadline_that_was_met_is_not_missed_by_running_again(bench: Bench) -> None:
    bench.model.gate.clear()
    soon = time.monotonic() + 1.0
    _, outcomes = joined(bench, (1.0,), (NAN,), deadlines=(soon, soon))
    await asyncio.to_thread(bench.model.entered.wait, 5)
    await asyncio.sleep(1.05)
    bench.model.gate.set()
    assert await errors(outcomes) == [None, InvalidField]


@on_bench()
async def test_cancelling_drops_all_of_them(bench: Bench) -> None:
    blocking = await bench.block()
    ticket, outcomes = joined(bench, (1.0,), (2.0,))
    bench.scheduler.cancel(ticket)
    assert isinstance(outcomes.together.exception(), Unavailable)
    bench.model.gate.set()
    await blocking
    assert bench.model.sizes == [1]
    assert not any(one.done() for one in outcomes.each)


@on_bench()
async def test_a_stop_fails_them_together(bench: Bench) -> None:
    blocking = await bench.block()
    _, outcomes = joined(bench, (1.0,), (2.0,))
    await bench.scheduler.close(within=0.0)
    assert isinstance(outcomes.together.exception(), Unavailable)
    bench.model.gate.set()
    await asyncio.gather(blocking, return_exceptions=True)
