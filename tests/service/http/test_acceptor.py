"""Connections that wait together are accepted together."""

from __future__ import annotations

import asyncio
import socket
from contextlib import ExitStack
from typing import Any, cast

import pytest
import uvloop

from turbofno.service.http import acceptor
from turbofno.service.http.acceptor import Acceptor


class Greeter(asyncio.Protocol):
    """Writes `hello` to each connection."""

    made = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeter.made += 1
        cast("asyncio.Transport", transport).write(b"hello")


@pytest.mark.parametrize(
    ("most", "room", "at_once"), [(256, 100, True), (3, 100, False), (256, 0, False)]
)
def test_a_burst_is_accepted_in_a_few_turns(
    most: int, room: int, at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(acceptor, "_MOST", most)
    monkeypatch.setattr(acceptor, "_REFUSED", 3)
    Greeter.made = 0

    async def main() -> None:
        loop = asyncio.get_running_loop()
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        acceptor = Acceptor(Greeter, lambda: room, ssl=None)
        server = await loop.create_server(acceptor, "127.0.0.1", 0, backlog=64)
        acceptor.attend(server)
        address = server.sockets[0].getsockname()
        with ExitStack() as opened:
            opened.callback(server.close)
            clients = [
                opened.enter_context(socket.create_connection(address, timeout=10))
                for _ in range(40)
            ]
            # The event loop alone would accept one in each turn.
            for _ in range(8):
                await asyncio.sleep(0)
            assert Greeter.made == 40 if at_once else 8 < Greeter.made < 40
            for _ in range(100):
                await asyncio.sleep(0)
            assert Greeter.made == 40
            assert all(client.recv(5) == b"hello" for client in clients)
        await server.wait_closed()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        assert problems == []

    uvloop.run(main())
