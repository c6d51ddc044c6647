"""The scheduler on one core: short batches run on the event loop."""

from __future__ import annotations

import asyncio
import threading

import numpy as np
import pytest

from tests.service.pipeline.bench import (
    BAD,
    HUGE,
    NAN,
    fields,
    running,
)
from turbofno.service.pipeline import scheduler as scheduler_module
from turbofno.service.pipeline.scheduler import SHORT_SECONDS

pytestmark = pytest.mark.timeout(20)


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
