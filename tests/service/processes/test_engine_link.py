"""Between a front end and an engine: what one raises the other raises, and what one is asked all are asked."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from service.errors import BlowUp, InferenceFailed, ServiceError, Unavailable
from service.metrics import Metrics
from service.pipeline.queue_slots import QueueSlots
from service.processes.engine_link import EngineLink
from service.processes.engine_process import EngineServer
from service.processes.memory import SlotMemory
from service.processes.messages import Peer, Predict
from service.processes.remote_engine import EngineQueue, RemoteEngine
from service.settings import Settings
from tests.service.tiny import rollable_config

pytestmark = pytest.mark.timeout(20)


class Engine:
    """Raises what it is given."""

    ready, failure = True, ""

    def __init__(self) -> None:
        self.error: Exception = ValueError()

    def statuses(self) -> list[Any]:
        return []

    async def predict(self, request: Any) -> Any:
        del request
        raise self.error


def kinds(kind: type[ServiceError] = ServiceError) -> list[type[ServiceError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in kinds(sub))]


def server_of(engine: Any) -> EngineServer:
    server = EngineServer(engine, QueueSlots(Settings(), Metrics()), lambda: None)
    server._configs["digest"] = rollable_config()
    return server


def test_every_error_arrives_as_it_was_raised() -> None:
    async def main() -> None:
        engine, memory = Engine(), SlotMemory(2**20)
        server = server_of(engine)
        link = EngineLink(
            server.endpoint, b"front", memory.attachment(),
            on_state=lambda: None, on_queue=lambda: None,
        )  # fmt: skip

        async def raised() -> ServiceError:
            fields, answer = memory.array((1, 1, 8)), memory.array((1, 1, 8))
            spans = memory.span(fields), memory.span(answer)
            values = {"model": "m", "version": None, "request_id": "id", "vjp": None}
            try:
                await link.predict(fields, answer, lambda n: Predict(n, *spans, "digest", values))
            except ServiceError as error:
                # Without the frames that hold the slots.
                return error.with_traceback(None)
            raise AssertionError("nothing was raised")

        for kind in kinds():
            engine.error = kind("what was wrong", retry_after=2.5)
            error = await raised()
            assert type(error) is kind
            assert (str(error), error.retry_after) == ("what was wrong", 2.5)
        engine.error = BlowUp("it blew up", step=7, reason="energy")
        error = await raised()
        assert isinstance(error, BlowUp)
        assert (error.step, error.reason) == (7, "energy")
        # What nobody foresaw is not told to clients.
        engine.error = ZeroDivisionError("a secret")
        error = await raised()
        assert type(error) is InferenceFailed
        assert "secret" not in str(error)
        del error
        assert memory.used_bytes == 0
        link.close("over")
        server.close()

    asyncio.run(main())


def test_what_an_engine_that_closed_its_end_would_get_is_dropped_and_refused() -> None:
    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        server, memory = server_of(Engine()), SlotMemory(2**20)
        link = EngineLink(
            server.endpoint, b"front", memory.attachment(),
            on_state=lambda: None, on_queue=lambda: None,
        )  # fmt: skip
        with pytest.raises(InferenceFailed):
            await link.ask("nothing", ())
        server.close()
        await asyncio.sleep(0.2)
        asked = [asyncio.create_task(link.ask("load", ("m",))) for _ in range(3)]
        await asyncio.sleep(0.05)
        assert not failures
        assert not any(one.done() for one in asked)
        link.close("it is dead")
        for one in asked:
            with pytest.raises(Unavailable, match="dead"):
                await one

    asyncio.run(main())


def test_models_change_on_all_engines_or_are_not_changed() -> None:
    async def main() -> None:
        server = server_of(Engine())
        settings, metrics = Settings(), Metrics()
        remote = RemoteEngine(
            b"front", SlotMemory(2**20), EngineQueue(settings, metrics), engines=2
        )
        remote.meet([Peer(b"engine-0.1", server.endpoint)])
        for change in (remote.load, remote.unload):
            with pytest.raises(Unavailable, match="being started") as caught:
                await change("tiny-flow")
            assert caught.value.retry_after
        await remote.close(within=0)
        server.close()

    asyncio.run(main())
