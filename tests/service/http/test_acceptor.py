"""Connections that wait together are accepted together."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import ExitStack, suppress
from typing import Any, cast

import pytest
import uvloop

from tests.service.waiting import until
from turbofno.service.http import acceptor
from turbofno.service.http.acceptor import Acceptor


class Greeter(asyncio.Protocol):
    """Writes `hello` to each connection."""

    made = lost = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        Greeter.made += 1
        cast("asyncio.Transport", transport).write(b"hello")

    def connection_lost(self, _: Exception | None) -> None:
        Greeter.lost += 1


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


def test_clients_that_never_begin_tls_delay_no_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acceptor, "_MOST", 8)

    async def main() -> None:
        loop = asyncio.get_running_loop()
        tls: dict[str, Any] = {
            "ssl": ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER),
            "ssl_handshake_timeout": 60.0,
        }
        acceptor = Acceptor(Greeter, lambda: 100, **tls)
        server = await loop.create_server(acceptor, "127.0.0.1", 0, backlog=64, **tls)
        acceptor.attend(server)
        address = server.sockets[0].getsockname()
        with ExitStack() as opened:
            opened.callback(server.close)

            def connect() -> socket.socket:
                return opened.enter_context(socket.create_connection(address, timeout=10))

            for _ in range(40):
                connect()
            for _ in range(50):
                await asyncio.sleep(0)
            others = [connect() for _ in range(30)]
            for other in others:
                other.sendall(b"GET / HTTP/1.1\r\n\r\n")
                other.setblocking(False)
            for _ in range(20):
                await asyncio.sleep(0)
            for other in others:
                # Closed, since these bytes are no TLS; it would block if the connection had not been accepted.
                with suppress(ConnectionResetError):
                    assert other.recv(1) == b""

    uvloop.run(main())


def test_connections_that_are_opened_while_the_server_closes_are_closed() -> None:
    Greeter.made = Greeter.lost = 0

    async def main() -> None:
        loop = asyncio.get_running_loop()

        def closing() -> Greeter:
            loop.call_soon(server.close)
            return Greeter()

        acceptor = Acceptor(closing, lambda: 100, ssl=None)
        server = await loop.create_server(acceptor, "127.0.0.1", 0, backlog=64)
        acceptor.attend(server)
        address = server.sockets[0].getsockname()
        with ExitStack() as opened:
            for _ in range(40):
                opened.enter_context(socket.create_connection(address, timeout=10))
            # All but the event loop's own.
            await until(lambda: (Greeter.made, Greeter.lost) == (40, 39))

    uvloop.run(main())
