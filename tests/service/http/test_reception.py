"""The socket transport: large bodies that are received where their fields are used."""

from __future__ import annotations

import asyncio
import gc
import logging
import shutil
import ssl
import subprocess
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any
from unittest.mock import Mock

import numpy as np
import pytest
import uvloop

from tests.draws import generator
from tests.service.http.live import connected, listening
from tests.service.http.raw import FIELD, INFER, npy, raw_request, reply
from tests.service.waiting import until
from turbofno.service.http import edge
from turbofno.service.http.exchange import Exchange
from turbofno.service.http.reception import Reception

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Coroutine
    from pathlib import Path

    from tests.service.http.fake_engine import FakeEngine
    from turbofno.service.context import AppContext

pytestmark = pytest.mark.timeout(30)

MANY = generator(__name__).standard_normal((4000, 1, 64)).astype("<f4")
"""One megabyte."""
PATH = INFER + "?shape=4000,1,64"
LARGE = raw_request(PATH, MANY.tobytes())
HEAD = len(LARGE) - MANY.nbytes
LIMITS = {"max_fields_per_request": 4000}
SLOT = ("tiny-1d", "2")


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Coroutine[Any, Any, None]], None]:
    def run_in_loop(test: Coroutine[Any, Any, None]) -> None:
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(test)

    return run_in_loop


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No body is late."""
    monkeypatch.setattr(edge, "BODY_SECONDS", 20.0)


@asynccontextmanager
async def talking(
    **settings: Any,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter, FakeEngine, AppContext]]:
    """Serve the application and open a connection to it."""
    async with (
        listening(**LIMITS, **settings) as (port, engine, context),
        connected(port) as (reader, writer),
    ):
        yield reader, writer, engine, context


def held_bytes(context: Any) -> float:
    held: float = context.metrics.registry.get_sample_value("turbofno_inflight_bytes")
    return held


async def answered(reader: asyncio.StreamReader, fields: Any, engine: FakeEngine) -> None:
    status, _, body = await reply(reader)
    assert status == 200, body
    expected = engine.answer(fields, 2)
    outputs = np.frombuffer(body[-expected.nbytes :], "<f4").reshape(expected.shape)
    np.testing.assert_array_equal(outputs, expected)


@pytest.mark.parametrize("pieces", [[], [HEAD], [10, HEAD + 1], [HEAD + 300_000, HEAD + 300_001]])
@pytest.mark.usefixtures("patient")
def test_its_fields_are_in_the_engines_memory(
    run: Any, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    received: list[int] = []
    body_received = edge.Edge.body_received

    def note(one: edge.Edge, size: int) -> None:
        received.append(size)
        body_received(one, size)

    monkeypatch.setattr(edge.Edge, "body_received", note)

    async def main() -> None:
        async with talking() as (reader, writer, engine, context):
            given = engine.given
            for _ in range(2):
                for start, stop in zip([0, *pieces], [*pieces, len(LARGE)], strict=True):
                    writer.write(LARGE[start:stop])
                    await writer.drain()
                    await asyncio.sleep(0.001)
                await answered(reader, MANY, engine)
                fields = engine.requests[-1].fields
                assert fields.flags.aligned
                assert fields.ctypes.data % 64 == 0
            assert len(given) == 2
            assert received == [MANY.nbytes] * 2
            assert held_bytes(context) == 0

    run(main())


@pytest.mark.parametrize("after", [b"\r\n", b"garbage\r\n\r\n", raw_request()])
@pytest.mark.usefixtures("patient")
def test_bytes_behind_a_last_request_do_not_cost_its_reply(run: Any, after: bytes) -> None:
    last = LARGE.replace(b"\r\n", b"\r\nConnection: close\r\n", 1) + after

    async def main() -> None:
        async with listening(**LIMITS) as (port, engine, _):
            for _ in range(5):
                async with connected(port) as (reader, writer):
                    writer.write(last)
                    await answered(reader, MANY, engine)
                    assert await reader.read() == b""

    run(main())


@pytest.mark.usefixtures("patient")
def test_it_is_received_over_tls(run: Any, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("openssl makes the certificate")
    certificate, key = tmp_path / "certificate.pem", tmp_path / "key.pem"
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    files = ("-subj", "/CN=localhost", "-keyout", str(key), "-out", str(certificate))
    subprocess.run(["openssl", "req", "-x509", *curve, *files], check=True, capture_output=True)
    trusting = ssl.create_default_context(cafile=certificate)
    trusting.check_hostname = False

    async def main() -> None:
        async with listening(**LIMITS, tls_certificate=certificate, tls_key=key) as served:
            port, engine, context = served
            given = engine.given
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting)
            writer.write(LARGE + LARGE + raw_request())
            for fields in (MANY, MANY, FIELD):
                await answered(reader, fields, engine)
            writer.write(LARGE[:-10])
            await until(lambda: len(given) == 4)
            writer.transport.abort()
            await until(lambda: held_bytes(context) == 0 and given[-1]() is None)

    run(main())


def test_the_end_of_a_connection_reaches_it_however_late() -> None:
    """Over TLS uvloop announces it a moment later, to the protocol that there was: the body may be late in between."""
    connection = Mock()
    reception = Reception(connection, memoryview(bytearray(8)), 4)
    reception.end()
    reception.connection_lost(None)
    connection.connection_lost.assert_called_once_with(None)


def test_npy_begins_where_the_file_does(run: Any) -> None:
    async def main() -> None:
        async with talking() as (reader, writer, engine, _):
            sent = npy(MANY)
            kind = "Content-Type: application/x-npy"
            writer.write(raw_request("/v1/models/tiny-1d:predict", sent, kind))
            status, _, body = await reply(reader)
            assert status == 200, body[:300]
            np.testing.assert_array_equal(engine.requests[-1].fields, MANY)
            assert engine.requests[-1].fields.ctypes.data % 64 == 0

    run(main())


def test_pipelined_requests_around_it_are_answered_in_order(run: Any) -> None:
    async def main() -> None:
        async with talking() as (reader, writer, engine, _):
            small = raw_request()
            for asked in ([LARGE, small, LARGE, LARGE, small], [small, LARGE, small]):
                writer.write(b"".join(asked))
                for one in asked:
                    await answered(reader, MANY if one is LARGE else FIELD, engine)

    run(main())


@pytest.mark.parametrize("come", [100_000, 700_000])
def test_a_slow_one_holds_neither_the_engines_memory_nor_a_slot(run: Any, come: int) -> None:
    async def main() -> None:
        async with talking() as (reader, writer, engine, context):
            given = engine.given
            writer.write(LARGE[: HEAD + come])
            await until(lambda: len(given) == 1)
            await until(lambda: context.admission.coming[SLOT] == 0 and given[0]() is None)
            await until(lambda: held_bytes(context) == come)
            writer.write(LARGE[HEAD + come :] + raw_request())
            await answered(reader, MANY, engine)
            await answered(reader, FIELD, engine)
            assert held_bytes(context) == 0

    run(main())


@pytest.mark.parametrize("come", [10, 50_000])
def test_one_that_is_only_announced_takes_no_memory(run: Any, come: int) -> None:
    async def main() -> None:
        async with talking() as (reader, writer, engine, context):
            given = engine.given
            writer.write(LARGE[: HEAD + come])
            # Counted once a task reads it.
            await until(lambda: held_bytes(context) == come)
            assert context.admission.coming[SLOT] == 0
            assert not given
            writer.write(LARGE[HEAD + come :])
            await answered(reader, MANY, engine)

    run(main())


def test_one_that_never_comes_times_out(run: Any) -> None:
    async def main() -> None:
        async with talking(body_timeout_seconds=0.3) as (reader, writer, _, context):
            writer.write(LARGE[:-10])
            assert (await reply(reader))[0] == 408
            assert held_bytes(context) == 0

    run(main())


@pytest.mark.parametrize("politely", [True, False])
@pytest.mark.usefixtures("patient")
def test_a_client_that_leaves_meanwhile_is_counted_once_and_leaves_nothing(
    run: Any, politely: bool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "service.access")

    async def main() -> None:
        async with listening(**LIMITS) as (port, engine, context):
            given = engine.given
            gc.collect()
            gc.disable()
            try:
                async with connected(port) as (reader, writer):
                    writer.write(LARGE)
                    await answered(reader, MANY, engine)
                    caplog.clear()
                    engine.requests.clear()
                    writer.write(LARGE[:-10])
                    await until(lambda: len(given) == 2)
                    writer.write_eof() if politely else writer.transport.abort()
                    await until(lambda: bool(caplog.records))
                await until(lambda: given[1]() is None)
                left = [
                    one for one in gc.get_objects() if issubclass(type(one), (edge.Edge, Exchange))
                ]
                assert not left
                del left
            finally:
                gc.enable()
            (line,) = [one for one in caplog.records if one.name == "service.access"]
            assert line.__dict__["data"]["status"] == 499
            assert not engine.requests
            assert held_bytes(context) == context.admission.coming[SLOT] == 0

    run(main())


def test_one_without_room_is_refused_once_it_has_come(run: Any) -> None:
    async def main() -> None:
        async with talking() as (reader, writer, engine, _):
            engine.full = True
            writer.write(LARGE)
            assert (await reply(reader))[0] == 503
            engine.full = False
            writer.write(LARGE)
            await answered(reader, MANY, engine)

    run(main())
