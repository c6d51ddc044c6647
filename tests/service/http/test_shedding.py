"""Load shedding: replies, connections that stay open, the rate of refusals, reserved slots."""

from __future__ import annotations

import asyncio
import json
import logging
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest

from tests.clock import within
from tests.service.http.fake_engine import FakeEngine
from tests.service.http.live import served
from tests.service.http.raw import in_loop
from tests.service.tiny import tiny_config
from turbofno.service.app import create_app, drain
from turbofno.service.engine.interface import PredictRequest
from turbofno.service.errors import QueueFull
from turbofno.service.http.call import Call
from turbofno.service.http.edge import Edge
from turbofno.service.http.operations import begin, target_of
from turbofno.service.http.shedding import (
    BURST,
    LONGEST_PAUSE,
    SECONDS_EACH,
    TOGETHER_SECONDS,
    Shedding,
)
from turbofno.service.logs import JsonFormatter
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.admission import Admitted
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.ticket import Kind, Slice, Ticket
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

    from turbofno.service.context import AppContext

pytestmark = pytest.mark.timeout(30)

CAPACITY = 4
BODY = np.zeros((1, 1, 16), np.float32).tobytes()
INFER, OTHER = "/v2/models/tiny-1d/infer?shape=1,1,16", "/v2/models/other/infer?shape=1,1,16"
KEY = "a-key-of-this-test"
Reply = tuple[int, dict[str, str], bytes]


class Service:
    """A real server with a model whose queue is filled by hand, and one connection to it."""

    def __init__(self, context: AppContext, slots: QueueCapacity, port: int) -> None:
        self.context = context
        self.port = port
        self.clients: list[Client] = []
        self._slots = slots
        self._queued: list[Ticket] = []

    def fill(self, fields: int) -> None:
        runnable = Mock(version="1")
        runnable.name = "tiny-1d"
        array = np.zeros((fields, 1, 16), np.float32)
        request = PredictRequest(runnable.name, "1", array, "id")
        ticket = Ticket(Kind.of(runnable, request), request, 0.0, Mock(), fields)
        self._slots.reserve(ticket)
        self._queued.append(ticket)

    def empty(self) -> None:
        for ticket in self._queued:
            self._slots.release([Slice(ticket, 0, ticket.size)])
        self._queued.clear()

    def count(self, code: int) -> float:
        value = self.context.metrics.registry.get_sample_value(
            "turbofno_requests_total",
            {"model": "tiny-1d", "version": "1", "protocol": "oip", "code": str(code)},
        )
        return value or 0.0

    async def connect(self) -> Client:
        client = Client(*await asyncio.open_connection("127.0.0.1", self.port))
        self.clients.append(client)
        return client


class Client:
    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    def send(self, path: str = INFER, **options: Any) -> None:
        self.writer.write(self.request(path, **options))

    @staticmethod
    def request(path: str = INFER, *, chunked: bool = False, **headers: str) -> bytes:
        length = {"Transfer-Encoding": "chunked"} if chunked else {"Content-Length": str(len(BODY))}
        raw = {"Inference-Header-Content-Length": "0"} if path.startswith("/v2") else {}
        sent = {"Host": "localhost", **raw, **length}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
        body = b"%x\r\n%b\r\n0\r\n\r\n" % (len(BODY), BODY) if chunked else BODY
        return f"POST {path} HTTP/1.1\r\n{lines}\r\n".encode() + body

    async def reply(self) -> Reply:
        head = (await self.reader.readuntil(b"\r\n\r\n")).decode()
        status, *lines = head.strip().split("\r\n")
        headers = dict(line.split(": ", 1) for line in lines)
        body = await self.reader.readexactly(int(headers["content-length"]))
        return int(status.split()[1]), headers, body

    async def ask(self, path: str = INFER, **options: Any) -> Reply:
        self.send(path, **options)
        return await self.reply()


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[Service]:
    chosen = Settings(
        port=0, max_queued_fields_per_model=CAPACITY, max_fields_per_request=CAPACITY, **settings
    )
    metrics = Metrics()
    slots = QueueCapacity(chosen, metrics)
    engine = FakeEngine(tiny_config("tiny-1d"), tiny_config("other"))
    app = create_app(chosen, engine=engine, metrics=metrics, slots=slots)
    async with served(app) as port:
        service = Service(app.state.context, slots, port)
        try:
            yield service
        finally:
            for client in service.clients:
                client.writer.close()
                with suppress(ConnectionError):
                    await client.writer.wait_closed()


@pytest.mark.parametrize(
    "path",
    [
        INFER,
        "/v1/models/tiny-1d:predict",
        "/v1/models/tiny-1d:vjp?output=true",
        "/v2/models/tiny-1d/versions/1/infer",
    ],
)
@in_loop
async def test_a_shed_request_gets_the_applications_reply_and_metrics(path: str) -> None:
    async with serving() as service:
        service.fill(CAPACITY)
        one = {"X-Request-Id": "same", "Content-Type": "application/x-npz"}
        client = await service.connect()
        early = await client.ask(path, **one)
        through = await (await service.connect()).ask(path, chunked=True, **one)
        assert early[0] == through[0] == 429
        assert early[2] == through[2]
        for headers in (early[1], through[1]):
            del headers["date"]
        assert early[1] == through[1]
        assert int(early[1]["retry-after"]) >= 1


@in_loop
async def test_the_connection_stays_open_and_is_served_once_the_queue_has_space() -> None:
    async with serving() as service:
        client = await service.connect()
        service.fill(CAPACITY)
        assert (await client.ask())[0] == 429
        assert (await client.ask(OTHER))[0] == 200, "another model has capacity"
        service.empty()
        assert (await client.ask())[0] == 200
        assert (service.count(429), service.count(200)) == (1, 1)
        service.fill(CAPACITY)
        status, headers, _ = await client.ask(Connection="close")
        assert (status, headers["connection"]) == (429, "close")
        assert await client.reader.read() == b""


@in_loop
async def test_the_head_of_a_refused_request_is_not_parsed_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[int] = []
    feed = Edge._feed

    def noted(self: Edge, data: bytes) -> bool:
        parsed.append(len(data))
        return feed(self, data)

    monkeypatch.setattr(Edge, "_feed", noted)
    async with serving() as service:
        service.fill(CAPACITY)
        client = await service.connect()
        replies = [await client.ask() for _ in range(3)]
        service.empty()
        replies += [await client.ask() for _ in range(2)]
        assert [reply[0] for reply in replies] == [429, 429, 429, 200, 200]
        assert len({reply[1]["x-request-id"] for reply in replies}) == 5
        assert len(parsed) == 1
        assert (service.count(429), service.count(200)) == (3, 2)


@in_loop
async def test_the_rest_of_a_refused_body_is_skipped() -> None:
    async with serving() as service:
        service.fill(CAPACITY)
        client = await service.connect()
        head = f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 64\r\n\r\n"
        client.writer.write(head.encode() + b"P" * 10)
        assert (await client.reply())[0] == 429, "before the body has come"
        client.writer.write(b"P" * 30)
        await asyncio.sleep(0.05)
        client.writer.write(b"P" * 24)
        assert (await client.ask(OTHER))[0] == 200


@in_loop
async def test_a_request_pipelined_behind_a_refused_one_is_not_timed_out() -> None:
    async with serving(keep_alive_seconds=1) as service:
        service.fill(CAPACITY)
        engine = service.context.engine
        assert isinstance(engine, FakeEngine)
        engine.held = True
        client = await service.connect()
        client.writer.write(client.request() + client.request(OTHER))
        assert (await client.reply())[0] == 429
        await asyncio.sleep(1.3)
        engine.release.set()
        assert (await client.reply())[0] == 200


@in_loop
async def test_without_a_key_the_queue_state_is_not_revealed(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"somebody {KEY}\n")
    async with serving(api_keys_file=file) as service:
        service.fill(CAPACITY)
        client = await service.connect()
        assert (await client.ask())[0] == 401
        assert (await client.ask(Authorization="Bearer another-key-of-no-one"))[0] == 401
        assert (await client.ask(Authorization=f"Bearer {KEY}"))[0] == 429


@in_loop
async def test_only_a_client_that_ignores_refusals_is_read_more_slowly() -> None:
    more = 50
    async with serving() as service:
        service.fill(CAPACITY)
        client, other = await service.connect(), await service.connect()
        loop = asyncio.get_running_loop()
        began = loop.time()
        for _ in range(BURST + more):
            assert (await client.ask())[0] == 429
        assert loop.time() - began >= 0.8 * more * SECONDS_EACH
        client.send()
        began = loop.time()
        assert (await other.ask(OTHER))[0] == 200
        within(loop.time() - began, LONGEST_PAUSE / 2)
        assert (await client.reply())[0] == 429


@pytest.mark.parametrize("by", ["head", "body"])
@in_loop
async def test_each_refusal_is_paced_and_logged_once_also_after_the_body(
    by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving() as service:
        pause, log = Mock(return_value=0.0), Mock()
        monkeypatch.setattr(service.context.shedding, "pause", pause)
        monkeypatch.setattr(service.context.access_log._shedding, "log", log)
        client = await service.connect()
        assert (await client.ask())[0] == 200
        assert pause.call_count == log.call_count == 0
        if by == "head":
            service.fill(CAPACITY)
        else:
            refuse = Mock(side_effect=QueueFull("no room", retry_after=1.0))
            monkeypatch.setattr(service.context.engine, "predict", refuse)
        for _ in range(3):
            assert (await client.ask())[0] == 429
        assert pause.call_count == log.call_count == 3


@in_loop
async def test_pauses_end() -> None:
    shedding = Shedding()
    pauses = [shedding.pause() for _ in range(10_000)]
    assert max(pauses) <= LONGEST_PAUSE
    assert not any(pauses[:BURST])


def test_pauses_end_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("turbofno.service.http.shedding.time", Mock(monotonic=lambda: 1.0))
    shedding = Shedding()
    ends = [1.0 + shedding.pause() for _ in range(BURST + 100)][BURST + 1 :]
    multiples = {round(end / TOGETHER_SECONDS) for end in ends}
    # 99 refusals, SECONDS_EACH apart.
    assert len(multiples) <= 99 * SECONDS_EACH / TOGETHER_SECONDS + 2
    assert all(
        end / TOGETHER_SECONDS == pytest.approx(round(end / TOGETHER_SECONDS)) for end in ends
    )
    assert max(ends) <= 1.0 + LONGEST_PAUSE


@in_loop
async def test_concurrent_requests_cannot_claim_the_same_slot() -> None:
    async with serving() as service:
        service.fill(CAPACITY - 2)

        def arrive() -> Admitted | None:
            """A request that was let in."""
            path, _, query = INFER.encode().partition(b"?")
            headers = [(b"host", b"localhost")]
            call = Call(service.context, "POST", path, query, headers, target_of(path))
            return call.admitted if begin(call) is None else None

        admitted = [one for one in (arrive() for _ in range(5)) if one is not None]
        assert len(admitted) == 2
        admitted[0].leave()
        admitted[0].leave()
        later = arrive()
        assert later is not None
        assert arrive() is None
        for one in (admitted[1], later):
            one.leave()


@in_loop
async def test_slow_bodies_and_answered_requests_release_their_slot() -> None:
    async with serving() as service:
        service.fill(CAPACITY - 1)
        dawdler = await service.connect()
        dawdler.writer.write(
            f"POST {INFER} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 64\r\n\r\nPPP".encode()
        )
        await asyncio.sleep(0.05)
        client = await service.connect()
        for path, status in ((INFER, 200), (INFER + "&shape=", 400), (INFER, 200)):
            answer = await client.ask(path)
            assert answer[0] == status, answer


@in_loop
async def test_refusals_of_one_second_share_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.access")
    caplog.handler.setFormatter(JsonFormatter())
    async with serving() as service:
        service.fill(CAPACITY)
        client = await service.connect()
        for _ in range(5):
            await client.ask()
        await asyncio.sleep(1.2)
    assert "request_id" not in caplog.text
    (line,) = [record for record in caplog.records if "queue" in record.getMessage()]
    data = json.loads(json.dumps(line.__dict__["data"]))
    assert data == {"status": 429, "requests": 5, "model": "tiny-1d", "version": "1"}


@in_loop
async def test_a_drain_logs_the_refusals_before_it(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.access")
    async with serving() as service:
        service.fill(CAPACITY)
        await (await service.connect()).ask()
        await drain(service.context, 0.0)
        (line,) = [record for record in caplog.records if "queue" in record.getMessage()]
        assert line.__dict__["data"]["requests"] == 1
