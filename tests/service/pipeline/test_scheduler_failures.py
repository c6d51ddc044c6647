"""The scheduler: requests that fail, expire, are cancelled or refused."""

from __future__ import annotations

import asyncio
import json
import logging
import time

import numpy as np
import pytest

from tests.clock import within
from tests.service.pipeline.bench import (
    BAD,
    HUGE,
    HUGE_TENSOR,
    NAN,
    Bench,
    block,
    fields,
    on_bench,
)
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.errors import (
    DeadlineExceeded,
    DeviceLost,
    InferenceFailed,
    InvalidField,
    QueueFull,
    Unavailable,
)
from turbofno.service.logs import JsonFormatter

pytestmark = [pytest.mark.timeout(20), pytest.mark.usefixtures("two_cores")]


@on_bench()
async def test_poison_field_fails_alone(bench: Bench) -> None:
    first = await bench.block()
    tasks = [bench.submit(value) for value in (1.0, BAD, 3.0)]
    await asyncio.sleep(0.02)
    bench.model.gate.set()
    good, bad, also_good = await asyncio.gather(*tasks, return_exceptions=True)
    await first
    np.testing.assert_array_equal(good.fields, fields(2.0))
    np.testing.assert_array_equal(also_good.fields, fields(6.0))
    assert isinstance(bad, InferenceFailed)
    assert "poison" not in bad.message, "internals stay in the log"
    with pytest.raises(InferenceFailed):
        await bench.submit(BAD)
    assert bench.model.sizes == [1, 3, 1, 2, 1, 1, 1], "halves of requests, not of fields"
    labels = {"model": "doubler", "backend": "none", "precision": "fp32"}
    read = bench.metrics.registry.get_sample_value
    assert read("turbofno_backend_batches_total", labels) == 1, "no backend ran in the last batch"


@on_bench()
async def test_nan_output_fails_only_its_request_and_names_the_field(bench: Bench) -> None:
    good, bad = await asyncio.gather(
        bench.submit(1.0), bench.submit(5.0, NAN), return_exceptions=True
    )
    np.testing.assert_array_equal(good.fields, fields(2.0))
    assert isinstance(bad, InvalidField), "weights are finite: it is the input that overflows"
    assert "field 1 of 2" in bad.message


@on_bench()
async def test_failure_is_logged_with_its_request_id(bench: Bench) -> None:
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign]
    logger = logging.getLogger("turbofno.service.pipeline.batch")
    logger.addHandler(handler)
    try:
        await asyncio.gather(*map(bench.submit, (1.0, 2.0, BAD)), return_exceptions=True)
    finally:
        logger.removeHandler(handler)
    (summary,) = (record for record in records if not record.exc_info)
    assert summary.getMessage().startswith("a batch of 3 requests failed on model doubler (Zero")
    (line,) = (JsonFormatter().format(record) for record in records if record.exc_info)
    assert json.loads(line)["request_id"] == f"id-{BAD:g}"


@on_bench()
async def test_out_of_memory_is_unavailable(bench: Bench) -> None:
    for value in (HUGE, HUGE_TENSOR):
        with pytest.raises(Unavailable, match="memory") as caught:
            await bench.submit(value)
        assert caught.value.retry_after
    assert (await bench.submit(1.0)).fields[0, 0, 0] == 2.0


@on_bench()
async def test_finite_output_whose_sum_overflows_is_fine(bench: Bench) -> None:
    result = await bench.submit(1e38, 1e38)
    assert np.isfinite(result.fields).all()


@on_bench()
async def test_deadline_passes_while_the_device_is_busy(bench: Bench) -> None:
    first = await bench.block()
    late = bench.submit(1.0, deadline=time.monotonic() + 0.05)
    started = time.monotonic()
    expected = r"waited \d(\.\d+)? s in the queue .*TURBOFNO_REQUEST_DEADLINE_SECONDS"
    with pytest.raises(DeadlineExceeded, match=expected):
        await late
    # It expires at once, not when the device becomes free.
    within(time.monotonic() - started, 1.0)
    bench.model.gate.set()
    await first
    assert bench.model.sizes == [1], "it never ran"
    assert bench.rejections("deadline") == 1


@on_bench()
async def test_request_past_its_deadline_never_runs(bench: Bench) -> None:
    with pytest.raises(DeadlineExceeded):
        await bench.submit(1.0, deadline=time.monotonic() - 1)
    assert bench.model.sizes == []


@on_bench()
async def test_cancelled_request_is_dropped_if_it_has_not_started(bench: Bench) -> None:
    first = await bench.block()
    gone, stays = bench.submit(1.0), bench.submit(2.0)
    await asyncio.sleep(0.02)
    gone.cancel()
    await asyncio.sleep(0.02)
    bench.model.gate.set()
    await asyncio.gather(first, stays)
    assert bench.model.sizes == [1, 1]
    assert gone.cancelled()


@on_bench()
async def test_a_request_that_is_cancelled_at_any_time_ends_once(bench: Bench) -> None:
    bench.model.gate.clear()
    (running,) = block(bench, 1.0)
    await asyncio.to_thread(bench.model.entered.wait, 5)
    (waiting,) = block(bench, 2.0)
    for one in (waiting, running):
        bench.scheduler.cancel(one)
        assert isinstance(one.outcome.exception(), Unavailable)
    assert not bench.scheduler._batcher._queues
    bench.model.gate.set()
    (answered,) = block(bench, 3.0)
    await answered.outcome
    bench.scheduler.cancel(answered)
    await bench.submit(4.0)
    assert bench.ended[:3] == [waiting, running, answered]
    assert len(bench.ended) == 4


@on_bench(max_queued_fields_per_model=1, max_fields_per_request=1)
async def test_a_refused_request_does_not_count_against_its_client(bench: Bench) -> None:
    before = [await bench.block(), bench.submit(1.0)]
    await asyncio.sleep(0)
    for _ in range(2):
        with pytest.raises(QueueFull, match="TURBOFNO_MAX_QUEUED_FIELDS_PER_MODEL"):
            await bench.submit(2.0, client="a", client_max_fields=1)
    bench.model.gate.set()
    await asyncio.gather(*before)


@on_bench(max_queued_fields_per_model=3, max_fields_per_request=3)
async def test_full_queue_refuses_and_recovers(bench: Bench) -> None:
    first = await bench.block()
    waiting = [bench.submit(1.0), bench.submit(2.0, 3.0)]
    await asyncio.sleep(0.02)
    with pytest.raises(QueueFull, match="TURBOFNO_MAX_QUEUED_FIELDS_PER_MODEL") as caught:
        await bench.submit(4.0)
    assert caught.value.retry_after is not None
    assert 1.0 <= caught.value.retry_after <= 60.0
    bench.model.gate.set()
    await asyncio.gather(first, *waiting)
    assert (await bench.submit(4.0)).fields[0, 0, 0] == 8.0
    assert bench.rejections("queue_full") == 1


def test_close_fails_what_cannot_finish_in_time() -> None:
    async def main() -> None:
        bench = Bench()
        bench.scheduler.start()
        tasks = [await bench.block(), bench.submit(3.0)]
        await asyncio.sleep(0.02)
        await bench.scheduler.close(within=0.05)
        for task in tasks:
            with pytest.raises(Unavailable):
                await task
        assert bench.capacity.total == 0
        for work in (bench.submit(4.0), bench.scheduler.run_on_device(lambda: None)):
            with pytest.raises(Unavailable, match="stopped before"):
                await asyncio.wait_for(work, 5)
        bench.model.gate.set()

    asyncio.run(main())


@on_bench()
async def test_a_lost_device_fails_what_runs_waits_and_comes(bench: Bench) -> None:
    def work() -> list[asyncio.Task[object]]:
        job = bench.scheduler.run_on_device(lambda: None)
        return [bench.submit(1.0), asyncio.create_task(job)]

    before = [await bench.block(), *work()]
    await asyncio.sleep(0)
    bench.scheduler.lose_device("the GPU is gone")
    for one in (*before, *work()):
        with pytest.raises(DeviceLost, match="the GPU is gone"):
            await asyncio.wait_for(one, 5)


@on_bench()
async def test_a_job_that_loses_the_device_fails_what_comes(bench: Bench) -> None:
    def lose() -> None:
        raise DeviceLost("the GPU is gone")

    for work in (bench.scheduler.run_on_device(lose), bench.submit(1.0)):
        with pytest.raises(DeviceLost, match="the GPU is gone"):
            await asyncio.wait_for(work, 5)


@on_bench()
async def test_outputs_that_cannot_be_distributed_fail_every_request_of_the_batch(
    bench: Bench,
) -> None:
    bench.model.run = lambda batch: ModelOutput(batch, Ran("fake"), trust=None)  # type: ignore
    for one in [bench.submit(1.0), bench.submit(2.0)]:
        with pytest.raises(InferenceFailed, match="failed on the batch of this request"):
            await asyncio.wait_for(one, 5)
    del bench.model.run
    assert (await bench.submit(3.0)).fields[0, 0, 0] == 6.0
