"""Batches that run out of memory or fail: splitting, isolation of the failing request, and temporary limits."""

from __future__ import annotations

import asyncio
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
from turbofno.service.engine.interface import Fields, PredictRequest
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.errors import InferenceFailed, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline import memory_limits
from turbofno.service.pipeline.batcher import Batcher, Policy
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import Scheduler
from turbofno.service.pipeline.ticket import Bucket
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(20)

TOO_LARGE, POISON = -7.0, -8.0
"""First values of a field that never fits into memory, and of one that the model fails on."""


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
        memory = Memory()
        self.allocated.add(memory)
        if len(batch) > self.room or (batch[:, 0, 0] == TOO_LARGE).any():
            raise torch.OutOfMemoryError("CUDA out of memory")
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
