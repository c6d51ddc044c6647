"""A minimal HTTP client with one connection for each request, cheap enough for open-loop load."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from tests.e2e.traffic import Call


class Answer(NamedTuple):
    """Status, headers with lower-case names, body, and seconds from connecting to the last byte."""

    status: int
    headers: dict[str, str]
    body: bytes
    seconds: float


def head_of(call: Call, **headers: str) -> bytes:
    """The request's header; keyword x_deadline_ms="5" becomes X-Deadline-Ms."""
    sent = {
        "Host": "localhost",
        "Connection": "close",
        "Content-Length": str(len(call.body)),
        **call.headers,
    }
    sent |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = "".join(f"{name}: {value}\r\n" for name, value in sent.items())
    return f"{call.method} {call.path} HTTP/1.1\r\n{lines}\r\n".encode()


async def send(port: int, call: Call, **headers: str) -> Answer:
    """Send the request and read its response."""
    started = time.perf_counter()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head_of(call, **headers) + call.body)
        return answer_of(await reader.read(), time.perf_counter() - started)
    finally:
        writer.close()


def answer_of(data: bytes, seconds: float) -> Answer:
    """Parse one complete response; fail on anything else."""
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    found = dict(line.lower().split(": ", 1) for line in lines)
    assert len(body) == int(found["content-length"]), f"cut off: {data[:300]!r}"
    return Answer(int(first.split()[1]), found, body, seconds)
