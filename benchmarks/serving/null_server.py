"""A server that answers each body with zeros of the same length: `python -m benchmarks.serving.null_server PORT LENGTH`.

Its rate is the highest that the load generator can measure.
"""

from __future__ import annotations

import asyncio
import sys
from typing import cast

import uvloop


class Null(asyncio.Protocol):
    """Counts the bytes of requests whose bodies have `length` bytes."""

    def __init__(self, length: int) -> None:
        self._length = length
        self._answer = f"HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n".encode() + bytes(
            length
        )
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if not self._left:
            # the small headers arrive in one piece
            self._left = self._length + data.index(b"\r\n\r\n") + 4
        self._left -= len(data)
        if not self._left:
            self._transport.write(self._answer)


async def main() -> None:
    """Serve until the process is ended."""
    port, length = int(sys.argv[1]), int(sys.argv[2])
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: Null(length), "127.0.0.1", port)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(main())
