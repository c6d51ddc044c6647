"""Bad requests in both protocols get a clear 4xx; concurrent good requests succeed."""

from __future__ import annotations

import asyncio
import socket
import time
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.e2e.traffic import FIELD, LENGTH, NPY, Call, bad_calls, good_calls, infer_call, judge

if TYPE_CHECKING:
    from tests.e2e.server_process import ServerProcess
    from turbofno.models.core.checkpoint import LoadedModel

BAD = bad_calls()


@pytest.mark.parametrize("call", BAD, ids=[call.name for call in BAD])
def test_bad_input_is_refused_clearly_and_good_requests_beside_it_succeed(
    server: ServerProcess, tiny: dict[str, LoadedModel], call: Call
) -> None:
    beside = good_calls(tiny)[:4]

    async def send() -> list[httpx.Response]:
        async with httpx.AsyncClient(base_url=server.url, timeout=30.0) as client:
            return await asyncio.gather(
                *(
                    client.request(one.method, one.path, content=one.body, headers=one.headers)
                    for one in (*beside[:2], call, *beside[2:])
                )
            )

    first, second, refused, third, fourth = asyncio.run(send())
    judge(call, refused)
    for good, response in zip(beside, (first, second, third, fourth), strict=True):
        judge(good, response)


@pytest.mark.parametrize("path", ["/v1/models/tiny-1d:predict", "/v2/models/tiny-1d/infer"])
def test_a_body_over_the_limit_is_refused_before_it_is_read(
    server: ServerProcess, path: str
) -> None:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-npy\r\n"
        f"{LENGTH}: 100\r\nContent-Length: {10**12}\r\n\r\n"
    )
    with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as connection:
        connection.sendall(head.encode())
        answer = b""
        while not answer.endswith(b"}") and (part := connection.recv(4096)):
            answer += part
    assert answer.startswith(b"HTTP/1.1 413 ")
    assert b"TURBOFNO_MAX_BODY_BYTES" in answer


def test_clients_that_disconnect_in_the_middle_of_a_body_do_no_harm(
    server: ServerProcess, tiny: dict[str, LoadedModel]
) -> None:
    call = infer_call("tiny-1d", FIELD, name="cut off")
    head = (
        f"POST {call.path} HTTP/1.1\r\nHost: localhost\r\n{LENGTH}: {call.headers[LENGTH]}\r\n"
        f"Content-Length: {len(call.body)}\r\n\r\n"
    )
    before = server.footprint().files
    for _ in range(20):
        with socket.create_connection(("127.0.0.1", server.port), timeout=10.0) as connection:
            connection.sendall(head.encode() + call.body[:50])
    good = good_calls(tiny)[0]
    with httpx.Client(base_url=server.url, timeout=30.0) as client:
        judge(good, client.post(good.path, content=good.body, headers=good.headers))
    until = time.monotonic() + 5.0
    while server.footprint().files > before and time.monotonic() < until:
        time.sleep(0.05)
    assert server.footprint().files <= before


def test_a_chunked_body_is_read_like_any_other(
    server: ServerProcess, tiny: dict[str, LoadedModel]
) -> None:
    good = good_calls(tiny)[0]
    pieces = (good.body[i : i + 7] for i in range(0, len(good.body), 7))
    judge(good, httpx.post(server.url + good.path, content=pieces, headers=NPY, timeout=30.0))


def test_a_chunked_body_over_the_limit_is_refused(server: ServerProcess) -> None:
    piece = bytes(1024 * 1024)
    response = httpx.post(
        f"{server.url}/v1/models/tiny-1d:predict",
        content=(piece for _ in range(65)),
        headers=NPY,
        timeout=30.0,
    )
    assert response.status_code == 413
    assert "TURBOFNO_MAX_BODY_BYTES" in response.json()["detail"]
