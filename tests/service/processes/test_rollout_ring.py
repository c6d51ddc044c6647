"""The ring between an engine and a front end: order, back-pressure, and safe memory reuse."""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.service.tiny import rollable_config
from tests.service.waiting import until
from turbofno.service.engine.interface import Frame, PredictRequest, RolloutRequest
from turbofno.service.errors import BlowUp
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.processes import rollout_ring
from turbofno.service.processes.engine_link import EngineLink
from turbofno.service.processes.engine_process import EngineServer
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.rollout_ring import Writer, copy_completely, ring_size
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

pytestmark = pytest.mark.timeout(20)


def test_a_ring_has_few_entries_and_at_least_one() -> None:
    assert ring_size(2**30, 100) == 1
    assert ring_size(64, 3) == 3
    assert ring_size(64, 10**9) == 256
    assert ring_size(2**18, 10**9) == 4


def test_frames_arrive_in_order_and_are_not_overwritten_before_they_are_read() -> None:
    async def main() -> None:
        ring = np.zeros((3, 2, 5), np.float32)
        writer = Writer(ring)
        written: list[int] = []
        sent: asyncio.Queue[Frame] = asyncio.Queue()

        async def write() -> None:
            for step in range(1, 41):
                fields = np.full((2, 5), step, np.float32) if step % 4 else None
                sent.put_nowait(await writer.put(Frame(step, fields)))
                written.append(step)

        writing = asyncio.create_task(write())
        for _ in range(10):
            await asyncio.sleep(0)
        assert written == [1, 2, 3]
        for step in range(1, 41):
            frame = await sent.get()
            assert frame.step == step
            if step % 4:
                assert frame.fields is not None
                assert (frame.fields == step).all()
            else:
                assert frame.fields is None
            writer.ack()
            await asyncio.sleep(0)
        await writing

    asyncio.run(main())


def test_a_cancelled_caller_waits_for_the_end_of_its_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    over = []

    def slow_copy(to: Any, source: Any) -> None:
        time.sleep(0.2)
        over.append(True)

    async def main() -> None:
        array = np.zeros(2**19, np.float32)
        monkeypatch.setattr(rollout_ring.np, "copyto", slow_copy)
        copying = asyncio.create_task(copy_completely(array, array))
        await asyncio.sleep(0.05)
        copying.cancel()
        with pytest.raises(asyncio.CancelledError):
            await copying
        assert over

    asyncio.run(main())


class Engine:
    """A fake LocalEngine with endless rollouts that blow up at step 50."""

    ready, failure, supplied = True, "", False

    def when_free(self, _: object) -> None:
        """Nothing is held back."""

    def __init__(self) -> None:
        self.running = 0

    def statuses(self) -> list[Any]:
        return []

    async def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        self.running += 1
        try:
            step = 0
            while True:
                step += 1
                if step == 50:
                    raise BlowUp("it blew up", step=50, reason="energy")
                yield Frame(step, request.initial.fields + np.float32(step))
                await asyncio.sleep(0)
        finally:
            self.running -= 1


def test_over_real_messages_a_rollout_ends_once_and_frees_its_memory() -> None:
    async def main() -> None:
        settings, engine = Settings(), Engine()
        server = EngineServer(engine, QueueCapacity(settings, Metrics()), lambda: None)  # type: ignore[arg-type]
        server._configs["digest"] = rollable_config()
        memory = SlotMemory(2**20)
        link = EngineLink(
            server.endpoint, b"front", memory,
            most_joined=4, digest_of=lambda _: "digest", on_state=lambda: None, on_queue=lambda: None,
        )  # fmt: skip

        def rollout() -> AsyncGenerator[Frame]:
            fields, ring = memory.array((2, 1, 8)), memory.array((3, 2, 1, 8))
            fields[:] = 0.5
            initial = PredictRequest("m", None, fields, "id", config=rollable_config())
            return link.rollout(RolloutRequest(initial, last=99), ring)

        given = []
        with pytest.raises(BlowUp) as caught:  # noqa: PT012 - the frames before count
            async for frame in rollout():
                assert frame.fields is not None
                given.append((frame.step, float(frame.fields.min())))
        assert given == [(step, step + 0.5) for step in range(1, 50)]
        assert (caught.value.step, caught.value.reason, str(caught.value)) == (
            50, "energy", "it blew up",
        )  # fmt: skip
        # Left at once: start and cancel reach the engine together.
        leaving = asyncio.create_task(anext(rollout()))  # type: ignore[arg-type]
        await asyncio.sleep(0)
        leaving.cancel()
        # Left in the middle.
        async with aclosing(rollout()) as frames:
            await anext(frames)
        del caught, frames, leaving
        (front_end,) = server._front_ends.values()
        await until(lambda: not (link._pending or front_end.rollouts or engine.running))
        assert (memory.used_bytes, link.fields_in_flight, link._frames) == (0, 0, {})
        link.close("over")
        server.close()

    asyncio.run(main())
