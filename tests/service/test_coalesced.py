"""One run of work for all who ask at the same time, and none that began before its caller asked."""

from __future__ import annotations

import asyncio
import gc
from typing import TYPE_CHECKING

import pytest

from tests.service.http.asgi import serving
from tests.service.tiny import save_tiny
from turbofno.service.coalesced import Coalesced
from turbofno.service.metrics import Metrics

if TYPE_CHECKING:
    from pathlib import Path


def test_callers_share_the_next_run_and_never_one_that_has_begun() -> None:
    async def main() -> None:
        runs = 0
        begun, end = asyncio.Event(), asyncio.Event()

        async def work() -> int:
            nonlocal runs
            runs += 1
            number = runs
            begun.set()
            await end.wait()
            return number

        coalesced = Coalesced(work)
        early = [asyncio.ensure_future(coalesced()) for _ in range(3)]
        await begun.wait()
        late = [asyncio.ensure_future(coalesced()) for _ in range(3)]
        await asyncio.sleep(0.01)
        assert runs == 1, "one at a time"
        early[0].cancel()
        late[0].cancel()
        end.set()
        assert await asyncio.gather(*early[1:], *late[1:]) == [1, 1, 2, 2]
        assert await coalesced() == 3

    asyncio.run(main())


def test_an_error_reaches_all_callers_and_the_next_run_is_a_new_one() -> None:
    async def main() -> None:
        answers = iter([ValueError("no"), "yes"])

        async def work() -> str:
            answer = next(answers)
            if isinstance(answer, Exception):
                raise answer
            return answer

        coalesced = Coalesced(work)
        found = await asyncio.gather(coalesced(), coalesced(), return_exceptions=True)
        assert [type(one) for one in found] == [ValueError, ValueError]
        assert await coalesced() == "yes"

    asyncio.run(main())


def test_an_error_of_a_run_whose_callers_left_is_not_logged() -> None:
    async def main() -> None:
        logged: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, about: logged.append(about))
        begun, end = asyncio.Event(), asyncio.Event()

        async def work() -> None:
            begun.set()
            await end.wait()
            raise ValueError("no")

        caller = asyncio.ensure_future(Coalesced(work)())
        await begun.wait()
        caller.cancel()
        await asyncio.wait([caller])
        end.set()
        await asyncio.sleep(0.01)
        gc.collect()
        assert not logged

    asyncio.run(main())


def test_metrics_are_written_once_for_all_who_scrape_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    written = 0
    text = Metrics.text

    async def counted(self: Metrics) -> bytes:
        nonlocal written
        written += 1
        return await text(self)

    monkeypatch.setattr(Metrics, "text", counted)

    async def main() -> None:
        async with serving(tmp_path) as (client, _):
            answers = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
            assert len({one.text for one in answers}) == 1
            assert answers[0].status_code == 200

    asyncio.run(main())
    assert written <= 2
