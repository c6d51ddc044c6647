"""A large body of known size, received where its fields are used: no pieces to join, no copy but the kernel's."""

from __future__ import annotations

import asyncio
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofno.service.http.edge import Edge

_NOTHING = memoryview(b"")


class Reception(asyncio.BufferedProtocol):
    """Stands in for a connection's protocol until the rest of a body has come, all of it in its place.

    Meanwhile nothing is written, and the end of what the client sends is the end of the connection.
    """

    def __init__(self, edge: Edge, place: memoryview, start: int) -> None:
        """`place` is for the whole body, of which `start` bytes have come already, elsewhere."""
        # Weak, since uvloop's transport keeps a protocol that it had; over TLS it may announce a lost connection to that one.
        self._edge: Edge = weakref.proxy(edge)
        self._place = place
        self._start = self._stop = start

    def get_buffer(self, _: int) -> memoryview:
        return self._place[self._stop :]

    def buffer_updated(self, nbytes: int) -> None:
        self._stop += nbytes
        if self._stop == len(self._place):
            self.end()
            self._edge.body_received(self._stop)

    def end(self) -> memoryview:
        """Return what was received, and refer to its memory no more."""
        received, self._place = self._place[self._start : self._stop], _NOTHING
        return received

    def connection_lost(self, exc: Exception | None) -> None:
        self.end()
        self._edge.connection_lost(exc)
