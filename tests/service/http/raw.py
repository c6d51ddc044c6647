"""Raw requests on a connection, and their replies."""

from __future__ import annotations

import asyncio
import io
from functools import wraps
from typing import TYPE_CHECKING, Any

import numpy as np
import uvloop

from tests.draws import generator

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

FIELD = generator(__name__).standard_normal((1, 1, 16)).astype("<f4")
NPY = {"Content-Type": "application/x-npy"}
PREDICT, INFER = "/v1/models/tiny-1d:predict", "/v2/models/tiny-1d/infer"
INFER_RAW = INFER + "?shape=1,1,16"


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test on the event loop of the service, uvloop's: that of asyncio buffers without bound in Python 3.12.1."""

    @wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        uvloop.run(test(*args, **kwargs))

    return run


def npy(array: Any) -> bytes:
    stream = io.BytesIO()
    np.save(stream, array)
    return stream.getvalue()


def raw_request(path: str = INFER_RAW, body: bytes = FIELD.tobytes(), *lines: str) -> bytes:
    head = [
        f"POST {path} HTTP/1.1",
        "Host: localhost",
        "Inference-Header-Content-Length: 0",
        *lines,
    ]
    if not any(line.lower().startswith(("content-length", "transfer")) for line in lines):
        head.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*head, "", ""]).encode() + body


async def reply(reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
    status, *lines = (await reader.readuntil(b"\r\n\r\n")).decode().strip().split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return (
        int(status.split()[1]),
        headers,
        await reader.readexactly(int(headers["content-length"])),
    )


def values(body: bytes) -> Any:
    """The binary part of the answer: u and v on 16 points."""
    return np.frombuffer(body[-2 * 16 * 4 :], np.float32).reshape(1, 2, 16)
