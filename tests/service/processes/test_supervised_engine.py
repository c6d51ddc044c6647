"""Engine processes under a front end that supervises them itself, on a thread with uvloop, as in a replica of Ray Serve."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
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
from turbofno.service.processes.supervised_engine import SupervisedEngine
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Coroutine


def on_a_thread(main: Coroutine[Any, Any, None]) -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(uvloop.run, main).result()


def engine_of(repository: Path) -> SupervisedEngine:
    settings = Settings(
        frontends=1, devices=("cpu",), torch_threads=1, model_repository=repository, port=0
    )
    return SupervisedEngine(settings, Metrics())


def children() -> set[int]:
    """Process ids of the engines of this process, those included that are not reaped."""
    tasks = Path("/proc/self/task").glob("*/children")
    return {int(pid) for task in tasks for pid in task.read_text().split()}


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
        (first,) = children() - before
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


def test_an_engine_that_dies_at_each_start_is_a_failure(tmp_path: Path) -> None:
    save_tiny(tmp_path)
    before = children()

    async def main() -> None:
        engine = engine_of(tmp_path)
        engine.start()
        killed: set[int] = set()

        def failed() -> bool:
            for pid in children() - before - killed:
                if not engine.failure:
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            return bool(engine.failure)

        await until(failed, 30)
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
