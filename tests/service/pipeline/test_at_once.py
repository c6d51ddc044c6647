"""Blocks that find the device idle: they run past the queue if they may, with the same outcomes, counts and limits."""

from __future__ import annotations

import asyncio
import time
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest

from tests.service.pipeline.bench import BAD, Bench, block, fields, on_bench, request, unsubmitted
from turbofno.service.engine.interface import PredictResult
from turbofno.service.errors import (
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    PayloadTooLarge,
    QueueFull,
)
from turbofno.service.pipeline.batcher import Batcher
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.ticket import Kind, Ticket

pytestmark = pytest.mark.usefixtures("two_cores")


async def run(bench: Bench, *values: float, **options: Any) -> tuple[list[Any], int]:
    """The outcomes of a block of single fields, and how many of them were queued."""
    kinds: dict[int, Kind] = {}
    tickets = []
    for value in values:
        asked = request(value, **{name: given(value) for name, given in options.items()})
        kind = kinds.setdefault(asked.priority, Kind.of(bench.model, asked))
        outcome = asyncio.get_running_loop().create_future()
        tickets.append(Ticket(kind, asked, time.monotonic(), outcome, 1))
    with patch.object(Batcher, "add", autospec=True, side_effect=Batcher.add) as add:
        bench.scheduler.submit(tickets, at_once=True)
        queued = sum(len(call.args) - 1 for call in add.call_args_list)
    outcomes = (one.outcome for one in tickets)
    return await asyncio.gather(*outcomes, return_exceptions=True), queued


@on_bench(max_batch_size=4)
async def test_a_block_that_fits_runs_past_the_queue(bench: Bench) -> None:
    for values in ((1.0,), (2.0, 3.0, 4.0, 5.0)):
        results, queued = await run(bench, *values)
        assert queued == 0
        for value, result in zip(values, results, strict=True):
            np.testing.assert_array_equal(result.fields, fields(2 * value))
            assert result.batch_sizes == (len(values),)
    assert bench.model.sizes == [1, 4]
    assert len(bench.ended) == 5
    assert bench.capacity.total == 0


@on_bench(max_batch_size=4)
async def test_a_larger_block_and_one_of_two_kinds_are_queued(bench: Bench) -> None:
    results, queued = await run(bench, *map(float, range(1, 7)))
    assert queued == 6
    assert sorted(bench.model.sizes) == [2, 4]
    results, queued = await run(bench, 1.0, 2.0, priority=int)
    assert queued == 2
    assert {type(one) for one in results} == {PredictResult}


@on_bench(max_batch_size=2, max_queue_delay_seconds=0.05)
async def test_a_block_waits_for_others_unless_it_fills_a_batch(bench: Bench) -> None:
    assert (await run(bench, 1.0))[1] == 1
    assert (await run(bench, 1.0, 2.0))[1] == 0


@on_bench()
async def test_a_block_is_queued_behind_what_runs(bench: Bench) -> None:
    first = await bench.block()
    asyncio.get_running_loop().call_later(0.01, bench.model.gate.set)
    results, queued = await run(bench, 1.0, 2.0)
    await first
    assert queued == 2
    assert {type(one) for one in results} == {PredictResult}


@on_bench()
async def test_a_block_joins_those_queued_in_this_turn_of_the_event_loop(bench: Bench) -> None:
    tickets = [*block(bench, 1.0), *unsubmitted(bench, 2.0)]
    bench.scheduler.submit(tickets[1:], at_once=True)
    tickets += block(bench, 3.0)
    await asyncio.gather(*(one.outcome for one in tickets))
    assert bench.model.sizes == [3]


@on_bench()
async def test_a_block_of_two_kinds_starts_in_this_turn_of_the_event_loop(bench: Bench) -> None:
    tickets = [*unsubmitted(bench, 1.0), *unsubmitted(bench, 2.0, priority=1)]
    bench.scheduler.submit(tickets, at_once=True)
    assert [one.running_slices for one in tickets] == [1, 1]
    await asyncio.gather(*(one.outcome for one in tickets))


@on_bench()
async def test_a_block_waits_for_a_job_that_waits_or_runs(bench: Bench) -> None:
    def job() -> list[int]:
        bench.model.entered.set()
        assert bench.model.gate.wait(10)
        return list(bench.model.sizes)

    waits = asyncio.create_task(bench.scheduler.run_on_device(job))
    await asyncio.sleep(0)
    await run(bench, 1.0)
    assert await waits == []
    bench.model.gate.clear()
    bench.model.entered.clear()
    runs = asyncio.create_task(bench.scheduler.run_on_device(job))
    await asyncio.to_thread(bench.model.entered.wait, 5)
    (ticket,) = unsubmitted(bench, 2.0)
    bench.scheduler.submit([ticket], at_once=True)
    assert not ticket.running_slices
    bench.model.gate.set()
    assert await runs == [1]
    await ticket.outcome


@on_bench()
async def test_a_lost_device_fails_a_block_that_runs_past_the_queue(bench: Bench) -> None:
    bench.model.gate.clear()
    (ticket,) = unsubmitted(bench, 1.0)
    bench.scheduler.submit([ticket], at_once=True)
    bench.scheduler.lose_device("the GPU is gone")
    with pytest.raises(DeviceLost, match="the GPU is gone"):
        await asyncio.wait_for(ticket.outcome, 5)


@on_bench(max_queued_fields_per_model=3, max_fields_per_request=3)
async def test_the_queues_limits_hold_for_a_block_past_it(bench: Bench) -> None:
    results, _ = await run(bench, *map(float, range(1, 6)))
    assert [type(one) for one in results] == [*[PredictResult] * 3, *[QueueFull] * 2]


@on_bench(model_limits="doubler fields=1")
async def test_limits_of_work_in_progress_hold_for_a_block_past_the_queue(bench: Bench) -> None:
    for _ in range(2):
        results, queued = await run(bench, 1.0, 2.0)
        assert [type(one) for one in results] == [PredictResult, QueueFull]
        assert queued == 1
    over = Ticket(
        Kind.of(bench.model, both := request(1.0, 2.0)), both, time.monotonic(),
        asyncio.get_running_loop().create_future(), 2,
    )  # fmt: skip
    bench.scheduler.submit([over], at_once=True)
    with pytest.raises(PayloadTooLarge):
        await over.outcome


@on_bench()
async def test_a_block_with_a_passed_deadline_is_refused(bench: Bench) -> None:
    late = time.monotonic() - 1.0
    results, _ = await run(bench, 1.0, 2.0, deadline=lambda value: late if value == 1.0 else None)
    assert [type(one) for one in results] == [DeadlineExceeded, PredictResult]


@on_bench()
async def test_only_the_failing_request_of_a_block_fails(bench: Bench) -> None:
    results, queued = await run(bench, 1.0, BAD, 3.0)
    assert queued == 0
    assert [type(one) for one in results] == [PredictResult, InferenceFailed, PredictResult]


@on_bench()
async def test_a_block_of_nothing_does_nothing(bench: Bench) -> None:
    bench.scheduler.submit([], at_once=True)
    assert (await run(bench, 1.0))[1] == 0


@on_bench()
async def test_a_block_past_the_queue_is_not_counted_as_waiting(bench: Bench) -> None:
    with patch.object(
        QueueCapacity, "_count", autospec=True, side_effect=QueueCapacity._count
    ) as count:
        await run(bench, 1.0, 2.0)
        await run(bench, 3.0)
    count.assert_not_called()
