"""Joined requests in a real engine: limits, cancelled clients and dead front ends leave nothing behind."""

from __future__ import annotations

import asyncio
import gc
import shutil
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.service.processes.test_engine_link import link_to
from tests.service.tiny import save_tiny
from tests.service.waiting import until
from turbofno.service.engine.interface import PredictRequest, PredictResult
from turbofno.service.engine.local import LocalEngine
from turbofno.service.errors import PayloadTooLarge, QueueFull, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.processes.engine_process import EngineServer
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.settings import Settings

pytestmark = pytest.mark.timeout(60)


class Service:
    """A front end's link to an engine with a model."""

    def __init__(self, root: Path, **settings: Any) -> None:
        chosen, metrics = Settings(model_repository=root, device="cpu", **settings), Metrics()
        self.capacity = QueueCapacity(chosen, metrics)
        self.engine = LocalEngine(chosen, metrics, self.capacity)
        self.memory = SlotMemory(2**24)

    async def start(self) -> None:
        self.engine.start()
        await until(lambda: self.engine.ready)
        self.server = EngineServer(self.engine, self.capacity, lambda: None)
        self.config = self.engine.config("tiny-1d")
        self.link = link_to(self.server, self.memory)
        await until(lambda: bool(self.server._front_ends))
        self.server._configs["digest"] = self.config

    def ask(self, size: int = 1, version: str = "1", **options: Any) -> asyncio.Task[PredictResult]:
        fields = np.ones((size, 1, 32), np.float32)
        request = PredictRequest("tiny-1d", version, fields, "id", config=self.config, **options)
        return asyncio.create_task(self.link.predict(request))

    @asynccontextmanager
    async def blocked(self) -> AsyncIterator[None]:
        """While the device is busy."""
        entered, leave = threading.Event(), threading.Event()

        def work() -> None:
            entered.set()
            leave.wait(30)

        job = asyncio.create_task(self.engine._scheduler.run_on_device(work))
        await asyncio.to_thread(entered.wait, 10)
        try:
            yield
        finally:
            leave.set()
            await job

    @property
    def idle(self) -> bool:
        """True if nothing is counted, kept or in use."""
        return (
            self.capacity.total == 0
            and not any(self.capacity._quota_used.values())
            and not any(self.engine._repository._users.values())
            and not any(one.answers for one in self.server._front_ends.values())
        )


@asynccontextmanager
async def service(root: Path, **settings: Any) -> AsyncIterator[Service]:
    save_tiny(root, "tiny-1d")
    running = Service(root, **settings)
    await running.start()
    yield running
    assert running.idle
    # It would wait for users that were never released.
    await asyncio.wait_for(running.engine.unload("tiny-1d"), 10)
    running.link.close("over")
    running.server.close()
    await running.engine.close(within=0)


@pytest.mark.parametrize("limit", [0, 2], ids=["together", "apart"])
def test_memory_of_a_front_end_is_unmapped_without_a_garbage_collection(
    limit: int, tmp_path: Path
) -> None:
    async def main() -> None:
        gc.collect()
        # Of other tests.
        before = mapped()
        async with service(tmp_path) as running:
            gc.collect()
            gc.disable()
            try:
                asked = [running.ask(client="a", client_max_fields=limit) for _ in range(4)]
                found = await asyncio.gather(*asked, return_exceptions=True)
                assert sum(isinstance(one, PredictResult) for one in found) == (limit or 4)
                del asked, found
                await asyncio.sleep(0.1)
                # The front end's own, and the engine's.
                assert mapped() == before + 2
                running.server.remove(b"front")
                await until(lambda: mapped() == before + 1)
            finally:
                gc.enable()

    asyncio.run(main())


def mapped() -> int:
    """Number of front ends' memories that this process has mapped."""
    return Path("/proc/self/maps").read_text().count("memfd:turbofno")


def test_refused_ones_leave_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with service(tmp_path) as running:
            for _ in range(5):
                asked = [running.ask(2, client="a", client_max_fields=1) for _ in range(4)]
                found = await asyncio.gather(*asked, return_exceptions=True)
                assert [type(one) for one in found] == [PayloadTooLarge] * 4

    asyncio.run(main())


def test_those_beyond_a_quota_are_refused_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with service(tmp_path) as running:
            asked = [running.ask(client="a", client_max_fields=3) for _ in range(4)]
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert sorted(type(one).__name__ for one in found) == [
                "PredictResult", "PredictResult", "PredictResult", QueueFull.__name__,
            ]  # fmt: skip

    asyncio.run(main())


def test_cancelled_ones_with_a_quota_are_dropped_while_they_wait(tmp_path: Path) -> None:
    async def main() -> None:
        async with service(tmp_path) as running, running.blocked():
            asked = [running.ask(client="a", client_max_fields=30) for _ in range(8)]
            await until(lambda: running.capacity._quota_used["caller", "a"] == 8)
            asked[0].cancel()
            await until(lambda: running.capacity._quota_used["caller", "a"] == 7)
            for one in asked:
                one.cancel()
            await until(lambda: running.capacity._quota_used["caller", "a"] == 0)
            await asyncio.gather(*asked, return_exceptions=True)
            await until(lambda: running.idle)

    asyncio.run(main())


@pytest.mark.parametrize("limit", [0, 30])
def test_those_of_a_dead_front_end_are_dropped(limit: int, tmp_path: Path) -> None:
    async def main() -> None:
        async with service(tmp_path) as running, running.blocked():
            asked = [running.ask(client="a", client_max_fields=limit) for _ in range(8)]
            await until(lambda: running.capacity.total == 8)
            running.server.remove(b"front")
            await until(lambda: running.idle)
            running.link.close("the engine does not answer any more")
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(main())


def test_those_of_a_version_that_was_rolled_back_meanwhile_may_be_retried(tmp_path: Path) -> None:
    async def main() -> None:
        save_tiny(tmp_path, "tiny-1d", version="2")
        async with service(tmp_path) as running:
            shutil.rmtree(tmp_path / "tiny-1d" / "2")
            await running.engine.load("tiny-1d")
            with pytest.raises(Unavailable, match=r"READY: version 1$") as caught:
                await running.ask(version="2")
            assert caught.value.retry_after == 1.0
            assert (await running.ask()).version == "1"

    asyncio.run(main())


def test_each_runs_in_one_batch_of_its_model(tmp_path: Path) -> None:
    async def main() -> None:
        limits = {"tiny-1d": {"batch": 2}}
        async with service(tmp_path, model_limits=limits) as running:
            results = await asyncio.gather(*[running.ask() for _ in range(8)])
            for result in results:
                assert len(result.batch_sizes) == 1
                assert result.batch_sizes[0] <= 2

    asyncio.run(main())
