"""The socket transport: clients that leave or do not read, and the end of the process."""

from __future__ import annotations

import asyncio
import gc
import json
import logging

import numpy as np
import pytest

from tests.clock import within
from tests.service.http.live import connected, listening
from tests.service.http.raw import FIELD, INFER, INFER_RAW, in_loop, raw_request, reply
from tests.service.waiting import until
from turbofno.service.http import edge
from turbofno.service.http.exchange import Exchange
from turbofno.service.logs import JsonFormatter

pytestmark = pytest.mark.timeout(30)


@in_loop
async def test_a_disconnect_drops_pipelined_requests_that_have_not_begun() -> None:
    async with listening() as (port, engine, _), connected(port) as (_, writer):
        engine.held = True
        writer.write(raw_request() * 3)
        await engine.started.wait()
        gc.collect()
        gc.disable()
        try:
            writer.transport.abort()
            await asyncio.sleep(0.1)
            assert not [one for one in gc.get_objects() if type(one) is edge.Exchange]
        finally:
            gc.enable()


@in_loop
async def test_a_draining_service_closes_connections_behind_their_last_reply() -> None:
    async with listening() as (port, engine, context), connected(port) as (reader, writer):
        engine.held = True
        writer.write(raw_request() * 2)
        await engine.started.wait()
        context.admission.start_draining()
        engine.release.set()
        seen = []
        for _ in range(2):
            status, headers, _ = await reply(reader)
            seen.append((status, headers.get("connection"), headers.get("retry-after")))
        # Another instance may answer now, whatever time this one takes to end.
        assert seen == [(200, None, None), (503, "close", "1")]
        assert await reader.read() == b""


@in_loop
async def test_a_disconnect_is_detected_at_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "service.access")
    async with listening() as (port, engine, context), connected(port) as (_, writer):
        engine.held = True
        writer.write(raw_request())
        await engine.started.wait()
        began = asyncio.get_running_loop().time()
        writer.transport.abort()
        await until(lambda: engine.cancelled > 0)
        within(asyncio.get_running_loop().time() - began, 0.15)
        await asyncio.sleep(0.05)
        assert context.metrics.registry.get_sample_value("turbofno_inflight_bytes") == 0
        (line,) = [record for record in caplog.records if record.name == "service.access"]
        assert line.__dict__["data"]["status"] == 499
        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


@in_loop
async def test_a_disconnect_after_one_large_body_piece_is_detected() -> None:
    many = np.zeros((400, 1, 64), "<f4")
    async with (
        listening(max_fields_per_request=400) as (port, engine, _),
        connected(port) as (_, writer),
    ):
        engine.held = True
        writer.write(raw_request(INFER + "?shape=400,1,64", many.tobytes()))
        await engine.started.wait()
        writer.transport.abort()
        for _ in range(100):
            await asyncio.sleep(0.01)
            if engine.cancelled:
                break
        assert engine.cancelled, "its connection was not read any more"


@in_loop
async def test_half_a_body_and_end_of_file_is_a_disconnect() -> None:
    async with listening() as (port, engine, context), connected(port) as (_, writer):
        writer.write(raw_request()[:-10])
        await asyncio.sleep(0.05)
        writer.transport.abort()
        await asyncio.sleep(0.05)
        assert not engine.requests
        assert context.metrics.registry.get_sample_value("turbofno_inflight_bytes") == 0


@in_loop
async def test_both_ways_tell_a_client_that_the_process_ends_and_count_what_they_tell(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr("turbofno.service.server.FLUSH_SECONDS", 0)
    caplog.set_level(logging.INFO, "service.access")
    asked = raw_request(INFER_RAW, FIELD.tobytes(), "X-Request-Id: one-and-the-same")
    answers = []
    for over_asgi in (False, True):
        caplog.clear()
        async with listening(over_asgi=over_asgi) as (port, engine, context):
            engine.held = True
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(asked)
            await engine.started.wait()
        status, headers, body = await reply(reader)
        assert await reader.read() == b""
        writer.close()
        assert (status, headers["retry-after"], engine.cancelled) == (503, "1", 1)
        assert "another instance" in json.loads(body)["error"]
        of = {"model": "tiny-1d", "version": "2", "protocol": "oip", "code": "503"}
        counted = context.metrics.registry.get_sample_value("turbofno_requests_total", of)
        assert counted == 1
        assert context.metrics.registry.get_sample_value("turbofno_inflight_bytes") == 0
        (line,) = [record for record in caplog.records if record.name == "service.access"]
        assert line.__dict__["data"]["status"] == 503
        assert line.__dict__["data"]["out"] == len(body)
        assert "Traceback" not in caplog.text
        # uvicorn decides on "connection: close" over ASGI.
        answers.append((set(headers) - {"connection"}, body))
    assert answers[0] == answers[1]


@in_loop
async def test_an_unread_reply_holds_its_bytes_and_blocks_no_other_connection() -> None:
    many = np.zeros((4000, 1, 64), "<f4")
    settings = {"max_fields_per_request": 4000, "keep_alive_seconds": 60}
    async with (
        listening(**settings) as (port, _, context),
        connected(port) as (_, writer),
        connected(port) as (other, its_writer),
    ):
        for _ in range(8):
            writer.write(raw_request(INFER + "?shape=4000,1,64", many.tobytes()))
        await asyncio.sleep(1.0)
        held = context.metrics.registry.get_sample_value("turbofno_inflight_bytes")
        assert held, "an answer that nobody reads takes memory"
        its_writer.write(raw_request())
        assert (await reply(other))[0] == 200
        writer.transport.abort()
        await asyncio.sleep(0.2)
        assert context.metrics.registry.get_sample_value("turbofno_inflight_bytes") == 0


@in_loop
async def test_a_client_that_reads_nothing_of_its_answer_is_cut_off_counted_and_logged(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "service.access")
    many = np.zeros((4000, 1, 64), "<f4")
    async with (
        listening(max_fields_per_request=4000, keep_alive_seconds=1) as (port, _, context),
        connected(port) as (_, writer),
    ):
        for _ in range(8):
            writer.write(raw_request(INFER + "?shape=4000,1,64", many.tobytes()))
        statuses: list[int] = []

        def cut() -> bool:
            records = [one for one in caplog.records if one.name == "service.access"]
            statuses[:] = [one.__dict__["data"]["status"] for one in records]
            return 499 in statuses

        await until(cut)
        assert statuses[-1] == 499
        assert set(statuses[:-1]) <= {200}
        value = context.metrics.registry.get_sample_value
        assert value("turbofno_rejections_total", {"reason": "unread", "model": ""}) == 1
        assert value("turbofno_inflight_bytes") == 0


@in_loop
async def test_a_client_that_leaves_before_its_body_is_counted_once_and_holds_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "service.access")
    caplog.handler.setFormatter(JsonFormatter())
    asked = raw_request(INFER_RAW, FIELD.tobytes(), "X-Request-Id: of-this-one")
    async with listening() as (port, engine, context):
        for sent in (0, 10):
            caplog.clear()
            async with connected(port) as (_, writer):
                writer.write(asked[: -len(FIELD.tobytes()) + sent])
                await writer.drain()
                writer.transport.abort()
            await until(lambda: bool(caplog.records))
            await asyncio.sleep(0.1)
            (line,) = [one for one in caplog.records if one.name == "service.access"]
            assert line.__dict__["data"]["status"] == 499
            assert json.loads(caplog.text)["request_id"] == "of-this-one"
        assert not engine.requests
        assert context.admission.coming["tiny-1d", "1"] == 0
        await asyncio.wait_for(context.admission.wait_idle(), 1)


@in_loop
async def test_a_client_that_leaves_before_its_task_begins_holds_nothing(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "service.access")
    start = Exchange.start

    def start_and_lose(one: Exchange) -> None:
        start(one)
        one.disconnected = True
        one.abandon()
        one._edge.transport.abort()

    monkeypatch.setattr(Exchange, "start", start_and_lose)
    async with listening() as (port, engine, context), connected(port) as (_, writer):
        # an incomplete body, which a task reads
        writer.write(raw_request(INFER + "?shape=4000,1,64", bytes(4000 * 64 * 4))[: 2**19])
        await until(lambda: bool(caplog.records))
        (line,) = [one for one in caplog.records if one.name == "service.access"]
        assert line.__dict__["data"]["status"] == 499
        assert not engine.requests
        assert context.admission.coming["tiny-1d", "1"] == 0
        await asyncio.wait_for(context.admission.wait_idle(), 1)
