"""Batches on a GPU whose start is known to be short start on the event loop."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from tests.service.pipeline.asking import ask
from tests.service.waiting import until
from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import Execution, ModelOutput, Ran
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline import scheduler as scheduler_module
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import SHORT_START_SECONDS, Scheduler
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(20)

SHAPES = [(1, 4), (7, 4), (2, 6), (16, 4)]
"""Fields of a request, and points of their grid."""


class Model:
    """Doubles fields; notes for each batch whether it started on the event loop."""

    name, version = "double", "1"

    def __init__(self) -> None:
        self.here: list[bool] = []
        self.execution: Execution = "chain"
        self.fails = False
        self.seconds = 0.0
        """CPU time that a start takes."""
        self._loop = threading.get_ident()

    def start(self, parts: Sequence[Fields], _: Sequence[Fields] = ()) -> Callable[[], ModelOutput]:
        self.here.append(threading.get_ident() == self._loop)
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        if self.fails:
            raise ZeroDivisionError
        output = ModelOutput(2 * np.concatenate(parts), Ran("fake", execution=self.execution))
        return lambda: output

    def start_vjp(self, parts: Sequence[Fields], _: VjpShapes) -> Callable[[], ModelOutput]:
        return self.start(parts)

    def gradient_bytes(self, _: VjpShapes) -> int:
        return 0

    def free_memory(self) -> None:
        raise AssertionError("nothing ran out of memory")


class Bench:
    """A scheduler of a GPU with a model. `threads` are those that were prepared to start batches."""

    def __init__(self) -> None:
        settings, metrics = Settings(max_batch_size=16, max_fields_per_request=16), Metrics()
        self.model, self.threads = Model(), set[str]()
        self.scheduler = Scheduler(
            settings,
            metrics,
            QueueCapacity(settings, metrics),
            max_in_flight=3,
            prepare_thread=lambda: self.threads.add(threading.current_thread().name),
        )

    async def ask(self, size: int = 1, grid: int = 4, vjp: VjpShapes | None = None) -> bool:
        """Run a request as a batch. True if it started on the event loop."""
        fields = np.full((size, 1, grid) if vjp is None else (size, 2 * grid), 1.0, np.float32)
        request = PredictRequest("double", None, fields, "id", vjp=vjp)
        result = await ask(self.scheduler, self.model, request)
        np.testing.assert_array_equal(result.fields, 2 * fields)
        return self.model.here[-1]


@asynccontextmanager
async def running() -> AsyncIterator[Bench]:
    bench = Bench()
    bench.scheduler.start()
    try:
        yield bench
    finally:
        await bench.scheduler.close(within=5)


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no start long, except in tests that make them so."""
    monkeypatch.setattr(scheduler_module, "SHORT_START_SECONDS", 60.0)


def test_a_batch_starts_on_the_event_loop_once_one_like_it_started_in_short_time() -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(3) for _ in range(3)] == [False, True, True]
            assert [await bench.ask(4), await bench.ask(3)] == [True, True], "one CUDA graph"
            assert [await bench.ask(5), await bench.ask(8)] == [False, True], "another graph"
            assert [await bench.ask(3, grid=6), await bench.ask(3, grid=6)] == [False, True]
            assert bench.threads == {"MainThread", "turbofno-device", "turbofno-device-out"}

    asyncio.run(main())


def test_a_batch_that_took_long_to_start_has_the_next_start_on_the_device_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(), await bench.ask()] == [False, True]
            monkeypatch.setattr(scheduler_module, "SHORT_START_SECONDS", SHORT_START_SECONDS)
            bench.model.seconds = 2 * SHORT_START_SECONDS
            assert [await bench.ask(), await bench.ask(), await bench.ask()] == [True, False, False]
            monkeypatch.setattr(scheduler_module, "SHORT_START_SECONDS", 60.0)
            assert [await bench.ask(), await bench.ask()] == [False, True]

    asyncio.run(main())


def test_gradients_and_fields_cut_over_devices_start_on_the_device_thread() -> None:
    async def main() -> None:
        async with running() as bench:
            shapes = VjpShapes((1, 4), (1, 4))
            assert not any([await bench.ask(vjp=shapes) for _ in range(3)])
            bench.model.execution = "slabs"
            assert not any([await bench.ask() for _ in range(3)])

    asyncio.run(main())


def test_a_batch_does_not_overtake_what_the_device_thread_has_still_to_start() -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(), await bench.ask()] == [False, True]
            release, begun = threading.Event(), threading.Event()

            def job() -> None:
                begun.set()
                release.wait(10)

            done = asyncio.create_task(bench.scheduler.run_on_device(job))
            await until(begun.is_set)
            batch = asyncio.create_task(bench.ask())
            await asyncio.sleep(0.02)
            assert len(bench.model.here) == 2
            release.set()
            await done
            assert await batch is False
            assert await bench.ask() is True

    asyncio.run(main())


def test_a_failure_on_the_event_loop_fails_only_the_requests_that_cause_it() -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(), await bench.ask()] == [False, True]
            bench.model.fails = True
            with pytest.raises(Exception, match="failed on this request alone"):
                await bench.ask()
            bench.model.fails = False
            assert [await bench.ask(), await bench.ask()] == [False, True]
            assert len(bench.model.here) == 5, "nothing else ran"

    asyncio.run(main())


def test_answers_are_right_whichever_thread_starts_their_batch() -> None:
    async def main() -> None:
        async with running() as bench:
            for size, grid in SHAPES:
                await bench.ask(size, grid)
            assert not any(bench.model.here)
            requests = [
                PredictRequest("double", None, np.full((size, 1, grid), i, np.float32), str(i))
                for i, (size, grid) in enumerate(SHAPES * 25)
            ]
            tasks: list[asyncio.Task[PredictResult]] = []
            for request in requests:
                tasks.append(asyncio.create_task(ask(bench.scheduler, bench.model, request)))
                await asyncio.sleep(0)
            for request, result in zip(requests, await asyncio.gather(*tasks), strict=True):
                np.testing.assert_array_equal(result.fields, 2 * request.fields)
            assert any(bench.model.here)

    asyncio.run(main())
