"""Between front end and engine: errors arrive unchanged, and models change on all engines."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.service.tiny import rollable_config
from turbofno.models.core.config import ModelConfig
from turbofno.service.engine.interface import ModelStatus, PredictRequest, PredictResult
from turbofno.service.errors import BlowUp, InferenceFailed, ServiceError, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.processes import engine_process
from turbofno.service.processes.engine_link import EngineLink
from turbofno.service.processes.engine_process import EngineServer
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.messages import Cancel, Message, Peer, Predict
from turbofno.service.processes.remote_engine import RemoteEngine
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

pytestmark = pytest.mark.timeout(20)

CONFIG = rollable_config()


class Engine:
    """Raises the given error."""

    ready, failure, supplied = True, "", False

    def when_free(self, _: object) -> None:
        """Nothing is held back."""

    def __init__(self) -> None:
        self.error: Exception = ValueError()

    def statuses(self) -> list[Any]:
        return []

    def submit(self, block: Any) -> list[None]:
        outcomes = [outcome for _, outcome in block]
        if not isinstance(self.error, ServiceError):
            raise self.error
        for outcome in outcomes:
            outcome.set_exception(self.error)
        return [None] * len(outcomes)


def kinds(kind: type[ServiceError] = ServiceError) -> list[type[ServiceError]]:
    return [kind, *(one for sub in kind.__subclasses__() for one in kinds(sub))]


def server_of(engine: Any) -> EngineServer:
    server = EngineServer(engine, QueueCapacity(Settings(), Metrics()), lambda: None)
    server._configs["digest"] = CONFIG
    return server


def link_to(server: EngineServer, memory: SlotMemory) -> EngineLink:
    return EngineLink(
        server.endpoint, b"front", memory,
        most_joined=4, digest_of=lambda _: "digest", on_state=lambda: None, on_queue=lambda: None,
    )  # fmt: skip


@asynccontextmanager
async def linked(
    engine: Any, size: int = 2**20
) -> AsyncIterator[tuple[EngineServer, EngineLink, SlotMemory]]:
    """An engine's server, and the link of a front end with so many bytes of memory."""
    server, memory = server_of(engine), SlotMemory(size)
    link = link_to(server, memory)
    try:
        yield server, link, memory
    finally:
        link.close("over")
        server.close()


def test_every_error_arrives_as_it_was_raised() -> None:
    async def main() -> None:
        engine = Engine()
        async with linked(engine) as (_, link, memory):

            async def raised() -> ServiceError:
                fields = np.zeros((1, 1, 8), np.float32)
                request = PredictRequest("m", None, fields, "id", config=CONFIG)
                try:
                    await link.predict(request)
                except ServiceError as error:
                    # Without the frames, which keep the slots.
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
            # Unexpected errors are not shown to clients.
            engine.error = ZeroDivisionError("a secret")
            error = await raised()
            assert type(error) is InferenceFailed
            assert "secret" not in str(error)
            del error
            assert memory.used_bytes == 0

    asyncio.run(main())


def test_a_configuration_is_known_however_often_other_models_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(engine_process, "_MAX_CONFIGS", 3)
    configs = {"kept": CONFIG, "changed": CONFIG}

    async def main() -> None:
        engine = Mock(ready=True, statuses=lambda: [ModelStatus(n, "1", "READY") for n in configs])
        engine.config = lambda name, _: configs[name]
        server = EngineServer(engine, QueueCapacity(Settings(), Metrics()), lambda: None)
        for number in range(5):
            configs["changed"] = CONFIG.model_copy(update={"description": f"number {number}"})
            server._publish()
            digests = {model.status.name: model.digest for model in server._state.models}
        for name, config in configs.items():
            assert server._resolve(ModelConfig, digests[name]) is config
        assert len(server._configs) <= 4
        server.close()

    asyncio.run(main())


def test_requests_to_a_closed_engine_are_refused() -> None:
    async def main() -> None:
        failures: list[Any] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, what: failures.append(what))
        async with linked(Engine()) as (server, link, _):
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
            # Chosen in the loop iteration in which it died.
            with pytest.raises(Unavailable, match="dead"):
                await asyncio.wait_for(link.ask("load", ("m",)), 5)

    asyncio.run(main())


def test_requests_and_answers_of_one_loop_iteration_are_sent_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    received: list[list[str]] = []
    receive = EngineLink._receive

    def note(self: EngineLink, sender: bytes, messages: list[Any]) -> None:
        received.append([type(one).__name__ for one in messages])
        receive(self, sender, messages)

    monkeypatch.setattr(EngineLink, "_receive", note)

    class Doubler(Engine):
        """Doubles fields and records the sizes of blocks."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks: list[list[PredictRequest]] = []

        def submit(self, block: Any) -> list[None]:
            pairs = list(block)
            self.blocks.append([request for request, _ in pairs])
            for request, outcome in pairs:
                request.output_buffer[:] = 2 * request.fields
                outcome.set_result(
                    PredictResult(
                        request.model, "1", request.output_buffer, 0.5, 0.25, (2,), "fake"
                    )
                )
            return [None] * len(pairs)

    async def main() -> None:
        engine = Doubler()
        async with linked(engine) as (server, link, _):

            async def one(value: int) -> None:
                fields = np.full((1, 1, 8), value, np.float32)
                request = PredictRequest(
                    "m", None, fields, f"id-{value}", config=CONFIG, priority=value + 1
                )
                result = await link.predict(request)
                assert (result.fields == 2 * value).all()
                assert (result.queue_seconds, result.batch_sizes) == (0.5, (2,))

            await asyncio.gather(*(one(value) for value in range(5)))
            (block,) = engine.blocks
            assert [request.request_id for request in block] == [
                f"id-{value}" for value in range(5)
            ]
            # The engine also publishes its state in between.
            (answers,) = (message for message in received if "Predicted" in message)
            assert answers.count("Predicted") == 5
            for request in block:
                # The same configuration object, not an equal one.
                assert request.config is server._configs["digest"]

    asyncio.run(main())


def test_predictions_of_a_turn_are_submitted_together_and_before_what_concerns_them() -> None:
    class Recorder(Engine):
        """Records the request ids of blocks, whose tickets are these ids, and of cancelled tickets."""

        def __init__(self) -> None:
            super().__init__()
            self.blocks: list[list[str]] = []
            self.cancelled: list[str] = []

        def submit(self, block: Any) -> list[Any]:
            ids = [request.request_id for request, _ in block]
            self.blocks.append(ids)
            return [SimpleNamespace(ended=False, id=one) for one in ids]

        def cancel(self, ticket: Any) -> None:
            self.cancelled.append(ticket.id)

    async def main() -> None:
        engine, memory = Recorder(), SlotMemory(2**20)
        server = server_of(engine)

        def receive(front_end: bytes, *messages: Message) -> None:
            server._receive(front_end, list(messages))

        def prediction(number: int) -> Predict:
            return Predict(number, PredictRequest("m", None, memory.array((1, 1, 8)), f"{number}"))

        for front_end in (b"a", b"b"):
            receive(front_end, memory.attachment())
            receive(front_end, prediction(1))
        receive(b"gone", prediction(2))
        assert not engine.blocks
        await asyncio.sleep(0)
        assert engine.blocks == [["1", "1"]]
        receive(b"a", prediction(3), Cancel(3))
        receive(b"b", prediction(4))
        server.remove(b"b")
        assert engine.blocks[1:] == [["3"], ["4"]]
        assert engine.cancelled == ["3", "1", "4"]
        await asyncio.sleep(0)
        assert len(engine.blocks) == 3
        server.close()

    asyncio.run(main())


def test_models_change_on_all_engines_or_on_none() -> None:
    async def main() -> None:
        server = server_of(Engine())
        remote = RemoteEngine(b"front", Settings(frontends=1, devices=("cpu", "cpu")), Metrics())
        remote.set_engines([Peer(b"engine-0.1", server.endpoint)])
        for change in (remote.load, remote.unload):
            with pytest.raises(Unavailable, match="being started") as caught:
                await change("tiny-flow")
            assert caught.value.retry_after
        await remote.close(within=0)
        server.close()

    asyncio.run(main())
