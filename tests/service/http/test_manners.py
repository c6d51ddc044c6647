"""HTTP semantics: HEAD, OPTIONS, Upgrade, half-closed and pipelined connections, common mistakes."""

from __future__ import annotations

import asyncio
import json
import logging
import shutil
from typing import Any

import httpx
import pytest

from tests.service.http.live import connected, listening
from tests.service.http.raw import (
    FIELD,
    INFER,
    INFER_RAW,
    PREDICT,
    in_loop,
    raw_request,
    reply,
    values,
)
from tests.service.http.serving import serving
from tests.service.waiting import until

pytestmark = pytest.mark.timeout(30)

READ = ["/", "/docs", "/healthz", "/metrics", "/openapi.json", "/ui/", "/v1/models", "/v1/models/tiny-1d", "/v2",
        "/v2/models/tiny-1d", "/v2/models/tiny-1d/ready"]  # fmt: skip
VARYING = {"date", "x-request-id", "server-timing"}


@in_loop
async def test_head_has_the_headers_of_get_and_no_body() -> None:
    async with (
        listening() as (port, _, _),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        for path in READ:
            got, asked = await client.get(path), await client.head(path)
            assert (asked.status_code, asked.content) == (got.status_code, b""), path
            assert set(asked.headers) - VARYING == set(got.headers) - VARYING, path
            if path != "/metrics":
                assert asked.headers.get("content-length") == got.headers.get("content-length")
        refused = await client.head("/v1/models/tiny-1d/sample")
        assert (refused.status_code, refused.content) == (404, b"")
        assert int(refused.headers["content-length"]) > 0
        assert (await client.get("/healthz")).status_code == 200, "the connection lives on"


@pytest.mark.parametrize("over_asgi", [False, True])
@pytest.mark.parametrize(
    "coding", ["gzip, chunked", "gzip\r\nTransfer-Encoding: chunked", "x, CHUNKED"]
)
def test_a_transfer_coding_other_than_chunked_is_refused(coding: str, over_asgi: bool) -> None:
    """Its chunks alone would be removed, and what they hold be read as the body."""

    @in_loop
    async def main() -> None:
        async with (
            listening(over_asgi=over_asgi) as (port, engine, _),
            connected(port) as (reader, writer),
        ):
            data = FIELD.tobytes()
            chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)
            writer.write(raw_request(INFER_RAW, chunks, f"Transfer-Encoding: {coding}"))
            status, _, body = await reply(reader)
            assert status == 501, body
            assert "only chunked by itself" in json.loads(body)["error"]
            assert not engine.requests
            writer.write(raw_request(INFER_RAW, chunks, "Transfer-Encoding:  Chunked"))
            assert (await reply(reader))[0] == 200, "the connection lives on"

    main()


@pytest.mark.parametrize(
    ("path", "allowed"),
    [
        (PREDICT, "POST"),
        (INFER, "POST"),
        ("/v1/models/tiny-1d/sample", "GET, HEAD"),
        ("/v1/models", "GET, HEAD"),
        ("/v2/trace/setting", "GET, HEAD, POST"),
    ],
)
def test_options_and_a_wrong_method_list_the_allowed_methods(path: str, allowed: str) -> None:
    async def main() -> None:
        async with serving() as (client, _):
            asked = await client.request("OPTIONS", path)
            assert (asked.status_code, asked.content) == (204, b"")
            assert asked.headers["allow"] == f"{allowed}, OPTIONS"
            refused = await client.request("DELETE", path)
            assert (refused.status_code, refused.headers["allow"]) == (405, allowed)
            assert f"use {allowed}" in refused.text

    asyncio.run(main())


@pytest.mark.parametrize("over_asgi", [False, True])
@in_loop
async def test_options_for_the_whole_server_lists_the_methods_of_all_routes(
    over_asgi: bool,
) -> None:
    async with (
        listening(over_asgi=over_asgi) as (port, _, _),
        connected(port) as (reader, writer),
    ):
        for method in ("OPTIONS", "GET"):
            writer.write(f"{method} * HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        assert head.startswith(b"http/1.1 204 ")
        assert b"\r\nallow: get, head, post, options\r\n" in head
        assert (await reply(reader))[0] == 404


UPGRADE = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQ")


@in_loop
async def test_an_upgrade_to_http_2_is_ignored_and_the_request_served() -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        offer = "".join(f"{line}\r\n" for line in UPGRADE)
        health = f"GET /healthz HTTP/1.1\r\nHost: localhost\r\n{offer}\r\n".encode()
        writer.write(health)
        assert (await reply(reader))[0] == 200
        writer.write(raw_request(INFER + "?shape=1,1,16", FIELD.tobytes(), *UPGRADE))
        status, _, body = await reply(reader)
        assert status == 200, body
        assert values(body).tobytes() == engine.answer(FIELD, 2).tobytes()
        writer.write(health * 3 + raw_request())
        assert [(await reply(reader))[0] for _ in range(4)] == [200] * 4


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
@in_loop
async def test_curl_with_http2_is_served() -> None:
    async with listening() as (port, _, _):
        body = json.dumps({"inputs": {"input": FIELD.tolist()}})
        for options in ((), ("-H", "Content-Type: application/json", "-d", body)):
            path = PREDICT if options else "/healthz"
            curl = await asyncio.create_subprocess_exec(
                "curl", "-sS", "--http2", "-w", "%{http_code}", "-o", "/dev/null", *options,
                f"http://127.0.0.1:{port}{path}", stdout=asyncio.subprocess.PIPE,
            )  # fmt: skip
            printed, _ = await curl.communicate()
            assert printed == b"200"


@in_loop
async def test_a_half_closed_connection_still_gets_its_replies() -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        engine.held = True
        writer.write(raw_request() + raw_request())
        writer.write_eof()
        await engine.started.wait()
        await asyncio.sleep(0.1)
        engine.release.set()
        received = await reader.read()
        # Skip the interim responses.
        assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert received.count(b"HTTP/1.1 200 OK\r\n") == 2
        assert received.count(b"connection: close\r\n") == 1
        assert not engine.cancelled


@in_loop
async def test_a_half_close_within_a_request_is_a_disconnect() -> None:
    async with listening() as (port, engine, context), connected(port) as (reader, writer):
        writer.write(raw_request()[:-10])
        writer.write_eof()
        assert await reader.read() == b""
        await until(lambda: not context.admission._requests)
        assert not engine.requests


@in_loop
async def test_pipelined_requests_of_a_client_that_left_are_dropped_without_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with listening() as (port, engine, context), connected(port) as (_, writer):
        engine.held = True
        writer.write(raw_request() + health + raw_request())
        await engine.started.wait()
        writer.transport.abort()
        await until(lambda: engine.cancelled > 0)
        await until(lambda: not context.admission._requests)
        assert len(engine.requests) == 1
        assert context.metrics.registry.get_sample_value("turbofno_inflight_bytes") == 0
        statuses = [
            one.__dict__["data"]["status"] for one in caplog.records if one.name == "service.access"
        ]
        assert statuses == [499]
        assert not [one for one in caplog.records if one.levelno >= logging.WARNING]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("?priority=1&priority=2", "query parameter 'priority' is given 2 times, expected once"),
        (
            "?priority=99",
            "'priority' is '99', expected a whole number from 0 to 10: 1 is the highest",
        ),
        ("?priority=", "'priority' is '', expected a whole number"),
        (
            "?prioriti=1",
            "unknown query parameter 'prioriti'; 'priority' and 'output_grid' are known",
        ),
    ],
)
def test_query_mistakes_get_a_helpful_error(query: str, words: str) -> None:
    asyncio.run(_refused(PREDICT + query, 400, words))


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/models/tiny-1d:preditc", "did you mean :predict?"),
        ("/v1/models/tiny-1d/versions/1:roll_out", "did you mean :rollout?"),
        ("/v1/models/tiny-1d:frobnicate", "Models have :predict, :rollout, :vjp, :solve"),
        ("/v1/models/tiny-1d:sample", "there is no route"),
        ("/v1/models/tiny-1d/versions/1:solve", "there is no route"),
        ("/v1/models/:predict", "the name of the model is missing"),
        ("/v1/models/:preditc", "the name of the model is missing"),
        ("/v1/models//versions/1:predict", "the name of the model is missing"),
        ("/v1/models/tiny-1d/versions/:predict", "the version of the model is missing"),
    ],
)
def test_verb_mistakes_get_a_helpful_error(path: str, words: str) -> None:
    asyncio.run(_refused(path, 404, words))


async def _refused(path: str, status: int, words: str) -> None:
    async with serving() as (client, engine):
        what: dict[str, Any] = {"json": {"inputs": {"input": FIELD.tolist()}}}
        answer = await client.post(path, **what)
        assert answer.status_code == status, answer.text
        assert words in answer.json()["detail"]
        assert not engine.requests
