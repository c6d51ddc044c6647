"""Accepts connections that wait together in one turn of the event loop, which alone accepts one a turn.

A turn lasts as long as the requests of all busy connections, and the last of a thousand new ones would wait a thousand turns.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import Callable, Iterator
from typing import Any

_MOST = 64
"""Most connections that are accepted in one turn, beside the event loop's, so that a flood of them leaves time for requests."""
_REFUSED = 32
"""Most at once of those that will be refused: each takes a descriptor until it has its reply."""


class Acceptor:
    """A protocol factory that also accepts the connections that wait behind the event loop's."""

    def __init__(
        self, factory: Callable[[], asyncio.Protocol], room: Callable[[], int], **tls: Any
    ) -> None:
        """`room` returns how many more connections are served; `tls` are the TLS arguments of `loop.create_server`."""
        self._factory = factory
        self._room = room
        self._tls = tls
        self._server: asyncio.Server | None = None
        self._opening: set[asyncio.Task[None]] = set()

    def attend(self, server: asyncio.Server) -> None:
        """Accept from the sockets of this server."""
        self._server = server

    def __call__(self) -> asyncio.Protocol:
        """The protocol of the connection that the event loop has accepted."""
        # With TLS a connection is opening until its handshake ends, which a silent client delays: that takes room, but no turn.
        most = min(_MOST, max(_REFUSED, self._room()) - len(self._opening))
        for listening in () if self._server is None else self._server.sockets:
            with _borrowed(listening) as own, contextlib.suppress(OSError):
                # An error, such as a lack of descriptors, meets the event loop too, which handles it.
                for _ in range(most):
                    task = asyncio.create_task(self._open(own.accept()[0]))
                    self._opening.add(task)
                    task.add_done_callback(self._opening.discard)
        return self._factory()

    async def _open(self, accepted: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        # As for the event loop's own connections, a failed TLS handshake is its client's affair.
        with contextlib.suppress(OSError):
            transport, _ = await loop.connect_accepted_socket(self._factory, accepted, **self._tls)
            if self._server is not None and not self._server.is_serving():
                # It was closed meanwhile, as were the connections that it had: the shutdown would wait for this one.
                transport.close()


@contextlib.contextmanager
def _borrowed(listening: socket.socket) -> Iterator[socket.socket]:
    """A socket object for the event loop's descriptor, which only it may close."""
    own = socket.socket(listening.family, listening.type, listening.proto, listening.fileno())
    try:
        yield own
    finally:
        own.detach()
