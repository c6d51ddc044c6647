"""Several batches on the device at once: start, order of answers, and no mix-up."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

import numpy as np
import pytest

from tests.draws import generator
from tests.service.pipeline.asking import ask, queued
from tests.service.pipeline.bench import ManualClock
from tests.service.waiting import until
from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.errors import DeviceLost, InferenceFailed, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline import scheduler as scheduler_module
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.scheduler import Scheduler
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(20)

LOST = -1.0
"""First value that makes the device fail in the wait."""


class FakeDevice:
    """A fake model whose device has a buffer for each batch in flight, used in rotation.

    One batch too many overwrites a pending output, and a released buffer is filled with NaN. While `blocked`, a wait
    returns for each item in `ends`.
    """

    name, version = "negate", "1"

    def __init__(self, in_flight: int) -> None:
        self.log: list[str] = []
        self.threads: set[str] = set()
        self.ends: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.blocked = False
        self._memories = np.empty((in_flight, 1000), np.float32)
        self._count = 0

    def start(self, parts: Sequence[Fields], _: Sequence[Fields] = ()) -> Callable[[], ModelOutput]:
        number, index = self._count, self._count % len(self._memories)
        self._count += 1
        self.log.append(f"start {number}")
        self.threads.add(threading.current_thread().name)
        batch = np.concatenate(parts)
        memory = self._memories[index, : batch.size].reshape(batch.shape)
        memory[:] = batch
        lost = bool((memory == LOST).any())

        def wait() -> ModelOutput:
            if self.blocked:
                self.ends.get(timeout=10)
            self.threads.add(threading.current_thread().name)
            self.log.append(f"end {number}")
            if lost:
                raise DeviceLost("the GPU failed", retry_after=1.0)
            np.negative(memory, out=memory)
            release = partial(memory.fill, np.nan)
            return ModelOutput(memory, Ran("fake", "tf32"), compute_seconds=0.5, release=release)

        return wait

    def free_memory(self) -> None:
        raise AssertionError("nothing ran out of memory")


@asynccontextmanager
async def running(in_flight: int, **settings: int) -> AsyncIterator[tuple[Scheduler, FakeDevice]]:
    chosen, metrics = Settings(**settings), Metrics()
    device = FakeDevice(in_flight)
    scheduler = Scheduler(chosen, metrics, QueueCapacity(chosen, metrics), max_in_flight=in_flight)
    scheduler.start()
    try:
        yield scheduler, device
    finally:
        device.blocked = False
        for _ in range(10):
            device.ends.put(None)
        await scheduler.close(within=5)


def request_of(
    values: Sequence[float], grid: int = 4, answer: Fields | None = None
) -> PredictRequest:
    fields = np.repeat(np.asarray(values, np.float32)[:, None, None], grid, axis=2)
    return PredictRequest("negate", None, fields, "id", output_buffer=answer)


def submit(
    scheduler: Scheduler,
    device: FakeDevice,
    values: Sequence[float],
    grid: int = 4,
    answer: Fields | None = None,
) -> asyncio.Task[PredictResult]:
    return asyncio.create_task(ask(scheduler, device, request_of(values, grid, answer)))


def test_a_full_batch_starts_before_the_one_ahead_has_ended() -> None:
    async def main() -> None:
        async with running(2, max_batch_size=4) as (scheduler, device):
            device.blocked = True
            tasks = [submit(scheduler, device, range(4 * i, 4 * i + 4)) for i in range(3)]
            await until(lambda: device.log == ["start 0", "start 1"])
            await asyncio.sleep(0.02)
            assert device.log == ["start 0", "start 1"], "no more than two in flight"
            device.ends.put(None)
            await until(lambda: device.log[2:] == ["end 0", "start 2"])
            device.ends.put(None)
            device.ends.put(None)
            for i, result in enumerate(await asyncio.gather(*tasks)):
                expected = -np.arange(4.0 * i, 4 * i + 4)
                np.testing.assert_array_equal(result.fields[:, 0, 0], expected)
                assert (result.precision, result.compute_seconds) == ("tf32", 0.5)
            assert device.log[-2:] == ["end 1", "end 2"]
            # A start like one before is on the event loop (test_short_starts.py).
            assert device.threads == {"MainThread", "turbofno-device", "turbofno-device-out"}

    asyncio.run(main())


def test_a_partial_batch_starts_behind_one_batch_but_waits_behind_two() -> None:
    async def main() -> None:
        async with running(3, max_batch_size=4) as (scheduler, device):
            device.blocked = True
            tasks = [submit(scheduler, device, [0.0])]
            await until(lambda: device.log == ["start 0"])
            tasks.append(submit(scheduler, device, [1.0]))
            await until(lambda: device.log == ["start 0", "start 1"])
            tasks += [submit(scheduler, device, [2.0]), submit(scheduler, device, [3.0])]
            await asyncio.sleep(0.02)
            assert device.log == ["start 0", "start 1"]
            tasks.append(submit(scheduler, device, [4.0, 5.0]))
            await until(lambda: device.log == ["start 0", "start 1", "start 2"])
            device.blocked = False
            device.ends.put(None)
            results = await asyncio.gather(*tasks)
            assert [result.batch_sizes for result in results] == [(1,), (1,), (4,), (4,), (4,)]

    asyncio.run(main())


def test_outputs_are_written_to_the_answer_of_the_request() -> None:
    async def main() -> None:
        async with running(2, max_batch_size=4) as (scheduler, device):
            rooms = [np.zeros((size, 1, 4), np.float32) for size in (1, 2, 11)]
            tasks = [submit(scheduler, device, range(1, 1 + len(r)), answer=r) for r in rooms]
            for room, result in zip(rooms, await asyncio.gather(*tasks), strict=True):
                assert result.fields is room
                np.testing.assert_array_equal(room[:, 0, 0], -np.arange(1.0, 1 + len(room)))
            wrong = submit(scheduler, device, [1.0], answer=np.zeros((1, 1, 5), np.float32))
            mate = submit(scheduler, device, [2.0])
            with pytest.raises(InferenceFailed, match=r"gave shape \(1, 1, 4\)"):
                await wrong
            assert (await mate).fields[0, 0, 0] == -2

    asyncio.run(main())


def test_nothing_is_written_to_an_answer_once_its_request_has_ended() -> None:
    async def main() -> None:
        async with running(2, max_batch_size=4) as (scheduler, device):
            device.blocked = True
            room = np.zeros((9, 1, 4), np.float32)
            ticket = queued(scheduler, device, request_of(range(1, 10), answer=room))
            await until(lambda: device.log == ["start 0", "start 1"])
            scheduler.cancel(ticket)
            device.ends.put(None)
            await until(lambda: "end 0" in device.log)
            await asyncio.sleep(0.02)
            assert not ticket.outcome.done(), "a batch of it is still on the device"
            device.ends.put(None)
            with pytest.raises(Unavailable, match="cancelled"):
                await ticket.outcome
            assert device.log.count("end 1") == 1
            assert (room[:8] != 0).all()
            assert not room[8:].any(), "what had not started was dropped"

    asyncio.run(main())


def test_without_overlap_one_thread_does_everything() -> None:
    async def main() -> None:
        async with running(1, max_batch_size=2) as (scheduler, device):
            await asyncio.gather(*(submit(scheduler, device, [1.0, 2.0]) for _ in range(3)))
            assert device.log == [f"{what} {i}" for i in range(3) for what in ("start", "end")]
            assert device.threads == {"turbofno-device"}

    asyncio.run(main())


def test_every_request_gets_its_own_numbers_under_concurrency() -> None:
    rng = generator()

    async def main() -> None:
        async with running(3, max_batch_size=8, max_fields_per_request=100) as (
            scheduler,
            device,
        ):
            values = [rng.uniform(1, 2, size) for size in rng.integers(1, 20, 200)]
            grids = rng.choice([4, 8], 200)
            tasks = [
                submit(scheduler, device, one, grid)
                for one, grid in zip(values, grids, strict=True)
            ]
            for one, grid, result in zip(values, grids, await asyncio.gather(*tasks), strict=True):
                expected = np.repeat(-one.astype(np.float32)[:, None, None], grid, axis=2)
                np.testing.assert_array_equal(result.fields, expected)

    asyncio.run(main())


def test_a_lost_device_fails_pending_and_new_requests() -> None:
    async def main() -> None:
        async with running(2, max_batch_size=1) as (scheduler, device):
            device.blocked = True
            first = submit(scheduler, device, [LOST])
            queued = [submit(scheduler, device, [1.0]) for _ in range(4)]
            await until(lambda: len(device.log) == 2)
            job = asyncio.create_task(scheduler.run_on_device(lambda: None))
            await asyncio.sleep(0)
            device.ends.put(None)
            device.ends.put(None)
            for task in (first, *queued[1:], job):
                with pytest.raises(DeviceLost, match="GPU failed"):
                    await task
            assert scheduler.failure == "the GPU failed"
            with pytest.raises(Unavailable, match="GPU failed"):
                await submit(scheduler, device, [1.0])
            assert len(device.log) <= 4, "what was queued did not run"
            # It was on the device, too, and may have ended before. An error that nobody takes is logged in a later test.
            await asyncio.gather(queued[0], return_exceptions=True)

    asyncio.run(main())


def test_a_job_waits_while_a_batch_waits_to_be_full_if_jobs_had_more_time() -> None:
    async def main() -> None:
        async with running(3, max_batch_size=4) as (scheduler, device):
            await scheduler.run_on_device(lambda: time.sleep(0.05))
            device.blocked = True
            tasks = [submit(scheduler, device, size * [1.0]) for size in (4, 4, 1)]
            await until(lambda: device.log == ["start 0", "start 1"])
            job = asyncio.create_task(scheduler.run_on_device(lambda: device.log.append("job")))
            await asyncio.sleep(0.02)
            device.ends.put(None)
            await until(lambda: "start 2" in device.log)
            assert "job" not in device.log
            device.blocked = False
            device.ends.put(None)
            device.ends.put(None)
            await asyncio.gather(*tasks, job)

    asyncio.run(main())


def test_the_seconds_of_a_job_are_without_its_wait_for_the_batch_before(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, batch_is_over = ManualClock(), threading.Event()
    monkeypatch.setattr(scheduler_module, "time", clock)

    async def main() -> None:
        async with running(2, max_batch_size=1) as (scheduler, device):
            device.blocked = True
            batch = submit(scheduler, device, [1.0])
            await until(lambda: device.log == ["start 0"])
            # As on a GPU, where a job's kernels run after those of the batch.
            job = asyncio.create_task(scheduler.time_on_device(lambda: batch_is_over.wait(10)))
            await until(lambda: scheduler.supplied)
            clock.now += 10.0
            device.ends.put(None)
            await batch
            clock.now += 0.5
            batch_is_over.set()
            assert await job == (True, 0.5)

    asyncio.run(main())
