"""Engine processes under a front end that supervises them itself, on a thread with uvloop, as in a replica of Ray Serve."""

from __future__ import annotations

import asyncio
import os
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import uvloop

from tests.draws import generator
from tests.service.tiny import save_tiny
from tests.service.waiting import until
from turbofno.service.engine.interface import PredictRequest
from turbofno.service.errors import Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.processes.fork_server import ForkServer
from turbofno.service.processes.supervised_engine import SupervisedEngine
from turbofno.service.processes.supervisor import Supervisor
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from turbofno.service.processes.child_process import ChildProcess
    from turbofno.service.processes.launch import Launch
    from turbofno.service.processes.messages import Peer


def on_a_thread(main: Coroutine[Any, Any, None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(uvloop.run, main).result()


def settings_of(repository: Path) -> Settings:
    return Settings(
        frontends=1, devices=("cpu",), torch_threads=1, model_repository=repository, port=0
    )


def engine_of(repository: Path) -> SupervisedEngine:
    return SupervisedEngine(settings_of(repository), Metrics())


def children(name: str = "") -> set[int]:
    """Process ids of the children of this process whose name begins so, those included that are not reaped."""
    tasks = Path("/proc/self/task").glob("*/children")
    found = set()
    for pid in (int(pid) for task in tasks for pid in task.read_text().split()):
        # Unless it is reaped meanwhile.
        with suppress(FileNotFoundError, ProcessLookupError):
            if Path(f"/proc/{pid}/comm").read_text().startswith(name):
                found.add(pid)
    return found


def test_an_engine_that_dies_is_started_again_until_the_end(tmp_path: Path) -> None:
    module = save_tiny(tmp_path)
    field = generator().standard_normal((2, 1, 16), dtype=np.float32)
    with torch.no_grad():
        expected = module(torch.from_numpy(field)).numpy()
    before = children()

    async def main() -> None:
        engine = engine_of(tmp_path)

        async def answer() -> Any:
            return (
                await engine.predict(PredictRequest("tiny-1d", None, field.copy(), "one"))
            ).fields

        engine.start()
        with pytest.raises(Unavailable, match="being started"):
            await answer()
        await until(lambda: engine.ready, 60)
        (first,) = children("engine-")
        np.testing.assert_allclose(await answer(), expected, rtol=1e-4, atol=1e-5)
        metrics = (await engine.scrape()).decode()
        for process in ("frontend-0", "engine-0"):
            assert f'process_start_time_seconds{{process="{process}"}}' in metrics
        os.kill(first, signal.SIGKILL)
        await until(lambda: not engine.ready)
        assert b'process="frontend-0"' in await engine.scrape()
        with pytest.raises(Unavailable) as caught:
            await answer()
        assert caught.value.retry_after
        await until(lambda: engine.ready, 60)
        assert not engine.failure
        np.testing.assert_allclose(await answer(), expected, rtol=1e-4, atol=1e-5)
        for _ in range(2):
            await engine.close(within=0)
        assert not engine.ready
        assert children() == before

    on_a_thread(main())


def test_an_engine_that_dies_at_each_start_is_a_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    before = children()
    start, killed = ForkServer.start, []

    async def start_and_kill(self: ForkServer, launch: Launch) -> ChildProcess:
        process = await start(self, launch)
        process.kill()
        killed.append(process)
        return process

    monkeypatch.setattr(ForkServer, "start", start_and_kill)

    async def main() -> None:
        engine = engine_of(tmp_path)
        engine.start()
        await until(lambda: bool(engine.failure), 30)
        assert engine.failure == "engine-0 failed to start 3 times in a row"
        assert len(killed) == 3
        await engine.close(within=0)
        assert children() == before

    on_a_thread(main())


def test_a_wrong_repository_is_a_failure(tmp_path: Path) -> None:
    async def main() -> None:
        engine = engine_of(tmp_path / "nowhere")
        engine.start()
        await until(lambda: bool(engine.failure), 60)
        assert engine.failure == "engine-0 cannot start: its log says why"
        await engine.close(within=0)

    on_a_thread(main())


def test_a_supervisor_that_is_cancelled_kills_what_it_started(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    before = children()

    async def main() -> None:
        settings = settings_of(tmp_path)
        up: list[Peer] = []
        supervisor = Supervisor(settings, engines=[settings], frontends=0, on_engines=up.extend)
        running = asyncio.create_task(supervisor.run())
        await until(lambda: bool(up), 60)
        assert children("engine-")
        running.cancel()
        await until(lambda: children() == before, 10)

    on_a_thread(main())
