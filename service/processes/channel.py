"""A ZeroMQ socket on the event loop; messages of one loop iteration are sent together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import zmq

from turbofno.service.errors import ServiceError
from turbofno.service.processes.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable

_MAX_MESSAGES = 64
"""Most messages read in one loop iteration, so that a busy socket does not block the loop."""

logger = logging.getLogger(__name__)

# As int: combining zmq's enum members takes longer than sending.
_READABLE, _AT_ONCE, _MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class References(Protocol):
    """Encodes values that both sides have, arrays and configurations, as references."""

    def refer(self, value: Any) -> Any:
        """The reference to send to `Channel.peer` in place of a value."""

    def resolve(self, kind: type, reference: Any) -> Any:
        """The value for a reference from `Channel.peer`. Raises ServiceError if there is none."""


def new_endpoint() -> str:
    """A new address in Linux's abstract socket namespace, which leaves nothing on a file system."""
    return f"ipc://@turbofno-{secrets.token_hex(16)}"


class Channel:
    """One end of a connection. `listen` serves many peers, by identity; `connect` has one, with an empty identity.

    It never reconnects: use another channel for the successor of a peer.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Callable[[bytes, list[Message]], None],
        references: References | None,
    ) -> None:
        self._socket = socket
        self.peer = b""
        """The peer whose messages are being encoded or decoded."""
        refer, resolve = (references.refer, references.resolve) if references else (None, None)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=refer)
        self._decoder = msgspec.msgpack.Decoder(list[Message], dec_hook=resolve)
        self._is_router = socket.type == zmq.ROUTER
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[bytes, list[Message]] = {}
        self._fd: int = socket.FD
        self._loop.add_reader(self._fd, self._read)
        # The descriptor is edge-triggered: read what arrived before.
        self._loop.call_soon(self._read)

    @classmethod
    def listen(
        cls,
        endpoint: str,
        receive: Callable[[bytes, list[Message]], None],
        references: References | None = None,
    ) -> Channel:
        """Listen at `endpoint`, for processes of the same user only.

        `receive` is called with a peer's identity and all messages of one iteration of its event loop.
        """
        socket = _socket(zmq.ROUTER)
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        socket.bind(endpoint)
        return cls(socket, receive, references)

    @classmethod
    def connect(
        cls,
        endpoint: str,
        identity: bytes,
        receive: Callable[[bytes, list[Message]], None],
        references: References | None = None,
    ) -> Channel:
        """Connect to the process that listens at `endpoint`."""
        socket = _socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.connect(endpoint)
        return cls(socket, receive, references)

    def send(self, message: Message, to: bytes = b"") -> None:
        """Send at the end of this loop iteration. Messages to a lost peer are dropped."""
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.setdefault(to, []).append(message)

    def flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        if self._socket.closed:
            return
        for to, messages in outgoing.items():
            self.peer = to
            data = self._encoded(messages)
            # Sending would block only if the peer closed its end.
            with contextlib.suppress(zmq.Again):
                if to:
                    self._socket.send(to, _MORE)
                self._socket.send(data, _AT_ONCE)
        if outgoing:
            # Sending may have consumed the edge of the descriptor for an arrived message.
            self._read()

    def close(self) -> None:
        """Stop sending and receiving."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=0)

    def _read(self) -> None:
        for _ in range(_MAX_MESSAGES):
            if self._socket.closed:
                return
            if not int(self._socket.get(zmq.EVENTS)) & _READABLE:
                return
            sender = self._socket.recv() if self._is_router else b""
            data = self._socket.recv()
            # We never send several parts; of foreign ones, read the last.
            while self._socket.get(zmq.RCVMORE):
                data = self._socket.recv()
            self.peer = sender
            try:
                self._receive(sender, self._decoder.decode(data))
            except ServiceError as error:
                logger.warning("messages of %s were dropped: %s", sender, error)
            except Exception:
                # Go on: the descriptor will not signal the remaining messages again.
                logger.exception("messages of %s could not be handled", sender)
        self._loop.call_soon(self._read)

    def _encoded(self, messages: list[Message]) -> bytes:
        """The encoded messages, without those that cannot be encoded."""
        with contextlib.suppress(Exception):
            return self._encoder.encode(messages)
        encoded = []
        for message in messages:
            try:
                encoded.append(msgspec.Raw(self._encoder.encode(message)))
            except Exception:
                logger.exception("a %s could not be encoded; dropped", type(message).__name__)
        return self._encoder.encode(encoded)


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    # No limit here: admission bounds the messages in flight.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
