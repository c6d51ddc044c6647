"""The scheduler: which requests share a batch, and in which order batches run."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter

import numpy as np
import pytest

from tests.clock import within
from tests.service.pipeline import asking
from tests.service.pipeline.bench import (
    BAD,
    LARGE,
    NAN,
    Bench,
    ManualClock,
    block,
    fields,
    on_bench,
    unsubmitted,
)
from turbofno.service.engine.interface import Fields, PredictResult
from turbofno.service.engine.runnable import ModelOutput
from turbofno.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidField,
    QueueFull,
    Unavailable,
)
from turbofno.service.pipeline import deadlines
from turbofno.service.pipeline import scheduler as scheduler_module

pytestmark = [pytest.mark.timeout(20), pytest.mark.usefixtures("two_cores")]


@on_bench()
async def test_lone_request_runs_at_once(bench: Bench) -> None:
    result = await bench.submit(1.0, 2.0)
    np.testing.assert_array_equal(result.fields, fields(2.0, 4.0))
    assert result.batch_sizes == (2,)
    assert result.backend == "fake"
    within(result.queue_seconds, 0.5)
    assert (
        bench.metrics.registry.get_sample_value(
            "turbofno_fields_total", {"model": "doubler", "version": "1"}
        )
        == 2
    )


@on_bench(max_batch_size=8)
async def test_requests_accumulate_while_the_device_is_busy(bench: Bench) -> None:
    first = await bench.block()
    others = [bench.submit(float(i)) for i in range(1, 6)]
    await asyncio.sleep(0.02)
    bench.model.gate.set()
    results = await asyncio.gather(first, *others)
    assert bench.model.sizes == [1, 5]
    for i, result in enumerate(results):
        np.testing.assert_array_equal(result.fields, fields(2.0 * i))


@on_bench(max_batch_size=8)
async def test_requests_of_one_loop_iteration_share_a_batch(bench: Bench) -> None:
    await asyncio.gather(*(bench.submit(float(i)) for i in range(8)))
    assert bench.model.sizes == [8]


@on_bench(max_batch_size=4)
async def test_oversized_request_is_split_and_rejoined(bench: Bench) -> None:
    values = [float(i) for i in range(11)]
    result = await bench.submit(*values)
    np.testing.assert_array_equal(result.fields, fields(*values) * 2)
    assert result.batch_sizes == (4, 4, 3)
    assert bench.model.sizes == [4, 4, 3]


@on_bench()
async def test_single_fields_take_turns_with_a_request_of_thousands(bench: Bench) -> None:
    blocking = await bench.block()
    large = bench.submit(*LARGE)
    await asyncio.sleep(0)
    for number in (1001.0, 1002.0, 1003.0):
        # The device is blocked by an earlier request.
        before = len(bench.model.values)
        single = bench.submit(number, deadline=time.monotonic() + 30)
        await asyncio.sleep(0)
        bench.model.gate.set()
        await single
        (place,) = [i for i, values in enumerate(bench.model.values) if number in values]
        # One may run, and one may have been next, when it comes.
        assert place - before <= 2
    assert not large.done()
    assert (await large).fields.tolist() == (2 * fields(*LARGE)).tolist()
    await blocking


@on_bench()
async def test_a_request_of_thousands_does_not_cause_refusal_of_a_short_deadline(
    bench: Bench,
) -> None:
    blocking = await bench.block()
    # At a second for each batch, the large request takes four minutes.
    batch = bench.settings.max_batch_size * fields(0.0).nbytes
    bench.capacity.note_batch("doubler", limit=batch, seconds=1.0)
    large = bench.submit(*LARGE)
    await asyncio.sleep(0)
    single = bench.submit(1.0, deadline=time.monotonic() + 20)
    await asyncio.sleep(0)
    bench.model.gate.set()
    assert (await single).fields[0, 0, 0] == 2
    assert bench.capacity.drain_seconds == 60
    await asyncio.gather(blocking, large)


@on_bench()
async def test_rollouts_that_go_on_and_on_take_turns_with_predictions(bench: Bench) -> None:
    jobs: list[int] = []

    async def keep_busy() -> None:
        while len(jobs) < 2000:
            await bench.scheduler.run_on_device(lambda: jobs.append(1))

    # With two, one is always waiting when the other's turn ends.
    busy = [asyncio.create_task(keep_busy()) for _ in range(2)]
    await asyncio.sleep(0)
    for number in range(3):
        await bench.submit(float(number))
    assert len(jobs) < 30
    await asyncio.gather(*busy)


@pytest.mark.parametrize(
    ("cores", "seconds", "turn"), [(1, 0.5, "bbbbJ"), (2, 0.5, "bbbbJ"), (2, 60.0, "bbbbbbbbJ")]
)
def test_jobs_get_no_more_device_time_than_the_batches_that_wait(
    cores: int, seconds: float, turn: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, log = ManualClock(), ""
    monkeypatch.setattr(scheduler_module, "time", clock)
    monkeypatch.setattr(scheduler_module, "cores", lambda: cores)

    def job() -> None:
        nonlocal log
        log += "J"
        clock.now += seconds

    @on_bench(max_batch_size=1)
    async def run(bench: Bench) -> None:
        double = bench.model.run

        def batch(fields: Fields) -> ModelOutput:
            nonlocal log
            log += "b"
            clock.now += 0.125
            return double(fields)

        async def keep_busy() -> None:
            while log.count("b") < 20:
                await bench.scheduler.run_on_device(job)

        monkeypatch.setattr(bench.model, "run", batch)
        # With two, one is always waiting when the other's turn ends.
        busy = [asyncio.create_task(keep_busy()) for _ in range(2)]
        await asyncio.gather(*[bench.submit(float(number)) for number in range(20)], *busy)

    run()
    assert log.strip("J").startswith(2 * turn)


def test_expected_waits_count_the_jobs_between_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, over = ManualClock(), False
    for module in (scheduler_module, deadlines, asking):
        monkeypatch.setattr(module, "time", clock)

    def job() -> None:
        clock.now += 0.125

    @on_bench(max_batch_size=1)
    async def run(bench: Bench) -> None:
        nonlocal over
        double = bench.model.run

        def batch(fields: Fields) -> ModelOutput:
            clock.now += 0.125
            return double(fields)._replace(compute_seconds=0.125)

        async def keep_busy() -> None:
            while not over:
                await bench.scheduler.run_on_device(job)

        monkeypatch.setattr(bench.model, "run", batch)
        busy = [asyncio.create_task(keep_busy()) for _ in range(2)]
        await asyncio.gather(*[bench.submit(float(number)) for number in range(20)])
        asked = [bench.submit(float(number), deadline=clock.now + 2.5) for number in range(30)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        over = True
        await asyncio.gather(*busy)
        ended = Counter(type(one) for one in outcomes)
        assert ended.keys() == {PredictResult, QueueFull}, "none waits until it is too late"
        assert ended[PredictResult] >= 8

        asked = [bench.submit(float(number), deadline=clock.now + 2.5) for number in range(30)]
        outcomes = await asyncio.gather(*asked, return_exceptions=True)
        served = sum(isinstance(one, PredictResult) for one in outcomes)
        assert served >= 18, "the jobs are over"

    run()


@on_bench(max_batch_size=8)
async def test_a_block_shares_a_batch_and_its_tickets_end_one_by_one(bench: Bench) -> None:
    first = await bench.block()
    tickets = block(bench, 1.0, 2.0, BAD, 4.0)
    bench.scheduler.cancel(tickets[1])
    bench.model.gate.set()
    ended = await asyncio.gather(*(one.outcome for one in tickets), return_exceptions=True)
    await first
    assert [type(one) for one in ended] == [
        *(PredictResult, Unavailable, InferenceFailed, PredictResult)
    ]
    assert bench.model.sizes[:2] == [1, 3], "without the one that was cancelled"


@on_bench(max_queued_fields_per_model=3, max_fields_per_request=3)
async def test_the_first_of_a_block_are_queued_if_not_all_fit(bench: Bench) -> None:
    first = await bench.block()
    tickets = block(bench, *map(float, range(1, 6)))
    refused = [one for one in tickets if one.outcome.done()]
    assert refused == tickets[3:]
    bench.model.gate.set()
    ended = await asyncio.gather(*(one.outcome for one in tickets), return_exceptions=True)
    await first
    assert [type(one) for one in ended] == [*[PredictResult] * 3, *[QueueFull] * 2]
    assert bench.rejections("queue_full") == 2


@on_bench()
async def test_those_of_a_block_that_cannot_start_in_time_are_refused(bench: Bench) -> None:
    first = await bench.block()
    batch = bench.settings.max_batch_size * fields(0.0).nbytes
    bench.capacity.note_batch("doubler", limit=batch, seconds=16.0)
    # Each field takes a second of device time, plus its share of the margin.
    tickets = block(bench, *map(float, range(1, 6)), deadline=time.monotonic() + 3.0)
    assert [one.outcome.done() for one in tickets] == [False] * 3 + [True] * 2
    bench.model.gate.set()
    ended = await asyncio.gather(*(one.outcome for one in tickets), return_exceptions=True)
    await first
    assert [type(one) for one in ended] == [*[PredictResult] * 3, *[QueueFull] * 2]
    assert bench.rejections("too_late") == 2


@on_bench()
async def test_an_answer_does_not_keep_the_memory_of_its_batch(bench: Bench) -> None:
    first, second = await asyncio.gather(bench.submit(1.0), bench.submit(2.0))
    assert bench.model.sizes == [2]
    for result in (first, second):
        held = result.fields
        while isinstance(held.base, np.ndarray):
            held = held.base
        assert memoryview(held if held.base is None else held.base).nbytes == result.fields.nbytes


def test_close_finishes_what_was_accepted() -> None:
    async def main() -> None:
        bench = Bench()
        bench.scheduler.start()
        await bench.submit(1.0)
        first = await bench.block()
        second = bench.submit(3.0)
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.1, bench.model.gate.set)
        await bench.scheduler.close(within=5)
        assert first.done()
        assert second.done()
        assert (await first).fields[0, 0, 0] == 0.0
        assert (await second).fields[0, 0, 0] == 6.0
        with pytest.raises(Unavailable):
            await bench.submit(1.0)

    asyncio.run(main())


def test_a_caller_who_left_does_not_keep_the_others_of_a_block_from_their_refusal() -> None:
    async def main() -> None:
        bench = Bench()
        bench.scheduler.start()
        await bench.scheduler.close(within=5)
        tickets = unsubmitted(bench, 1.0, 2.0, 3.0)
        tickets[1].outcome.cancel()
        bench.scheduler.submit(tickets)
        for one in (tickets[0], tickets[2]):
            assert isinstance(one.outcome.exception(), Unavailable)

    asyncio.run(main())


@on_bench()
async def test_device_job_runs_between_batches_and_raises_to_its_caller(bench: Bench) -> None:
    name = await bench.scheduler.run_on_device(lambda: threading.current_thread().name)
    assert name == "turbofno-device"
    with pytest.raises(KeyError):
        await bench.scheduler.run_on_device(lambda: {}["missing"])
    assert (await bench.submit(1.0)).fields[0, 0, 0] == 2.0


@on_bench(max_batch_size=4, max_fields_per_request=100)
async def test_storm_of_mixed_requests_gives_each_one_outcome(bench: Bench) -> None:
    rng = np.random.default_rng(0)
    kinds = rng.choice(["good", "bad", "nan", "cancel", "late"], 300)
    sizes = rng.integers(1, 10, 300)
    tasks = []
    for i, (kind, size) in enumerate(zip(kinds, sizes, strict=True)):
        values = [float(i)] * size
        if kind in ("bad", "nan"):
            values[-1] = BAD if kind == "bad" else NAN
        deadline = time.monotonic() - 1 if kind == "late" else None
        tasks.append(bench.submit(*values, deadline=deadline))
    await asyncio.sleep(0)
    for kind, task in zip(kinds, tasks, strict=True):
        if kind == "cancel":
            task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    expected = {
        "bad": InferenceFailed, "nan": InvalidField,
        "cancel": asyncio.CancelledError, "late": DeadlineExceeded,
    }  # fmt: skip
    for i, (kind, size, result) in enumerate(zip(kinds, sizes, results, strict=True)):
        if kind == "good" and i not in (BAD, NAN):
            np.testing.assert_array_equal(result.fields, fields(*[2.0 * i] * size))
        else:
            assert isinstance(result, expected[kind]), (kind, result)
