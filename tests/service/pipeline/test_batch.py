"""Batches that run out of memory or fail: splitting, isolation of the failing request, and temporary limits."""

from __future__ import annotations

import asyncio
import math
import time
import weakref
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.pipeline.asking import ask
from turbofno.service.engine.interface import NO_FIELDS, Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.errors import InferenceFailed, InvalidField, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline import memory_limits
from turbofno.service.pipeline.batch import Batch
from turbofno.service.pipeline.batcher import Batcher, Policy
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import Scheduler
from turbofno.service.pipeline.ticket import Bucket, Kind, Slice, Ticket
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(20)

TOO_LARGE, POISON, REFUSED = -7.0, -8.0, -9.0
"""First values of a field that never fits into memory, of one that the model fails on, and of one that it refuses."""


class Memory:
    """A fake tensor on the device."""


class SmallDevice:
    """output = input + 1; torch.OutOfMemoryError for more than `room` fields together."""

    name, version = "adder", "1"

    def __init__(self, room: int) -> None:
        self.room = room
        self.tried: list[int] = []
        self.freed = 0
        self.allocated: weakref.WeakSet[Memory] = weakref.WeakSet()

    def start(self, parts: Sequence[Fields]) -> Callable[[], ModelOutput]:
        batch = np.concatenate(parts)
        self.tried.append(len(batch))
        assert not self.allocated, "memory of the failed batch was not freed"
        if (batch[:, 0, 0] == POISON).any():
            raise ZeroDivisionError  # before memory is allocated: pytest keeps the frames of logged errors
        if (batch[:, 0, 0] == REFUSED).any():
            raise Unavailable("refused")
        memory = Memory()
        self.allocated.add(memory)
        if len(batch) > self.room or (batch[:, 0, 0] == TOO_LARGE).any():
            try:
                raise torch.OutOfMemoryError("CUDA out of memory")
            except torch.OutOfMemoryError as error:
                # As for captures of CUDA graphs.
                raise torch.OutOfMemoryError(str(error)) from error
        output = ModelOutput(batch + 1, Ran("fake"), gather_seconds=0.25, compute_seconds=0.5)
        return lambda: output

    def free_memory(self) -> None:
        assert not self.allocated
        self.freed += 1


class Bench:
    """A scheduler with a small fake device, and its metrics."""

    def __init__(self, room: int, **settings: Any) -> None:
        chosen = Settings(**settings)
        self.metrics = Metrics()
        self.device = SmallDevice(room)
        self.scheduler = Scheduler(chosen, self.metrics, QueueCapacity(chosen, self.metrics))
        self.scheduler.start()

    def submit(self, *values: float, grid: int = 4) -> asyncio.Task[Any]:
        fields = np.repeat(np.asarray(values, np.float32)[:, None, None], grid, axis=2)
        request = PredictRequest("adder", None, fields, "id")
        return asyncio.create_task(ask(self.scheduler, self.device, request))

    def read(self, name: str) -> float | None:
        return self.metrics.registry.get_sample_value(name, {"model": "adder", "version": "1"})


def on_bench(room: int, **settings: Any) -> Callable[..., Callable[[], None]]:
    def decorate(test: Callable[[Bench], Any]) -> Callable[[], None]:
        def run() -> None:
            async def main() -> None:
                bench = Bench(room, **settings)
                try:
                    await test(bench)
                finally:
                    await bench.scheduler.close(within=5)

            asyncio.run(main())

        run.__name__ = test.__name__
        return run

    return decorate


def check(result: Any, *values: float) -> None:
    np.testing.assert_array_equal(result.fields[:, 0, 0], np.asarray(values, np.float32) + 1)


@on_bench(room=3)
async def test_batch_that_does_not_fit_runs_in_halves(bench: Bench) -> None:
    requests = [(1.0, 2.0), (3.0,), (4.0, 5.0, 6.0, 7.0), (8.0,)]
    results = await asyncio.gather(*(bench.submit(*values) for values in requests))
    for values, result in zip(requests, results, strict=True):
        check(result, *values)
    assert bench.device.tried == [8, 4, 2, 2, 4, 2, 2]
    assert bench.device.freed == bench.read("turbofno_out_of_memory_splits_total") == 3
    assert results[0].compute_seconds == 4 * 0.5, "all pieces of the batch"


@on_bench(room=4)
async def test_lowered_limit_holds_for_that_grid_only(bench: Bench) -> None:
    await bench.submit(*range(16))
    assert bench.device.tried == [16, 8, 4, 4, 8, 4, 4]
    assert bench.read("turbofno_lowered_batch_limit") == 4
    bench.device.tried.clear()
    check(await bench.submit(*range(10)), *range(10))
    assert bench.device.tried == [4, 4, 2]
    bench.device.room = 100
    bench.device.tried.clear()
    await asyncio.gather(*(bench.submit(1.0, grid=8) for _ in range(6)))
    assert bench.device.tried == [6]


class FakeTimers:
    """Timers of an event loop that run when the test says so."""

    def __init__(self) -> None:
        self.left: list[Any] = []

    def call_later(self, seconds: float, function: Callable[..., None], *given: Any) -> Any:
        run = partial(function, *given)
        timer = SimpleNamespace(seconds=seconds, run=run, cancel=lambda: self.left.remove(timer))
        self.left.append(timer)
        return timer

    def run_next(self) -> float:
        """Run the oldest; return the seconds after which it was to run."""
        timer = self.left.pop(0)
        timer.run()
        return float(timer.seconds)


def test_full_batches_are_tried_again_each_time_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_limits, "SHORTEST", 1.0)
    monkeypatch.setattr(memory_limits, "LONGEST", 3.0)

    async def main() -> None:
        bench = Bench(room=2)
        timers = FakeTimers()
        loop = SimpleNamespace(get_running_loop=lambda: timers)
        monkeypatch.setattr(memory_limits, "asyncio", loop)
        waited = []
        for room in (2, 1, 2, 2):
            bench.device.room = room
            await bench.submit(*range(4))
            assert bench.read("turbofno_lowered_batch_limit") == room
            await bench.submit(*range(3))
            waited.append(timers.run_next())
            assert bench.read("turbofno_lowered_batch_limit") is None
        assert waited == [1.0, 2.0, 3.0, 3.0]
        bench.device.room = 100
        bench.device.tried.clear()
        await bench.submit(*range(4))
        assert bench.device.tried == [4]
        assert timers.run_next() == 3.0
        assert not timers.left
        bench.device.room = 2
        await bench.submit(*range(4))
        assert timers.run_next() == 1.0, "the trouble is over"
        await bench.scheduler.close(within=5)

    asyncio.run(main())


def test_a_limit_that_is_lowered_again_holds_for_the_whole_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    timers = FakeTimers()
    loop = SimpleNamespace(get_running_loop=lambda: timers)
    monkeypatch.setattr(memory_limits, "asyncio", loop)
    metrics, batcher = Metrics(), Batcher(Policy(max_fields=16, max_bytes=10**9))
    limits = memory_limits.MemoryLimits(batcher, metrics)
    coarse, fine = (Bucket("adder", "1", 0, (1, grid), None) for grid in (4, 8))
    for bucket, fits in ((coarse, 4), (coarse, 2), (fine, 3), (coarse._replace(model="other"), 1)):
        limits.lower(bucket, Mock(splits=1, size=16, largest_run=fits))
    assert len(timers.left) == 3

    def shown() -> float | None:
        labels = {"model": "adder", "version": "1"}
        return metrics.registry.get_sample_value("turbofno_lowered_batch_limit", labels)

    assert shown() == 2
    for lowest in (3, None):
        assert timers.run_next() == memory_limits.SHORTEST
        assert shown() == lowest


@on_bench(room=100)
async def test_only_the_request_with_a_field_that_never_fits_is_refused(bench: Bench) -> None:
    good, huge, poison, also_good = await asyncio.gather(
        bench.submit(1.0, 2.0),
        bench.submit(3.0, TOO_LARGE, 4.0),
        bench.submit(POISON),
        bench.submit(5.0),
        return_exceptions=True,
    )
    check(good, 1.0, 2.0)
    check(also_good, 5.0)
    assert isinstance(huge, Unavailable)
    assert "not enough free memory" in huge.message
    assert huge.retry_after
    assert isinstance(poison, InferenceFailed)


@on_bench(room=100)
async def test_only_a_field_that_never_fits_is_refused(bench: Bench) -> None:
    huge, good = bench.submit(TOO_LARGE), bench.submit(1.0)
    check(await good, 1.0)
    with pytest.raises(Unavailable, match="memory"):
        await huge
    assert bench.device.tried == [2, 1, 1]


@on_bench(room=100)
async def test_a_refused_batch_does_not_run_in_pieces(bench: Bench) -> None:
    found = await asyncio.gather(*map(bench.submit, (1.0, REFUSED, 2.0)), return_exceptions=True)
    assert [str(one) for one in found] == ["refused"] * 3
    assert bench.device.tried == [3]


@on_bench(room=0)
async def test_a_field_that_does_not_fit_is_refused_and_the_next_may_fit(bench: Bench) -> None:
    with pytest.raises(Unavailable, match="memory"):
        await bench.submit(1.0, 2.0)
    assert bench.read("turbofno_lowered_batch_limit") == 1
    bench.device.room = 1
    check(await bench.submit(1.0, 2.0), 1.0, 2.0)


def test_random_requests_on_a_device_of_any_size() -> None:
    rng = generator()

    async def main() -> None:
        for room in rng.integers(1, 16, 10):
            bench = Bench(int(room), max_batch_size=16)
            values = [
                rng.uniform(1, 2, size).astype(np.float32) for size in rng.integers(1, 40, 30)
            ]
            results = await asyncio.gather(*(bench.submit(*one) for one in values))
            for one, result in zip(values, results, strict=True):
                check(result, *one)
            await bench.scheduler.close(within=5)

    asyncio.run(main())


def started(
    device: Any, values: Sequence[float], output_buffer: Fields | None = None
) -> tuple[Ticket, PredictResult]:
    """A ticket whose first slice is dispatched, and its result. A field is (value, -value)."""
    fields = np.array([[(value, -value)] for value in values], np.float32)
    request = PredictRequest("adder", None, fields, "id", output_buffer=output_buffer)
    ticket = Ticket(Kind.of(device, request), request, 0.0, Mock(), len(values))
    ticket.result = PredictResult(
        "adder", "1", NO_FIELDS if output_buffer is None else output_buffer, 0.0, 0.0, (), ""
    )
    return ticket, ticket.result


def test_the_times_of_a_batch_include_failed_and_repeated_runs() -> None:
    class SlowStart(SmallDevice):
        def start(self, parts: Sequence[Fields]) -> Callable[[], ModelOutput]:
            time.sleep(0.005)
            return super().start(parts)

    before, cpu_before = time.monotonic(), time.thread_time()
    device = SlowStart(1)
    report = Batch([Slice(started(device, range(4))[0], 0, 4)]).start()()
    took, cpu_took = time.monotonic() - before, time.thread_time() - cpu_before
    assert device.tried == [4, 2, 1, 1, 2, 1, 1]
    assert 7 * 0.005 <= report.start_seconds < took
    assert report.device_seconds == max(report.start_seconds, 4 * 0.5)
    assert 0.0 <= report.start_cpu_seconds <= cpu_took
    assert report.gather_seconds == 4 * 0.25
    assert 0.0 < report.scatter_seconds < took
    assert before <= report.started < report.ended <= before + took


class Judge:
    """output = input, with a signal of ten times the first value; at most `room` fields, in memory that is used again."""

    name, version = "judge", "1"

    def __init__(self, room: int) -> None:
        self.room, self.unreleased = room, 0

    def start(self, parts: Sequence[Fields]) -> Callable[[], ModelOutput]:
        batch = np.concatenate(parts)
        if len(batch) > self.room:
            raise MemoryError
        self.unreleased += 1
        trust = {"residual": [10 * float(value) for value in batch[:, 0, 0]]}

        def release() -> None:
            batch.fill(math.nan)
            self.unreleased -= 1

        return lambda: ModelOutput(batch, Ran("fake"), trust=trust, release=release)

    def free_memory(self) -> None:
        """Everything is free."""


@pytest.mark.parametrize("room", [9, 2])
def test_outputs_and_signals_of_a_batch_go_to_their_requests(room: int) -> None:
    device = Judge(room)
    (whole, all_of_it), (split, result), (infinite, none) = (
        started(device, values) for values in ((1.0, 2.0), (3.0, 4.0, 5.0), (6.0, 7.0, math.inf))
    )
    first = Batch([Slice(whole, 0, 2), Slice(split, 0, 1), Slice(infinite, 2, 3)]).start()()
    assert result.trust == {"residual": (30.0, 0.0, 0.0)}
    second = Batch([Slice(split, 1, 3), Slice(infinite, 0, 1)]).start()()
    assert device.unreleased == 0
    assert first.splits == second.splits == (room == 2)
    for ticket, found in ((whole, all_of_it), (split, result)):
        np.testing.assert_array_equal(found.fields, ticket.request.fields, strict=True)
    assert all_of_it.trust == {"residual": (10.0, 20.0)}
    assert result.trust == {"residual": (30.0, 40.0, 50.0)}
    assert none.trust == {"residual": (60.0, 0.0, 0.0)}
    assert sorted(first.trust["residual"]) == [10.0, 20.0, 30.0]
    assert sorted(second.trust["residual"]) == [40.0, 50.0, 60.0]
    assert list(first.errors) == [2]
    assert isinstance(first.errors[2], InvalidField)
    assert "gave NaN or infinity for field 2 of 3 " in first.errors[2].message
    assert not second.errors


def test_outputs_that_are_in_place_are_only_checked() -> None:
    class Writer:
        name, version = "writer", "1"

        def start(
            self, parts: Sequence[Fields], output_buffers: Sequence[Fields]
        ) -> Callable[[], ModelOutput]:
            for part, buffer in zip(parts, output_buffers, strict=True):
                buffer[:] = part
            total = sum(float(np.abs(part).sum()) for part in parts)
            return lambda: ModelOutput(None, Ran("fake"), total=total)

    buffers = np.zeros((3, 1, 2), np.float32), np.zeros((1, 1, 2), np.float32)
    good, infinite = (
        started(Writer(), values, buffer)[0]
        for values, buffer in zip(((1.0, 2.0, 3.0), (math.inf,)), buffers, strict=True)
    )
    report = Batch([Slice(good, 1, 3), Slice(infinite, 0, 1)]).start()()
    assert list(report.errors) == [1]
    assert "field 0 of 1 " in report.errors[1].message
    assert buffers[0][:, 0, 0].tolist() == [0.0, 2.0, 3.0]
