"""Batches on a GPU whose start is known to be short start on the event loop."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import numpy as np
import pytest

from tests.service.pipeline.asking import ask, ticket_of
from tests.service.waiting import until
from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import Execution, ModelOutput, Ran
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.errors import InferenceFailed
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline import scheduler, short_starts, worker
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import Scheduler
from turbofno.service.pipeline.short_starts import LONG_SECONDS, SHORT_SECONDS
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(20)

BAD = -1.0
"""A value with which the model fails."""
SHAPES = [(1, 4), (7, 4), (2, 6), (16, 4)]
"""Fields of a request, and points of their grid."""


class Model:
    """Doubles fields; notes for each batch whether it started on the event loop."""

    name, version = "double", "1"

    def __init__(self) -> None:
        self.here: list[bool] = []
        self.sizes: list[int] = []
        self.execution: Execution = "chain"
        self.blocked = False
        self.ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        """While blocked, a wait returns for each item."""
        self.seconds = 0.0
        """CPU time that a start takes."""
        self.wait_seconds = 0.0
        """Time that it waits."""
        self.ends_here: list[bool] = []
        """For each batch whether the event loop waited for its end."""
        self.device_seconds = 1e-5
        """What the device says that a batch took."""
        self._loop = threading.get_ident()

    def start(self, parts: Sequence[Fields], _: Sequence[Fields] = ()) -> Callable[[], ModelOutput]:
        self.here.append(threading.get_ident() == self._loop)
        self.sizes.append(sum(map(len, parts)))
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        time.sleep(self.wait_seconds)
        if any((part == BAD).any() for part in parts):
            raise ZeroDivisionError
        output = ModelOutput(
            2 * np.concatenate(parts),
            Ran("fake", execution=self.execution),
            compute_seconds=self.device_seconds,
        )

        def wait() -> ModelOutput:
            self.ends_here.append(threading.get_ident() == self._loop)
            if self.blocked:
                self.ends.get(timeout=10)
            return output

        return wait

    def start_vjp(self, parts: Sequence[Fields], _: VjpShapes) -> Callable[[], ModelOutput]:
        return self.start(parts)

    def gradient_bytes(self, _: VjpShapes) -> int:
        return 0

    def free_memory(self) -> None:
        raise AssertionError("nothing ran out of memory")


class Bench:
    """A scheduler of a GPU with a model. `threads` are those that were prepared to start batches."""

    def __init__(self, max_in_flight: int) -> None:
        settings, metrics = Settings(max_batch_size=16, max_fields_per_request=16), Metrics()
        self.model, self.threads = Model(), set[str]()
        self.scheduler = Scheduler(
            settings,
            metrics,
            QueueCapacity(settings, metrics),
            max_in_flight=max_in_flight,
            prepare_thread=lambda: self.threads.add(threading.current_thread().name),
        )

    async def ask(self, size: int = 1, grid: int = 4, vjp: VjpShapes | None = None) -> bool:
        """Run a request as a batch once the device thread has started all before. True if it started on the event loop."""
        await self.settle()
        return await self.ask_now(size, grid, vjp)

    async def ask_now(self, size: int = 1, grid: int = 4, vjp: VjpShapes | None = None) -> bool:
        fields = np.full((size, 1, grid) if vjp is None else (size, 2 * grid), 1.0, np.float32)
        request = PredictRequest("double", None, fields, "id", vjp=vjp)
        result = await ask(self.scheduler, self.model, request)
        np.testing.assert_array_equal(result.fields, 2 * fields)
        return self.model.here[-1]

    async def settle(self) -> None:
        """Wait until the device thread has noted that it started all: an answer may come a moment before."""
        await until(self.scheduler._worker._last_started.is_set)


@asynccontextmanager
async def running(max_in_flight: int = 3) -> AsyncIterator[Bench]:
    bench = Bench(max_in_flight)
    bench.scheduler.start()
    try:
        yield bench
    finally:
        await bench.scheduler.close(within=5)


@pytest.fixture(autouse=True)
def _slow_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy machine makes no start long, except in tests that make them so."""
    monkeypatch.setattr(short_starts, "SHORT_SECONDS", 60.0)
    monkeypatch.setattr(short_starts, "LONG_SECONDS", 60.0)


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
            monkeypatch.setattr(short_starts, "SHORT_SECONDS", SHORT_SECONDS)
            bench.model.seconds = 2 * SHORT_SECONDS
            assert [await bench.ask(), await bench.ask(), await bench.ask()] == [True, False, False]
            monkeypatch.setattr(short_starts, "SHORT_SECONDS", 60.0)
            assert [await bench.ask(), await bench.ask()] == [False, True]

    asyncio.run(main())


@pytest.mark.parametrize(("count", "in_flight"), [(1, 1), (2, 3)])
def test_gradients_start_on_the_device_thread(
    count: int, in_flight: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also on one core, where the event loop runs short batches: a gradient of a field takes several times as long."""
    monkeypatch.setattr(scheduler, "cores", lambda: count)
    monkeypatch.setattr(scheduler, "SHORT_SECONDS", 60.0)

    async def main() -> None:
        async with running(in_flight) as bench:
            shapes = VjpShapes((1, 4), (1, 4))
            assert not any([await bench.ask(vjp=shapes) for _ in range(3)])

    asyncio.run(main())


def test_fields_cut_over_devices_start_on_the_device_thread() -> None:
    async def main() -> None:
        async with running() as bench:
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
            batch = asyncio.create_task(bench.ask_now())
            await asyncio.sleep(0.02)
            assert len(bench.model.here) == 2
            release.set()
            await done
            assert await batch is False
            assert await bench.ask() is True

    asyncio.run(main())


@pytest.mark.parametrize(("seconds", "here"), [(10.0, True), (0.0, False)])
def test_the_event_loop_waits_for_a_short_start_on_the_device_thread(
    monkeypatch: pytest.MonkeyPatch, seconds: float, here: bool
) -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(), await bench.ask(16)] == [False, False]
            await bench.settle()
            monkeypatch.setattr(worker, "CATCH_UP_SECONDS", seconds)
            bench.model.wait_seconds = 0.3
            first_of_its_kind = asyncio.create_task(bench.ask_now(grid=6))
            await until(lambda: len(bench.model.here) == 3)
            behind = asyncio.create_task(bench.ask_now())
            await until(lambda: len(bench.model.here) == 4)
            bench.model.wait_seconds = 0.0
            assert await bench.ask_now(16) is here
            await asyncio.gather(first_of_its_kind, behind)
            assert bench.model.here == [False] * 4 + [here]

    asyncio.run(main())


def test_pieces_of_a_batch_that_failed_on_the_event_loop_run_on_the_device_thread() -> None:
    async def main() -> None:
        async with running() as bench:
            for size in (3, 3, 1, 1):
                await bench.ask(size)
            assert bench.model.here == [False, True, False, True]
            await bench.settle()
            bench.model.here.clear()
            bench.model.sizes.clear()
            values = (1.0, BAD, 2.0)
            fields = [np.full((1, 1, 4), value, np.float32) for value in values]
            asked = [
                ask(bench.scheduler, bench.model, PredictRequest("double", None, one, "id"))
                for one in fields
            ]
            first, bad, last = await asyncio.gather(*asked, return_exceptions=True)
            assert isinstance(first, PredictResult)
            assert isinstance(last, PredictResult)
            assert isinstance(bad, InferenceFailed)
            np.testing.assert_array_equal(first.fields, 2 * fields[0])
            np.testing.assert_array_equal(last.fields, 2 * fields[2])
            sizes, here = bench.model.sizes, bench.model.here
            assert sorted(zip(sizes, here, strict=True)) == sorted(
                [(3, True), (1, False), (2, False), (1, False), (1, False)]
            )
            assert await bench.ask() is False, "memory may be short: nothing is known any more"

    asyncio.run(main())


def test_after_a_job_of_the_device_thread_batches_start_there_first() -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(), await bench.ask()] == [False, True]
            await bench.scheduler.run_on_device(lambda: None)
            assert [await bench.ask(), await bench.ask()] == [False, True]

    asyncio.run(main())


def test_a_start_that_waits_for_long_has_the_next_start_on_the_device_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(), await bench.ask()] == [False, True]
            monkeypatch.setattr(short_starts, "LONG_SECONDS", LONG_SECONDS)
            bench.model.wait_seconds = 2 * LONG_SECONDS
            assert [await bench.ask(), await bench.ask()] == [True, False]

    asyncio.run(main())


def test_answers_are_sent_before_the_next_batch_starts_while_the_device_has_work() -> None:
    async def main() -> None:
        async with running() as bench:
            assert [await bench.ask(16), await bench.ask(16)] == [False, True]
            model, started_at_answers = bench.model, list[int]()
            model.blocked = True
            model.here.clear()

            async def one() -> None:
                fields = np.ones((16, 1, 4), np.float32)
                await ask(bench.scheduler, model, PredictRequest("double", None, fields, "id"))
                started_at_answers.append(len(model.here))

            asked = [asyncio.create_task(one()) for _ in range(5)]
            await until(lambda: len(model.here) == 3)
            for answers in (1, 2):
                model.ends.put(None)
                await until(lambda n=answers: len(started_at_answers) == n)
                await until(lambda n=answers: len(model.here) == 3 + n)
            assert started_at_answers == [3, 4]
            model.blocked = False
            for _ in range(3):
                model.ends.put(None)
            await asyncio.gather(*asked)
            assert model.here == [True] * 5

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


def test_the_event_loop_waits_for_a_short_batch_of_a_request_that_comes_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scheduler, "ALONE_SECONDS", 60.0)  # even on a busy machine

    async def main() -> None:
        async with running() as bench:
            model = bench.model

            async def alone(size: int) -> bool:
                """Submit a request to the idle device; whether the event loop waited for its batch."""
                await bench.settle()
                fields = np.ones((size, 1, 4), np.float32)
                ticket = ticket_of(model, PredictRequest("double", None, fields, "id"))
                bench.scheduler.submit([ticket], at_once=True)
                np.testing.assert_array_equal((await ticket.outcome).fields, 2 * fields)
                return model.ends_here[-1]

            assert not await alone(1), "nobody knows yet how long it takes"
            assert await alone(1)
            assert not await alone(2), "another CUDA graph"
            assert await alone(2)
            assert await bench.ask(), "it starts here"
            assert not model.ends_here[-1], "others of its turn may have come"
            model.blocked = True
            ahead, batches = asyncio.create_task(bench.ask_now()), len(model.ends_here)
            await until(lambda: len(model.ends_here) > batches)
            behind = asyncio.create_task(alone(1))
            await asyncio.sleep(0.01)
            assert not behind.done(), "the event loop is not held"
            for _ in range(2):
                model.ends.put(None)
            assert await ahead
            assert not await behind
            model.blocked, model.device_seconds = False, 120.0
            await alone(1)
            assert not await alone(1), "it takes longer now"

    asyncio.run(main())
