"""A Unix socket on the event loop; messages of one loop iteration are sent together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import struct
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from turbofno.service.errors import ServiceError
from turbofno.service.processes.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable

_READ_BYTES = 64 * 1024
_SIZE_BYTES = 4

logger = logging.getLogger(__name__)


class References(Protocol):
    """Encodes values that both sides have, arrays and configurations, as references."""

    def refer(self, value: Any) -> Any:
        """The reference to send to `Channel.peer` in place of a value."""

    def resolve(self, kind: type, reference: Any) -> Any:
        """The value for a reference from `Channel.peer`. Raises ServiceError if there is none."""


def new_endpoint() -> str:
    """A new address in Linux's abstract socket namespace, which leaves nothing on a file system."""
    return f"@turbofno-{secrets.token_hex(16)}"


class Channel:
    """One end of a connection. `listen` serves many peers, by identity; `connect` has one, with an empty identity.

    It never reconnects: use another channel for the successor of a peer.
    """

    def __init__(
        self, receive: Callable[[bytes, list[Message]], None], references: References | None
    ) -> None:
        self.peer = b""
        """The peer whose messages are being encoded or decoded."""
        refer, resolve = (references.refer, references.resolve) if references else (None, None)
        self._encoder = msgspec.msgpack.Encoder(enc_hook=refer)
        self._decoder = msgspec.msgpack.Decoder(list[Message], dec_hook=resolve)
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[bytes, list[Message]] = {}
        self._socket = socket.socket(socket.AF_UNIX)
        self._connections: set[_Connection] = set()
        self._peers: dict[bytes, _Connection] = {}
        """By identity; without connections whose peer has not sent it."""

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
        channel = cls(receive, references)
        channel._socket.setblocking(False)
        channel._socket.bind(_address(endpoint))
        channel._socket.listen()
        channel._loop.add_reader(channel._socket, channel._accept)
        return channel

    @classmethod
    def connect(
        cls,
        endpoint: str,
        identity: bytes,
        receive: Callable[[bytes, list[Message]], None],
        references: References | None = None,
    ) -> Channel:
        """Connect to the process that listens at `endpoint`. If it is gone, messages are dropped."""
        channel = cls(receive, references)
        with contextlib.suppress(ConnectionRefusedError):
            channel._socket.connect(_address(endpoint))
            peer = channel._peers[b""] = _Connection(channel, channel._socket, b"")
            peer.send(identity)
        return channel

    def send(self, message: Message, to: bytes = b"") -> None:
        """Send at the end of this loop iteration. Messages to a lost peer are dropped."""
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.setdefault(to, []).append(message)

    def flush(self) -> None:
        """Send the messages so far."""
        outgoing, self._outgoing = self._outgoing, {}
        for self.peer, messages in outgoing.items():
            if connection := self._peers.get(self.peer):
                connection.send(self._encoded(messages))

    def close(self) -> None:
        """Stop sending and receiving."""
        for connection in list(self._connections):
            connection.close()
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._socket.close()

    def add(self, connection: _Connection) -> None:
        """Note a new connection."""
        self._connections.add(connection)

    def remove(self, connection: _Connection) -> None:
        """Note the end of a connection."""
        self._connections.discard(connection)
        if self._peers.get(connection.identity or b"") is connection:
            del self._peers[connection.identity or b""]

    def receive(self, connection: _Connection, frame: bytes) -> None:
        """Decode and handle messages; a peer's first frame is its identity."""
        sender = connection.identity
        if sender is None:
            if self._peers.setdefault(frame, connection) is connection:
                connection.identity = frame
            else:
                connection.close()
            return
        self.peer = sender
        try:
            self._receive(sender, self._decoder.decode(frame))
        except ServiceError as error:
            logger.warning("messages of %s were dropped: %s", sender, error)
        except Exception:
            logger.exception("messages of %s could not be handled", sender)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            accepted, _ = self._socket.accept()
            credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            _, user, _ = struct.unpack("3i", credentials)
            if user == os.getuid():
                _Connection(self, accepted)
            else:
                accepted.close()

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


class _Connection:
    """A connected socket of a channel. It carries frames, each behind its size."""

    def __init__(
        self, channel: Channel, connected: socket.socket, identity: bytes | None = None
    ) -> None:
        """`identity` is the peer's; None until it has sent it."""
        self.identity = identity
        self._channel = channel
        self._socket = connected
        self._loop = asyncio.get_running_loop()
        self._arrived = self._unsent = b""
        connected.setblocking(False)
        self._loop.add_reader(connected, self._read)
        channel.add(self)

    def send(self, frame: bytes) -> None:
        """Send a frame, after what the socket has not taken yet."""
        waits = bool(self._unsent)
        self._unsent += len(frame).to_bytes(_SIZE_BYTES, "little") + frame
        if not waits:
            self._write()

    def close(self) -> None:
        """End the connection."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
            self._channel.remove(self)

    def _write(self) -> None:
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:
            self.close()
            return
        self._unsent = self._unsent[sent:]
        if self._unsent:
            self._loop.add_writer(self._socket, self._write)
        else:
            self._loop.remove_writer(self._socket)

    def _read(self) -> None:
        try:
            data = self._socket.recv(_READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        arrived, start = self._arrived + data, 0
        while (begin := start + _SIZE_BYTES) <= len(arrived):
            stop = begin + int.from_bytes(arrived[start:begin], "little")
            if stop > len(arrived):
                break
            start = stop
            self._channel.receive(self, arrived[begin:stop])
        self._arrived = arrived[start:]


def _address(endpoint: str) -> str:
    """The address of a socket: in the abstract namespace it begins with NUL."""
    return endpoint.replace("@", "\0", 1)
