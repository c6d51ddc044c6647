"""The socket transport: replies equal those over ASGI; pipelining, bodies in pieces, limits and errors."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import time
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.clock import within
from tests.draws import generator
from tests.service.http.live import connected, listening
from tests.service.waiting import until
from turbofno.service.http import edge, operations
from turbofno.service.http.access_log import AccessLog

if TYPE_CHECKING:
    from pathlib import Path
from tests.service.http.raw import (
    FIELD,
    INFER,
    INFER_RAW,
    NPY,
    PREDICT,
    in_loop,
    npy,
    raw_request,
    reply,
    values,
)

pytestmark = pytest.mark.timeout(30)
RAW = {"Inference-Header-Content-Length": "0"}
KEY = "a-key-of-this-test"
INPUTS = {"inputs": {"input": FIELD.tolist()}}


CASES: list[tuple[str, dict[str, Any]]] = [
    (PREDICT, {"json": INPUTS}),
    (PREDICT, {"json": {"inputs": {"nonsense": 1}}}),
    (PREDICT, {"content": npy(FIELD), "headers": NPY}),
    (PREDICT, {"content": npy(FIELD[0]), "headers": {**NPY, "Accept": "application/json"}}),
    (PREDICT, {"content": npy(FIELD), "headers": {**NPY, "Accept": "image/png"}}),
    (PREDICT, {"content": npy(np.float32([[[np.nan] * 16]])), "headers": NPY}),
    (PREDICT, {"content": npy(np.zeros((500, 1, 512), "f4")), "headers": NPY}),
    (
        PREDICT,
        {"content": gzip.compress(npy(FIELD)), "headers": {**NPY, "Content-Encoding": "gzip"}},
    ),
    (PREDICT, {"content": b"x", "headers": {"Content-Type": "image/png"}}),
    (PREDICT, {"json": {}, "headers": {"X-Deadline-Ms": "never"}}),
    (PREDICT, {"json": INPUTS, "headers": {"X-Deadline-Ms": "500"}}),
    (PREDICT, {"json": INPUTS, "headers": {"X-Request-Id": "bad id"}}),
    (PREDICT + "?priority=-1", {"json": {}}),
    (PREDICT + "?priority=3", {"json": INPUTS}),
    (PREDICT + "?version=1", {"json": {}}),
    (PREDICT + "?output_grid=24", {"json": INPUTS}),
    (PREDICT, {"method": "GET"}),
    ("/v1/models/tiny-1d/versions/1:predict", {"json": INPUTS}),
    ("/v1/models/tiny-1d/versions/7:predict", {"json": INPUTS}),
    ("/v1/models/absent:predict", {"json": {}}),
    ("/v1/models/%2e%2e:predict", {"json": {}}),
    ("/healthz", {"method": "GET"}),
    ("/readyz", {"method": "HEAD"}),
    ("/v1/models/tiny-1d", {"method": "GET"}),
    ("/v1/models/tiny-1d/not%20a%20name.png", {"method": "GET"}),
    ("/docs/start.js", {"method": "GET"}),
    ("/", {"method": "GET", "headers": {"Accept": "text/html"}}),
    ("/nowhere", {"method": "OPTIONS"}),
    ("/openapi.json", {"method": "OPTIONS"}),
    (INFER_RAW, {"content": FIELD.tobytes(), "headers": RAW}),
    (INFER_RAW, {"content": FIELD.tobytes(), "headers": {**RAW, "Accept-Encoding": "gzip"}}),
    (INFER + "?shape=1,1,15", {"content": FIELD.tobytes(), "headers": RAW}),
    (INFER + "?shape=a", {"content": FIELD.tobytes(), "headers": RAW}),
    (INFER + "?shape=1%2C1%2C16", {"content": b"", "headers": RAW}),
    (INFER, {"content": FIELD.tobytes(), "headers": RAW}),
    (INFER, {"content": b"{"}),
    (INFER, {"method": "DELETE"}),
    ("/v2/models/absent/infer", {"content": b"{}"}),
    (
        "/v2/models/tiny-1d/versions/2/infer?shape=1,1,16",
        {"content": FIELD.tobytes(), "headers": RAW},
    ),
]


@in_loop
async def test_socket_and_asgi_transports_send_the_same_reply() -> None:
    async with (
        listening() as (port, _, _),
        listening(over_asgi=True) as (asgi_port, _, _),
        httpx.AsyncClient() as client,
    ):
        for path, given in CASES:
            headers = {"X-Request-Id": "one-and-the-same", **given.get("headers", {})}
            options = {"method": "POST", **given, "headers": headers}
            one, other = [
                await client.request(url=f"http://127.0.0.1:{one}{path}", **options)
                for one in (port, asgi_port)
            ]
            about = (path, given, one.text[:300], other.text[:300])
            assert one.status_code == other.status_code, about
            assert set(one.headers) == set(other.headers), about
            unlike = {"server-timing", "date"}
            if " " in headers["X-Request-Id"]:
                unlike.add("x-request-id")
            for name in set(one.headers) - unlike:
                assert one.headers[name] == other.headers[name], about
            assert one.content == other.content, about


@in_loop
async def test_a_plain_prediction_does_not_reach_the_application(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def unreachable(*_: object) -> None:
        raise AssertionError

    async with (
        listening() as (port, engine, context),
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
    ):
        monkeypatch.setattr("turbofno.service.http.asgi.CallMiddleware.__call__", unreachable)
        answer = await client.post(PREDICT, json=INPUTS)
        assert answer.status_code == 200
        expected = engine.answer(FIELD, 2)
        np.testing.assert_allclose(
            np.asarray(json.loads(answer.content)["outputs"]["output"]), expected, rtol=1e-6
        )
        counted = context.metrics.registry.get_sample_value(
            "turbofno_requests_total",
            {"model": "tiny-1d", "version": "2", "protocol": "predict", "code": "200"},
        )
        assert counted == 1


@in_loop
async def test_a_connection_serves_sequential_and_pipelined_requests() -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        health = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n"
        fields = [FIELD + k for k in range(4)]
        for field in fields:
            writer.write(raw_request(body=field.tobytes()))
            status, _, body = await reply(reader)
            assert status == 200
            np.testing.assert_array_equal(values(body), engine.answer(field, 2))
        writer.write(
            b"".join([raw_request(body=fields[1].tobytes()), health, raw_request(), health])
        )
        assert [(await reply(reader))[0] for _ in range(4)] == [200] * 4
        writer.write(raw_request(INFER_RAW, FIELD.tobytes(), "Connection: close"))
        status, headers, _ = await reply(reader)
        assert (status, headers["connection"]) == (200, "close")
        assert await reader.read() == b""


@in_loop
async def test_a_whole_url_names_its_path() -> None:
    async with listening() as (port, _, _), connected(port) as (reader, writer):
        host = f"127.0.0.1:{port}"
        for target in (f"http://{host}/v2", f"http://{host}{INFER_RAW}"):
            request = raw_request(target)
            if "infer" not in target:
                request = f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode()
            writer.write(request)
            status, _, body = await reply(reader)
            assert status == 200, body
        writer.write(f"OPTIONS nonsense HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await reply(reader))[0] == 400


@in_loop
async def test_a_body_in_pieces_is_reassembled() -> None:
    async with (
        listening(max_fields_per_request=2000) as (port, engine, _),
        connected(port) as (reader, writer),
    ):
        request = raw_request()
        for start in range(0, len(request), 7):
            writer.write(request[start : start + 7])
            await asyncio.sleep(0.001)
        status, _, body = await reply(reader)
        assert status == 200
        np.testing.assert_array_equal(values(body), engine.answer(FIELD, 2))
        many = generator().standard_normal((2000, 1, 64)).astype("<f4")
        writer.write(raw_request(INFER + "?shape=2000,1,64", many.tobytes()))
        status, _, body = await reply(reader)
        assert status == 200, body[:200]
        answer = np.frombuffer(body[-2 * many.nbytes :], np.float32).reshape(2000, 2, 64)
        np.testing.assert_array_equal(answer, engine.answer(many, 2))
        chunks = [b"%x\r\n%b\r\n" % (len(part), part) for part in (b"", FIELD.tobytes()) if part]
        writer.write(
            raw_request(INFER_RAW, b"".join([*chunks, b"0\r\n\r\n"]), "Transfer-Encoding: chunked")
        )
        assert (await reply(reader))[0] == 200


@in_loop
async def test_a_body_that_does_not_arrive_times_out_and_releases_its_slot() -> None:
    async with (
        listening(body_timeout_seconds=0.3) as (port, _, context),
        connected(port) as (reader, writer),
    ):
        writer.write(raw_request()[:-10])
        status, _, body = await reply(reader)
        assert status == 408, body
        read = context.metrics.registry.get_sample_value
        assert read("turbofno_inflight_bytes") == 0
        late = {"reason": "body_timeout", "model": "tiny-1d"}
        assert read("turbofno_rejections_total", late) == 1


@in_loop
async def test_the_deadline_counts_once_the_body_has_come() -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        lines = "Content-Type: application/x-npy", "X-Deadline-Ms: 50"
        request = raw_request(PREDICT, npy(FIELD), *lines)
        writer.write(request[:-10])
        await asyncio.sleep(0.1)
        sent = time.monotonic()
        writer.write(request[-10:])
        assert (await reply(reader))[0] == 200
        deadline = engine.requests[0].deadline
        assert deadline is not None
        assert deadline >= sent + 0.05


@in_loop
async def test_the_body_of_a_refused_request_is_skipped() -> None:
    big = np.zeros((4000, 1, 64), "<f4").tobytes()
    async with listening() as (port, _, _), connected(port) as (reader, writer):
        for _ in range(2):
            request = raw_request(INFER_RAW, big, "Content-Encoding: zstd")
            writer.write(request[:500])
            assert (await reply(reader))[0] == 415, "before the body has come"
            writer.write(request[500:])
            await asyncio.wait_for(writer.drain(), 5)
        writer.write(raw_request())
        assert (await reply(reader))[0] == 200


@in_loop
async def test_an_idle_connection_holds_no_bytes_of_a_refused_body() -> None:
    body = np.zeros((400, 1, 64), "<f4").tobytes()
    async with listening() as (port, _, _), connected(port) as (reader, writer):
        writer.write(raw_request(INFER_RAW, body, "Content-Encoding: zstd"))
        assert (await reply(reader))[0] == 415
        await asyncio.sleep(0.05)
        # those of tests before
        gc.collect()
        (exchange,) = [one for one in gc.get_objects() if type(one) is edge.Exchange]
        assert not exchange.pieces


@pytest.mark.parametrize("path", [PREDICT, "/v1/models"])
def test_long_paths_are_not_cached(path: str) -> None:
    operations.target_of(path.encode())
    before = operations._cached.cache_info().currsize
    found = operations.target_of(path.replace("models", "m%6fdels").encode() + b"x" * 1000)
    assert not found.operations
    assert operations._cached.cache_info().currsize == before


@in_loop
async def test_tens_of_thousands_of_chunks_in_one_read_do_not_block_others() -> None:
    worst = 0.0

    async def look_on() -> None:
        nonlocal worst
        while True:
            before = asyncio.get_running_loop().time()
            await asyncio.sleep(0.001)
            worst = max(worst, asyncio.get_running_loop().time() - before)

    async with listening() as (port, _, _), connected(port) as (reader, writer):
        onlooker = asyncio.create_task(look_on())
        body = b"1\r\nx\r\n" * 40_000 + b"0\r\n\r\n"
        writer.write(raw_request(INFER_RAW, body, "Transfer-Encoding: chunked"))
        assert (await reply(reader))[0] == 400
        onlooker.cancel()
    # Quadratic work per chunk took six seconds.
    within(worst, 1.0)


@in_loop
async def test_an_unexpected_exception_is_a_500_with_the_request_id(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        engine.error = ZeroDivisionError("inside")
        writer.write(raw_request(INFER_RAW, FIELD.tobytes(), "X-Request-Id: find-me"))
        status, headers, body = await reply(reader)
        assert (status, headers["x-request-id"]) == (500, "find-me")
        assert b"inside" not in body
        assert "find-me" in json.loads(body)["error"]
        assert "ZeroDivisionError" in caplog.text
        engine.error = None
        writer.write(raw_request())
        assert (await reply(reader))[0] == 200, "the connection lives on"


@in_loop
async def test_a_reply_that_cannot_be_encoded_is_sent_and_counted_as_500(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    original, failures = AccessLog.headers, [ZeroDivisionError()]

    def fail_once(*args: Any) -> Any:
        if failures:
            raise failures.pop()
        return original(*args)

    monkeypatch.setattr(AccessLog, "headers", fail_once)
    async with listening() as (port, _, context), connected(port) as (reader, writer):
        writer.write(raw_request())
        assert (await reply(reader))[0] == 500
        of = {"model": "tiny-1d", "version": "2", "protocol": "oip", "code": "500"}
        assert context.metrics.registry.get_sample_value("turbofno_requests_total", of) == 1


@in_loop
async def test_a_bad_url_is_refused_and_never_answers_the_request_before_it() -> None:
    bad = b"GET http://host:port/ HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with listening() as (port, engine, _):
        async with connected(port) as (reader, writer):
            writer.write(bad)
            status, _, body = await reply(reader)
            assert (status, b"url" in body) == (400, True)
        engine.held = True
        async with connected(port) as (reader, writer):
            writer.write(raw_request() + bad)
            assert await reader.read() == b""


@in_loop
async def test_keys_are_required(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text(f"somebody {KEY} fields=1\n")
    async with (
        listening(api_keys_file=file) as (port, engine, _),
        connected(port) as (reader, writer),
    ):
        for line, expected in (
            ("Authorization: Bearer another-key-of-no-one", 401),
            (f"Authorization: Bearer {KEY}", 200),
        ):
            writer.write(raw_request(INFER_RAW, FIELD.tobytes(), line))
            assert (await reply(reader))[0] == expected
        (request,) = engine.requests
        assert (request.client, request.client_max_fields) == ("somebody", 1)


@in_loop
async def test_a_raw_body_needs_its_shape_also_after_an_equal_npy_body() -> None:
    raw = raw_request(INFER, npy(FIELD))
    asked = raw_request(PREDICT, npy(FIELD), "Content-Type: application/x-npy")
    async with listening() as (port, _, _), connected(port) as (reader, writer):
        for request, expected in ((raw, 400), (asked, 200), (raw, 400)):
            writer.write(request)
            assert (await reply(reader))[0] == expected


@in_loop
async def test_a_flood_of_pipelined_requests_is_read_as_it_is_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin, waiting = edge.Edge._begin, []

    def noted(self: edge.Edge, exchange: Any) -> None:
        begin(self, exchange)
        waiting.append(len(self._unanswered))

    monkeypatch.setattr(edge.Edge, "_begin", noted)
    # uvloop reads at most 256 KB at a time.
    one = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nPadding: " + b"x" * 450 + b"\r\n\r\n"
    at_once, count = 256 * 1024 // len(one), 6000
    async with listening() as (port, _, _), connected(port) as (reader, writer):
        writer.write(one * count)
        for _ in range(count):
            assert (await reply(reader))[0] == 200
    assert len(waiting) == count
    assert max(waiting) <= at_once + 1 + edge.MOST_PIPELINED


def padded(size: int, body: bytes = b"", more: str = "") -> bytes:
    """A request with a header of `size` bytes."""
    head = f"POST /healthz HTTP/1.1\r\nHost: localhost\r\n{more}Content-Length: {len(body)}\r\nX-Padding: "
    return (head + "x" * (size - len(head) - 4) + "\r\n\r\n").encode() + body


BODY = b"x" * 5000


@pytest.mark.parametrize("piece", [1, 100, 599, 7000, 10**6])
@pytest.mark.parametrize(
    ("before", "body", "more"),
    [
        (b"", b"", ""),
        (b"", BODY, ""),
        (b"", b"", "Connection: Upgrade\r\nUpgrade: h2c\r\n"),
        (padded(200), b"", ""),
        (padded(200, BODY), BODY, ""),
    ],
    ids=["alone", "with_body", "upgrade", "behind", "behind_a_body"],
)
@in_loop
async def test_the_limit_of_a_header_holds_however_its_bytes_arrive(
    monkeypatch: pytest.MonkeyPatch, before: bytes, body: bytes, more: str, piece: int
) -> None:
    made: list[edge.Edge] = []

    class Noted(edge.Edge):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            made.append(self)

    monkeypatch.setattr("turbofno.service.server.Edge", Noted)
    most, earlier = 600, 1 if before else 0
    async with listening(max_header_bytes=most) as (port, _, context):

        def refused() -> float:
            labels = {"reason": "header_too_large", "model": ""}
            name = "turbofno_rejections_total"
            return context.metrics.registry.get_sample_value(name, labels) or 0

        for size in (most, most + 1, 4000):
            given = before + padded(size, body, more) + padded(200)
            async with connected(port) as (reader, _):
                await until(lambda: bool(made))
                received, count = made.pop(), refused()
                for start in range(0, len(given), piece):
                    received.data_received(given[start : start + piece])
                assert refused() == count + (size > most)
                if size <= most:
                    statuses = [(await reply(reader))[0] for _ in range(earlier + 2)]
                    assert statuses == [405] * len(statuses)
                else:
                    # If a reply to an earlier request is due, the connection is only closed.
                    answers = (await reader.read()).count(b"HTTP/1.1 431")
                    assert answers == 1 or earlier


@pytest.mark.parametrize("garbage", [b"garbage\r\n\r\n", b"GET / HTTP/1.1\r\nX: " + b"x" * 70_000])
@in_loop
async def test_an_error_of_a_later_request_is_not_sent_as_the_reply_to_an_earlier_one(
    garbage: bytes,
) -> None:
    async with listening() as (port, engine, context), connected(port) as (reader, writer):
        engine.held = True
        writer.write(raw_request())
        await engine.started.wait()
        writer.write(garbage)
        assert await reader.read() == b""
        await until(lambda: not context.admission._requests)
    assert engine.cancelled == 1


@in_loop
async def test_only_a_request_that_no_other_can_join_is_taken_at_once() -> None:
    async with listening() as (port, engine, _), connected(port) as (reader, writer):
        writer.write(raw_request())
        await reply(reader)
        writer.write(3 * raw_request())
        for _ in range(3):
            await reply(reader)
        async with connected(port) as (other, its_writer):
            its_writer.write(raw_request())
            await reply(other)
    assert [one.at_once for one in engine.requests] == [True, False, False, False, False]
