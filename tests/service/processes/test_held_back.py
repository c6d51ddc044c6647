"""Predictions that an engine process holds back while its device has enough to do: none is late, lost or counted twice."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.service.processes.test_joined_engine import Service
from tests.service.tiny import save_tiny
from tests.service.waiting import until
from turbofno.service.engine import local
from turbofno.service.engine.interface import PredictResult
from turbofno.service.errors import Unavailable
from turbofno.service.processes import engine_process
from turbofno.service.runtime.device_pipeline import HostPipeline

pytestmark = pytest.mark.timeout(60)

FOR_EVER = 1000.0


class ThreeInFlight(HostPipeline):
    max_in_flight = 3


@asynccontextmanager
async def supplied(
    root: Path, monkeypatch: pytest.MonkeyPatch, *, seconds: float = FOR_EVER, **settings: Any
) -> AsyncIterator[tuple[Service, list[threading.Event]]]:
    """An engine whose device has two jobs, which end with their events, and that holds predictions back for so long."""
    monkeypatch.setattr(local, "open_pipeline", lambda _: ThreeInFlight())
    monkeypatch.setattr(engine_process, "_GATHER_SECONDS", seconds)
    save_tiny(root, "tiny-1d")
    service = Service(root, **settings)
    await service.start()
    leave = [threading.Event(), threading.Event()]
    scheduler = service.engine._scheduler
    jobs = [asyncio.create_task(scheduler.run_on_device(partial_wait(one))) for one in leave]
    await until(lambda: scheduler.supplied)
    yield service, leave
    for one in leave:
        one.set()
    await asyncio.gather(*jobs)
    await until(lambda: service.idle)
    # It would wait for users that were never released.
    await asyncio.wait_for(service.engine.unload("tiny-1d"), 10)
    service.link.close("over")
    service.server.close()
    await service.engine.close(within=0)


def partial_wait(event: threading.Event) -> Any:
    return lambda: event.wait(30)


def held(service: Service) -> list[int]:
    """The number of requests of each message that is held back."""
    return [len(engine_process._numbers(message)) for _, message in service.server._arrived]


async def until_held(service: Service, requests: int) -> None:
    await until(lambda: sum(held(service)) == requests)
    assert service.capacity.total == 0


def test_they_are_submitted_together_when_a_batch_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with supplied(tmp_path, monkeypatch) as (service, leave):
            asked = [service.ask()]
            await until_held(service, 1)
            asked += [service.ask()]
            await until_held(service, 2)
            leave[0].set()
            await until(lambda: not held(service))
            leave[1].set()
            found = await asyncio.gather(*asked)
            assert [one.batch_sizes for one in found] == [(2,), (2,)]

    asyncio.run(main())


def test_they_are_submitted_after_a_while(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with supplied(tmp_path, monkeypatch, seconds=0.01) as (service, _):
            asked = service.ask()
            await until(lambda: service.capacity.total == 1)
            assert service.engine._scheduler.supplied
            asked.cancel()
            await asyncio.gather(asked, return_exceptions=True)

    asyncio.run(main())


@pytest.mark.parametrize("quota", [0, 2, 30])
@pytest.mark.parametrize("who", ["clients", "front end"])
def test_those_who_leave_leave_nothing_behind(
    who: str, quota: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with supplied(tmp_path, monkeypatch) as (service, _):
            asked = [service.ask(client="a", client_max_fields=quota) for _ in range(4)]
            await until_held(service, 4)
            if who == "clients":
                for one in asked:
                    one.cancel()
            else:
                service.server.remove(b"front")
            await until(lambda: service.idle and not held(service))
            service.link.close("the engine does not answer any more")
            await asyncio.gather(*asked, return_exceptions=True)

    asyncio.run(main())


def test_one_that_does_not_fit_leaves_the_others_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with supplied(tmp_path, monkeypatch, max_batch_size=64) as (service, leave):
            asked = [service.ask() for _ in range(8)]
            await until_held(service, 8)
            joined = held(service)
            assert max(joined) > 1
            asked.append(service.ask(client="a", client_max_fields=5))
            await until_held(service, 9)
            service.server._submit_arrived()
            waiting = service.engine._scheduler._live
            assert sorted(ticket.requests for ticket in waiting) == sorted([*joined, 1])
            for one in leave:
                one.set()
            found = await asyncio.gather(*asked)
            assert all(isinstance(one, PredictResult) for one in found)

    asyncio.run(main())


def test_they_are_refused_when_the_engine_closes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with supplied(tmp_path, monkeypatch) as (service, leave):
            asked = [service.ask() for _ in range(2)]
            await until_held(service, 2)
            closing = asyncio.create_task(service.engine.close(within=5))
            await until(lambda: service.engine._scheduler._closed)
            for one in leave:
                one.set()
            found = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(one) for one in found] == [Unavailable] * 2
            await closing

    asyncio.run(main())
