"""Messages over a Unix socket; those of one iteration of the event loop are sent together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
import struct
from collections.abc import Callable
from typing import Any, Self

import msgspec

from turbofno.service.errors import ServiceError
from turbofno.service.processes.messages import Message

_STREAM = socket.SOCK_STREAM | socket.SOCK_NONBLOCK
_SIZE = struct.Struct("<I")
"""Comes before every frame."""
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a peer."""
_ALL_BYTES = 1 << 24
"""More than a socket holds."""
_MAX_FRAMES = 64
"""Most frames of a peer handled in one loop iteration, so that a busy one does not block the loop."""
PAUSE_SECONDS = 1.0
"""Time until connections are accepted or made again when no descriptor was left."""

logger = logging.getLogger(__name__)


def new_endpoint() -> str:
    """A new address in Linux's abstract socket namespace, which leaves nothing on a file system."""
    return f"@turbofno-{secrets.token_hex(16)}"


def address(endpoint: str) -> str:
    """The address of a socket: in the abstract namespace it begins with NUL."""
    return endpoint.replace("@", "\0", 1)


def of_this_user(connected: socket.socket) -> bool:
    """True if the peer runs as the user that this process runs as."""
    credentials = connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return bool(_CREDENTIALS.unpack(credentials)[1] == os.geteuid())


class Channel:
    """One end of a connection. `listen` serves many peers, by identity; `connect` has one, with an empty identity.

    It never reconnects: use another channel for the successor of a peer.
    """

    def __init__(
        self,
        receive: Callable[[bytes, list[Message]], None],
        refer: Callable[[Any], Any] | None = None,
        resolve: Callable[[type, Any], Any] | None = None,
        on_lost: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        """`receive` is called with a peer's identity and all messages of one iteration of its event loop.

        Arrays and configurations, which both sides have, are sent as references: `refer` returns the one to send to `peer`
        in place of a value, `resolve` the value for one from `peer`; it raises ServiceError if there is none.
        `on_lost` is called with a peer's identity when it is gone, after its last messages.
        """
        self.peer = b""
        """The peer whose messages are being encoded or decoded."""
        self._encoder = msgspec.msgpack.Encoder(enc_hook=refer)
        self._decoder = msgspec.msgpack.Decoder(list[Message], dec_hook=resolve)
        self._receive, self._on_lost = receive, on_lost
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[bytes, list[Message]] = {}
        self._listening: socket.socket | None = None
        self._connections: set[_Connection] = set()
        self._peers: dict[bytes, _Connection] = {}
        """By identity; without connections whose peer has not sent it."""

    def listen(self, endpoint: str) -> Self:
        """Listen at `endpoint`, for processes of the same user only. Returns the channel."""
        self._listening = socket.socket(socket.AF_UNIX, _STREAM)
        self._listening.bind(address(endpoint))
        self._listening.listen()
        self._watch()
        return self

    def connect(self, endpoint: str, identity: bytes) -> Self:
        """Connect to the process that listens at `endpoint`; if there is none, messages are dropped. Returns the channel."""
        connected = socket.socket(socket.AF_UNIX, _STREAM)
        try:
            connected.connect(address(endpoint))
        except (ConnectionRefusedError, BlockingIOError):
            # Nobody listens, or too many wait to be accepted.
            connected.close()
        else:
            connection = self._peers[b""] = _Connection(self, connected, b"")
            connection.send(identity)
        return self

    def send(self, message: Message, to: bytes = b"") -> None:
        """Send at the end of this loop iteration. Messages to a lost peer are dropped.

        What a peer does not read is kept, without a limit: admission bounds the messages in flight.
        """
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.setdefault(to, []).append(message)

    def flush(self) -> None:
        outgoing, self._outgoing = self._outgoing, {}
        for to, messages in outgoing.items():
            if connection := self._peers.get(to):
                self.peer = to
                connection.send(self._encoded(messages))

    def close(self) -> None:
        """Stop sending and receiving. What the socket has not taken yet is dropped."""
        self._peers.clear()
        for connection in list(self._connections):
            connection.close()
        if self._listening is not None:
            self._loop.remove_reader(self._listening)
            self._listening.close()
            self._listening = None

    def ended(self, connection: _Connection) -> None:
        """Note the end of a connection whose frames have all been handled."""
        self._connections.discard(connection)
        identity = connection.identity
        if identity is not None and self._peers.get(identity) is connection:
            del self._peers[identity]
            self._on_lost(identity)

    def received(self, connection: _Connection, frame: bytearray) -> None:
        """Decode and handle messages; a peer's first frame is its identity."""
        sender = connection.identity
        if sender is None:
            sender = bytes(frame)
            if sender in self._peers:
                connection.close()
                return
            connection.identity = sender
            self._peers[sender] = connection
            return
        self.peer = sender
        try:
            self._receive(sender, self._decoder.decode(frame))
        except ServiceError as error:
            logger.warning("messages of %s were dropped: %s", sender, error)
        except Exception:
            logger.exception("messages of %s could not be handled", sender)

    def _watch(self) -> None:
        if self._listening is not None:
            self._loop.add_reader(self._listening, self._accept, self._listening)

    def _accept(self, listening: socket.socket) -> None:
        try:
            accepted, _ = listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            # No descriptor is left. The loop would call this again at once.
            logger.error("no connection can be accepted for now: %s", error)
            self._loop.remove_reader(listening)
            self._loop.call_later(PAUSE_SECONDS, self._watch)
            return
        if of_this_user(accepted):
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


class _Connection(asyncio.Protocol):
    """A connected socket of a channel. It carries frames, each behind its size."""

    def __init__(
        self, channel: Channel, connected: socket.socket, identity: bytes | None = None
    ) -> None:
        """`identity` is the peer's; None until it has sent it."""
        self.identity = identity
        self._channel = channel
        self._socket = connected
        self._transport: asyncio.Transport | None = None
        self._unsent = b""
        """Frames from before there is a transport."""
        self._arrived = bytearray()
        self._closed = self._ended = False
        channel._connections.add(self)
        self._loop = asyncio.get_running_loop()
        self._opening = self._loop.create_task(
            self._loop.create_unix_connection(lambda: self, sock=connected)
        )
        self._opening.add_done_callback(self._on_open)

    def send(self, frame: bytes) -> None:
        """Send a frame. It is dropped if the peer is gone."""
        data = _SIZE.pack(len(frame)) + frame
        if self._transport is None:
            self._unsent += data
        elif not self._ended:
            self._transport.write(data)

    def close(self) -> None:
        """End the connection at once: frames that arrived are not handled any more."""
        self._closed = True
        if self._transport is None:
            self._opening.cancel()
        else:
            self._transport.abort()

    def _on_open(self, _: asyncio.Task[object]) -> None:
        if self._transport is None:
            # It was closed before.
            self._socket.close()
            self._channel.ended(self)

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        if self._closed:
            transport.abort()
        else:
            transport.write(self._unsent)

    def data_received(self, data: bytes) -> None:
        self._arrived += data
        self._handle()

    def eof_received(self) -> None:
        # Nobody reads what is unsent.
        assert self._transport is not None
        self._transport.abort()

    def connection_lost(self, _: Exception | None) -> None:
        if not self._closed:
            # If a write failed, since the peer is gone, what it had sent before is still unread.
            with contextlib.suppress(OSError):
                self.data_received(self._socket.recv(_ALL_BYTES))
        self._ended = True
        self._handle()

    def _handle(self) -> None:
        """Handle the frames that have arrived, or some of them now and the others soon; behind the last one note the end."""
        assert self._transport is not None
        for _ in range(_MAX_FRAMES):
            frame = self._next_frame()
            if frame is None:
                if self._ended:
                    self._channel.ended(self)
                else:
                    self._transport.resume_reading()
                return
            self._channel.received(self, frame)
        if not self._ended:
            self._transport.pause_reading()
        self._loop.call_soon(self._handle)

    def _next_frame(self) -> bytearray | None:
        """Take the next frame that has wholly arrived, if there is one."""
        arrived, begin = self._arrived, _SIZE.size
        if self._closed or len(arrived) < begin:
            return None
        end = begin + _SIZE.unpack_from(arrived)[0]
        if len(arrived) < end:
            return None
        frame = arrived[begin:end]
        del arrived[:end]
        return frame
