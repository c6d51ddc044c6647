"""The scheduler and its device thread, on small arrays."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import torch

from tests.clock import within
from tests.service.pipeline.asking import ask
from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.errors import (
    DeadlineExceeded,
    InferenceFailed,
    InvalidField,
    QueueFull,
    Unavailable,
)
from turbofno.service.logs import JsonFormatter
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline import scheduler as scheduler_module
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import SHORT_SECONDS, Scheduler
from turbofno.service.pipeline.ticket import Kind, Ticket
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(20)

BAD, NAN, HUGE, HUGE_TENSOR = 666.0, 777.0, 888.0, 999.0
"""First values that make the model raise, answer NaN, or run out of memory (in numpy, in torch)."""


LARGE = tuple(float(value % 500) for value in range(4000))


class Doubler:
    """output = 2 * input. A gate lets a test block the device; `sizes` records the batches."""

    name, version = "doubler", "1"

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.freed = 0
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.seconds = 0.0
        self.threads: list[int] = []

    def start(self, parts: Sequence[Fields]) -> Callable[[], ModelOutput]:
        output = self.run(np.concatenate(parts))
        return lambda: output

    def free_memory(self) -> None:
        self.freed += 1

    def run(self, fields: Fields) -> ModelOutput:
        self.entered.set()
        assert self.gate.wait(10)
        self.sizes.append(len(fields))
        self.threads.append(threading.get_ident())
        time.sleep(self.seconds)
        if (fields[:, 0, 0] == BAD).any():
            raise ZeroDivisionError("poison")
        if (fields[:, 0, 0] == HUGE).any():
            raise MemoryError
        if (fields[:, 0, 0] == HUGE_TENSOR).any():
            torch.empty(1 << 50)
        output = fields * 2
        output[fields[:, 0, 0] == NAN] = np.nan
        return ModelOutput(output, Ran("fake"))


def fields(*values: float, grid: int = 4) -> Fields:
    array = np.zeros((len(values), 1, grid), np.float32)
    array[:, 0, :] = np.asarray(values, np.float32)[:, None]
    return array


def request(*values: float, **options: Any) -> PredictRequest:
    return PredictRequest("doubler", None, fields(*values), f"id-{values[0]:g}", **options)


class Bench:
    """A running scheduler and its parts."""

    def __init__(self, **settings: Any) -> None:
        self.metrics = Metrics()
        self.settings = Settings(**settings)
        self.capacity = QueueCapacity(self.settings, self.metrics)
        self.scheduler = Scheduler(self.settings, self.metrics, self.capacity)
        self.model = Doubler()

    def submit(self, *values: float, **options: Any) -> asyncio.Task[Any]:
        return asyncio.create_task(ask(self.scheduler, self.model, request(*values, **options)))

    async def block(self) -> asyncio.Task[Any]:
        """Block the device with one request until `model.gate` is set."""
        self.model.gate.clear()
        self.model.entered.clear()
        task = self.submit(0.0)
        await asyncio.to_thread(self.model.entered.wait, 5)
        return task

    def rejections(self, reason: str) -> float:
        return (
            self.metrics.registry.get_sample_value(
                "turbofno_rejections_total", {"reason": reason, "model": self.model.name}
            )
            or 0.0
        )


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pretend two cores: on one, a blocked batch would block the event loop."""
    monkeypatch.setattr(scheduler_module, "cores", lambda: 2)


@asynccontextmanager
async def running(**settings: Any) -> AsyncIterator[Bench]:
    bench = Bench(**settings)
    bench.scheduler.start()
    try:
        yield bench
    finally:
        bench.model.gate.set()
        await bench.scheduler.close(within=5)
        assert bench.capacity.total == 0, "queue capacity was lost"


def on_bench(**settings: Any) -> Callable[..., Callable[[], None]]:
    def decorate(test: Callable[[Bench], Any]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                async with running(**settings) as bench:
                    await test(bench)

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


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
    for number in range(3):
        # The device is blocked by an earlier request.
        before = len(bench.model.sizes)
        single = bench.submit(float(number), deadline=time.monotonic() + 30)
        await asyncio.sleep(0)
        bench.model.gate.set()
        await single
        assert len(bench.model.sizes) - before <= 4
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
        await asyncio.gather(bench.submit(1.0), bench.submit(BAD), return_exceptions=True)
    finally:
        logger.removeHandler(handler)
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
    with pytest.raises(DeadlineExceeded, match="TURBOFNO_REQUEST_DEADLINE_SECONDS"):
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


def block(bench: Bench, *values: float, **options: Any) -> list[Ticket]:
    """Tickets of one field each, submitted together."""
    loop, kinds = asyncio.get_running_loop(), {}
    tickets = []
    for value in values:
        asked = request(value, **options)
        kind = kinds.setdefault(asked.priority, Kind.of(bench.model, asked))
        tickets.append(Ticket(kind, asked, time.monotonic(), loop.create_future(), 1))
    bench.scheduler.submit(tickets)
    return tickets


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


def test_close_finishes_what_was_accepted() -> None:
    async def main() -> None:
        bench = Bench()
        bench.scheduler.start()
        first = await bench.block()
        second = bench.submit(3.0)
        await asyncio.sleep(0.02)
        asyncio.get_running_loop().call_later(0.1, bench.model.gate.set)
        await bench.scheduler.close(within=5)
        assert (await first).fields[0, 0, 0] == 0.0
        assert (await second).fields[0, 0, 0] == 6.0
        with pytest.raises(Unavailable):
            await bench.submit(1.0)

    asyncio.run(main())


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
        bench.model.gate.set()

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


def test_on_one_core_short_batches_run_on_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scheduler_module, "cores", lambda: 1)
    monkeypatch.setattr(scheduler_module, "SHORT_SECONDS", 60.0)  # even on a busy machine

    async def main() -> None:
        async with running(max_batch_size=4) as bench:
            model, loop_thread = bench.model, threading.get_ident()

            async def ask(*values: float) -> tuple[list[object], set[int]]:
                model.threads.clear()
                asked = [bench.submit(value) for value in values]
                found = await asyncio.gather(*asked, return_exceptions=True)
                return found, set(model.threads)

            _, threads = await ask(1.0)
            assert loop_thread not in threads, "nobody knows yet how long it takes"
            results, threads = await ask(*map(float, range(11)))
            assert threads == {loop_thread}
            for value, result in enumerate(results):
                np.testing.assert_array_equal(result.fields, 2 * fields(value))  # type: ignore[attr-defined]
            results, threads = await ask(1.0, BAD, 2.0, NAN, HUGE)
            assert [type(result).__name__ for result in results] == [
                *("PredictResult", "InferenceFailed", "PredictResult", "InvalidField"),
                "Unavailable",
            ]
            monkeypatch.setattr(scheduler_module, "SHORT_SECONDS", SHORT_SECONDS)
            model.seconds = 3 * SHORT_SECONDS
            for _ in range(6):
                await ask(1.0, 2.0, 3.0, 4.0)
            _, threads = await ask(1.0, 2.0, 3.0, 4.0)
            assert loop_thread not in threads, "it has become long"

    asyncio.run(main())


def test_on_one_core_new_requests_are_read_between_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler_module, "cores", lambda: 1)
    monkeypatch.setattr(scheduler_module, "SHORT_SECONDS", 60.0)

    async def main() -> None:
        async with running(max_batch_size=1) as bench:
            await bench.submit(1.0)
            waiting = [bench.submit(float(value)) for value in range(20)]
            seen: list[int] = []

            async def look() -> None:
                while not all(task.done() for task in waiting):
                    seen.append(len(bench.model.sizes))
                    await asyncio.sleep(0)

            await look()
            assert len(set(seen)) > 10, "the event loop had its turns"

    asyncio.run(main())
