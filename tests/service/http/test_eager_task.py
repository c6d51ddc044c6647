"""EagerTask: the frame that resumes the coroutine does not refer to the future that it awaited."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

from turbofno.service.http.eager_task import EagerTask

if TYPE_CHECKING:
    from types import FrameType


def test_an_error_and_the_frames_that_it_passed_are_no_reference_cycle() -> None:
    """From Python 3.12 on a frame that outlives its call keeps its caller's frame, which would make this a cycle."""

    async def main() -> None:
        callers: list[dict[str, Any]] = []
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def work(awaited: asyncio.Future[None]) -> None:
            try:
                await awaited
            except ValueError:
                frame: FrameType | None = sys._getframe(1)
                while frame is not None and frame.f_code is not main.__code__:
                    callers.append(dict(frame.f_locals))
                    frame = frame.f_back

        task = EagerTask(work(future), lambda _: None)
        future.set_exception(ValueError())
        await asyncio.sleep(0)
        assert task.ended
        names = {name for local in callers for name, value in local.items() if value is future}
        assert callers
        assert not names

    asyncio.run(main())
