"""An engine that dies: at each instant, the memory of its requests is released at once, without a garbage collection."""

from __future__ import annotations

import asyncio
import errno
import gc
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from msgspec.structs import replace

from tests.service.http.live import connected, served
from tests.service.processes.running import as_npy
from tests.service.tiny import rollable_config
from tests.service.waiting import until
from turbofno.service.app import create_app
from turbofno.service.engine.interface import Frame, ModelStatus, PredictRequest, PredictResult
from turbofno.service.errors import QueueFull
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.processes import remote_engine
from turbofno.service.processes.channel import Channel
from turbofno.service.processes.engine_process import EngineServer
from turbofno.service.processes.messages import Peer
from turbofno.service.processes.remote_engine import RemoteEngine
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from turbofno.service.engine.interface import RolloutRequest

pytestmark = pytest.mark.timeout(30)

CONFIG = rollable_config()
NPY = as_npy(np.zeros((3, 1, 16), np.float32))
ONE_PIECE, TWO_PIECES = pytest.param(False, id="one-piece"), pytest.param(True, id="two-pieces")


class Engine:
    """Holds requests until the test answers them."""

    ready, failure, supplied = True, "", False

    def when_free(self, _: object) -> None:
        """Nothing is held back."""

    def __init__(self) -> None:
        self.block: list[tuple[PredictRequest, Any]] = []
        self.cancelled = self.ended = False

    def statuses(self) -> list[ModelStatus]:
        return [ModelStatus(CONFIG.name, CONFIG.version, "READY")]

    def config(self, *_: str) -> Any:
        return CONFIG

    def submit(self, block: Any) -> list[Engine]:
        self.block = list(block)
        return [self] * len(self.block)

    def cancel(self, _: Engine) -> None:
        self.cancelled = True

    def answer(self, outcome: Any) -> None:
        outcome.set_result(PredictResult("tiny-flow", "1", None, 0.0, 0.0, (3,), "fake"))  # type: ignore[arg-type]

    async def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        yield Frame(1, request.initial.fields)
        await asyncio.Event().wait()


class FrontEnd:
    """A front end and the engine that it loses."""

    def __init__(self) -> None:
        settings, metrics = Settings(port=0), Metrics()
        self.engine = Engine()
        self.server = EngineServer(self.engine, QueueCapacity(settings, metrics), lambda: None)  # type: ignore[arg-type]
        self.remote = RemoteEngine(b"front", settings, metrics)
        self.memory = self.remote.memory
        self.app = create_app(
            settings, engine=self.remote, metrics=metrics, slots=self.remote.queue
        )

    def lose(self) -> None:
        self.remote.set_engines([])


@asynccontextmanager
async def front_end() -> AsyncIterator[tuple[FrontEnd, int]]:
    front = FrontEnd()
    publishing = asyncio.create_task(front.server.run())
    front.remote.set_engines([Peer(b"engine-0.1", front.server.endpoint)])
    async with served(front.app) as port:
        await until(lambda: front.remote.ready)
        yield front, port
    publishing.cancel()
    front.server.close()


def test_a_front_end_that_replaces_another_meets_the_engines_before_it_accepts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remote_engine, "_MEET_SECONDS", 60.0)

    async def main() -> None:
        front, alone, without_answer = FrontEnd(), FrontEnd(), FrontEnd()
        meeting = asyncio.create_task(front.remote.meet())
        await asyncio.sleep(0.01)
        assert not meeting.done(), "nobody told which engines live"
        front.remote.set_engines([Peer(b"engine-0.1", front.server.endpoint)])
        assert not meeting.done(), "no engine told its models"
        publishing = asyncio.create_task(front.server.run())
        await meeting
        assert front.remote.ready
        alone.lose()
        await alone.remote.meet()
        monkeypatch.setattr(remote_engine, "_MEET_SECONDS", 0.01)
        await without_answer.remote.meet()
        publishing.cancel()
        for one in (front, alone, without_answer):
            one.server.close()

    asyncio.run(main())


async def send(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    verb: str = "predict",
    *,
    pause: bool = False,
    accept: str = "*/*",
) -> None:
    """Send a request, with its body after its head if `pause`."""
    head = (
        f"POST /v1/models/tiny-flow:{verb} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
        f"Accept: {accept}\r\nContent-Length: {len(NPY)}\r\n"
    ).encode()
    if pause:
        writer.write(head + b"Expect: 100-continue\r\n\r\n")
        assert b" 100 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(NPY)
    else:
        writer.write(head + b"\r\n" + NPY)


async def status(reader: asyncio.StreamReader) -> int:
    """The status of the reply, once all of it has been read."""
    head = (await reader.readuntil(b"\r\n\r\n")).lower()
    await reader.readexactly(int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0]))
    return int(head.split()[1])


@pytest.fixture(autouse=True)
def no_collections() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.parametrize("pause", [ONE_PIECE, TWO_PIECES])
@pytest.mark.parametrize("instant", ["before it is chosen", "before the request is sent"])
def test_an_engine_lost_on_the_way_to_it(
    instant: str, pause: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with front_end() as (front, port), connected(port) as streams:
            predict = front.remote.predict

            async def lose_and_predict(request: PredictRequest) -> PredictResult:
                if instant == "before it is chosen":
                    front.lose()
                else:
                    asyncio.get_running_loop().call_soon(front.lose)
                return await predict(request)

            monkeypatch.setattr(front.remote, "predict", lose_and_predict)
            await send(*streams, pause=pause)
            assert await status(streams[0]) == 503
            assert not front.engine.block
            assert front.memory.used_bytes == 0

    asyncio.run(main())


def test_a_request_of_a_model_that_was_unloaded_meanwhile_may_be_retried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        async with front_end() as (front, port), connected(port) as (reader, writer):
            predict = front.remote.predict
            (link,) = front.remote._links.values()

            def unload_and_predict(request: PredictRequest) -> Any:
                link.digests.clear()
                gone = ModelStatus(CONFIG.name, CONFIG.version, "UNAVAILABLE", "unloaded")
                models = [replace(model, status=gone) for model in link.state.models]
                link.state = replace(link.state, models=models)
                front.remote._on_state()
                return predict(request)

            monkeypatch.setattr(front.remote, "predict", unload_and_predict)
            await send(reader, writer)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            assert head.startswith(b"http/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in head

    asyncio.run(main())


@pytest.mark.parametrize("pause", [ONE_PIECE, TWO_PIECES])
@pytest.mark.parametrize(
    ("answer", "expected"),
    [("nothing", 503), ("an error", 429), ("a result", 200), ("a result too late", 503)],
)
def test_an_engine_lost_with_a_request(answer: str, expected: int, pause: bool) -> None:
    async def main() -> None:
        async with front_end() as (front, port), connected(port) as streams:
            await send(*streams, pause=pause)
            await until(lambda: bool(front.engine.block))
            assert front.memory.used_bytes > 0
            ((_, outcome),) = front.engine.block
            front.engine.block.clear()
            if answer == "an error":
                outcome.set_exception(QueueFull("full"))
            elif answer != "nothing":
                front.engine.answer(outcome)
            if expected == 503:
                # The answer, if any, is on its way.
                front.lose()
            assert await status(streams[0]) == expected
            front.lose()
            assert front.memory.used_bytes == 0

    asyncio.run(main())


@pytest.mark.parametrize("pause", [ONE_PIECE, TWO_PIECES])
def test_an_engine_lost_after_the_client_left(pause: bool) -> None:
    async def main() -> None:
        async with front_end() as (front, port):
            async with connected(port) as streams:
                await send(*streams, pause=pause)
                await until(lambda: bool(front.engine.block))
            await until(lambda: front.engine.cancelled)
            # The engine may still read and write it.
            assert front.memory.used_bytes > 0
            front.lose()
            assert front.memory.used_bytes == 0

    asyncio.run(main())


def test_an_engine_lost_during_a_rollout() -> None:
    async def main() -> None:
        async with front_end() as (front, port), connected(port) as streams:
            await send(*streams, "rollout?steps=3", accept="text/event-stream")
            await streams[0].readuntil(b"event: frame")
            assert front.memory.used_bytes > 0
            front.lose()
            await streams[0].readuntil(b"\r\n0\r\n\r\n")
            assert front.memory.used_bytes == 0

    asyncio.run(main())


def test_an_engine_started_while_no_descriptor_is_left_is_connected_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connect = Channel.connect
    tries: list[str] = []

    def none_left(self: Channel, endpoint: str, identity: bytes) -> Channel:
        tries.append(endpoint)
        if len(tries) < 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return connect(self, endpoint, identity)

    monkeypatch.setattr(Channel, "connect", none_left)
    monkeypatch.setattr(remote_engine, "PAUSE_SECONDS", 0.0)

    async def main() -> None:
        # It waits until the engine is ready.
        async with front_end():
            assert len(tries) == 3

    asyncio.run(main())


def test_a_request_behind_the_end_of_the_drain_may_be_retried() -> None:
    async def main() -> None:
        async with front_end() as (front, port), connected(port) as streams:
            await front.remote.close(within=0)
            await send(*streams)
            head = await streams[0].readuntil(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 503 ")
            assert b"\r\nretry-after: 1\r\n" in head.lower()

    asyncio.run(main())
