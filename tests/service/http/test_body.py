"""Bounded body reads, driven through raw ASGI messages."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from turbofno.service.engine.interface import heap_buffer
from turbofno.service.errors import (
    BadRequest,
    PayloadTooLarge,
    QueueFull,
    RequestTimeout,
    ServiceError,
    Unavailable,
    UnsupportedMediaType,
)
from turbofno.service.http.asgi import AsgiCall
from turbofno.service.http.body import declared_size, read_body
from turbofno.service.http.call import Call, ClientLeft
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.admission import Admission
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.settings import Settings
from turbofno.service.shared_sums import SharedSums

DATA = bytes(range(256)) * 40


def make_request(
    chunks: Sequence[bytes | None],
    headers: dict[str, str] | None = None,
    *,
    seconds_between: float = 0.0,
    body_timeout_seconds: float = 5.0,
) -> Call:
    """A request whose body arrives in `chunks`; None is a disconnect."""
    left = list(chunks)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(seconds_between)
        chunk = left.pop(0)
        if chunk is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": chunk, "more_body": bool(left)}

    settings, metrics = Settings(body_timeout_seconds=body_timeout_seconds), Metrics()
    context: Any = SimpleNamespace(
        settings=settings,
        metrics=metrics,
        admission=Admission(
            settings, metrics, QueueCapacity(settings, metrics), SharedSums(settings)
        ),
        engine=SimpleNamespace(buffer=heap_buffer),
    )
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "query_string": b"",
        "headers": [
            (k.encode(), v.encode("latin-1", "replace")) for k, v in (headers or {}).items()
        ],
    }
    return AsgiCall(scope, receive, Mock(), context)


class Admitted:
    """An admitted request that records each size held, and refuses more than `most`."""

    def __init__(self, most: int = 10**9) -> None:
        self.most = most
        self.held: list[int] = []

    def hold(self, size: int) -> None:
        if size > self.most:
            raise QueueFull("no capacity")
        self.held.append(size)

    def leave_slot(self) -> None:
        pass


def read(request: Call, budget: Admitted | None = None, **options: Any) -> memoryview:
    request.admitted = budget or Admitted()  # type: ignore[assignment]
    return asyncio.run(
        read_body(request, **{"limit": 100_000, "setting": "max_body_bytes", **options})
    )


@pytest.mark.parametrize("declared", [True, False], ids=["content-length", "chunked"])
@pytest.mark.parametrize("pieces", [1, 7])
def test_body_is_whole_writable_and_aligned(declared: bool, pieces: int) -> None:
    step = -(-len(DATA) // pieces)
    chunks = [DATA[i : i + step] for i in range(0, len(DATA), step)]
    headers = {"content-length": str(len(DATA))} if declared else {}
    request = make_request(chunks, headers)
    request.aligned_at = 13
    body = read(request)
    assert bytes(body) == DATA
    array = np.frombuffer(body, np.uint8, offset=13)
    assert array.flags.writeable
    assert array.ctypes.data % 64 == 0


@pytest.mark.parametrize("headers", [{"content-length": "30"}, {}], ids=["declared", "chunked"])
def test_bytes_are_held_as_they_arrive(headers: dict[str, str]) -> None:
    budget = Admitted()
    read(make_request([b"x" * 10] * 3, headers), budget)
    assert budget.held == [10, 20, 30]
    with pytest.raises(QueueFull):
        read(make_request([b"x" * 10] * 3, headers), Admitted(most=25))


def test_decompressed_body_is_held_at_its_full_size() -> None:
    budget, headers = Admitted(), {"content-encoding": "gzip"}
    read(make_request([gzip.compress(bytes(50_000))], headers), budget)
    assert budget.held[-1] == 50_000
    with pytest.raises(QueueFull):
        read(make_request([gzip.compress(bytes(50_000))], headers), Admitted(most=40_000))


def test_empty_body_is_empty() -> None:
    assert bytes(read(make_request([b""]))) == b""


def test_declared_length_over_the_limit_is_refused_before_reading() -> None:
    request = make_request([], {"content-length": "1001"})
    told = r"1001 bytes.*1000 \(TURBOFNO_MAX_BODY_BYTES\); send fewer fields .*coarser grid"
    with pytest.raises(PayloadTooLarge, match=told):
        read(request, limit=1000)
    reason = {"reason": "body_too_large", "model": ""}
    counted = request.context.metrics.registry.get_sample_value
    assert counted("turbofno_rejections_total", reason) == 1


def test_json_over_its_limit_is_refused_with_a_hint_to_binary() -> None:
    request = make_request([], {"content-length": "1001"})
    with pytest.raises(PayloadTooLarge, match=r"TURBOFNO_MAX_JSON_BYTES.*binary"):
        read(request, limit=1000, setting="max_json_bytes")


def test_chunked_body_over_the_limit_is_refused_while_reading() -> None:
    request = make_request([b"x" * 600] * 100)
    with pytest.raises(PayloadTooLarge):
        read(request, limit=1000)


@pytest.mark.parametrize(("declared", "sent"), [(10, 9), (10, 11)])
def test_wrong_content_length_is_a_bad_request(declared: int, sent: int) -> None:
    request = make_request([b"x" * sent], {"content-length": str(declared)})
    with pytest.raises(BadRequest, match="Content-Length says 10"):
        read(request)


@pytest.mark.parametrize("text", ["-1", "1.5", "abc", "", "٣"])
def test_content_length_that_is_not_a_number_is_a_bad_request(text: str) -> None:
    request = make_request([b"x"], {"content-length": text})
    with pytest.raises(BadRequest, match="whole number"):
        read(request)


def test_slow_body_times_out() -> None:
    request = make_request([b"x"] * 50, seconds_between=0.02, body_timeout_seconds=0.1)
    with pytest.raises(RequestTimeout, match="TURBOFNO_BODY_TIMEOUT_SECONDS"):
        read(request)


def test_unfinished_body_at_the_end_of_the_drain_time_is_503() -> None:
    async def main() -> None:
        request = make_request([b"a"] * 50, seconds_between=0.1, body_timeout_seconds=60)
        admission = request.context.admission
        asyncio.get_running_loop().call_later(0.05, admission.end)
        with pytest.raises(Unavailable, match="before the whole body had come") as caught:
            await asyncio.wait_for(read_body(request, limit=100, setting="max_body_bytes"), 2)
        assert caught.value.retry_after

    asyncio.run(main())


def test_disconnect_raises_client_left() -> None:
    with pytest.raises(ClientLeft):
        read(make_request([b"x", None]))


def raw_deflate(data: bytes) -> bytes:
    stream = zlib.compressobj(wbits=-15)
    return stream.compress(data) + stream.flush()


@pytest.mark.parametrize(
    ("coding", "compress"),
    [
        ("gzip", gzip.compress),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", raw_deflate),
        ("identity", bytes),
    ],
)
def test_compressed_body_is_decompressed(coding: str, compress: Any) -> None:
    request = make_request([compress(DATA)], {"content-encoding": coding})
    request.aligned_at = 5
    body = read(request)
    assert bytes(body) == DATA
    assert np.frombuffer(body, np.uint8, offset=5).ctypes.data % 64 == 0


def test_raw_deflate_that_begins_like_a_zlib_header_is_decompressed() -> None:
    bodies = [raw_deflate(data) for data in (DATA[i:] for i in range(256))]
    alike = [body for body in bodies if int.from_bytes(body[:2], "big") % 31 == 0]
    assert alike
    for body in alike:
        data = zlib.decompress(body, wbits=-15)
        assert bytes(read(make_request([body], {"content-encoding": "deflate"}))) == data


def test_decompressed_size_may_equal_the_limit_but_not_exceed_it() -> None:
    headers = {"content-encoding": "gzip"}
    data = gzip.compress(bytes(1000))
    assert len(read(make_request([data], headers), limit=1000)) == 1000
    with pytest.raises(PayloadTooLarge, match="decompressed"):
        read(make_request([data], headers), limit=999)


def test_compression_bomb_is_refused() -> None:
    bomb = gzip.compress(bytes(50_000_000))
    with pytest.raises(PayloadTooLarge, match="decompressed"):
        read(make_request([bomb], {"content-encoding": "gzip"}))


@pytest.mark.parametrize(
    "broken",
    [b"not gzip", gzip.compress(DATA)[:-9], gzip.compress(DATA) + b"rest", b"", b"\x78"],
    ids=["garbage", "cut", "trailing", "empty", "one byte"],
)
def test_broken_compressed_body_is_a_bad_request(broken: bytes) -> None:
    for coding in ("gzip", "deflate"):
        with pytest.raises(BadRequest):
            read(make_request([broken], {"content-encoding": coding}))


@pytest.mark.parametrize("coding", ["br", "gzip, gzip", "zstd", "nonsense"])
def test_unknown_coding_is_unsupported(coding: str) -> None:
    with pytest.raises(UnsupportedMediaType, match="gzip, deflate"):
        read(make_request([b"x"], {"content-encoding": coding}))


def test_declared_size_is_unknown_for_compressed_and_chunked_bodies() -> None:
    assert declared_size(make_request([b""], {"content-length": "7"})) == 7
    assert declared_size(make_request([b""])) is None
    compressed = {"content-length": "7", "content-encoding": "gzip"}
    assert declared_size(make_request([b""], compressed)) is None


def test_refusals_are_service_errors_with_a_client_status() -> None:
    for error in (PayloadTooLarge, BadRequest, RequestTimeout, UnsupportedMediaType):
        assert issubclass(error, ServiceError)
        assert 400 <= error.status < 500
