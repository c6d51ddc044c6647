"""A ZeroMQ socket on the event loop: messages in and out, those of one turn of the loop in one piece."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
from typing import TYPE_CHECKING

import msgspec
import zmq

from service.processes.messages import Message

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_MESSAGES_A_TURN = 64
"""So that a full socket does not keep everything else on the loop waiting."""

logger = logging.getLogger(__name__)

# As plain numbers: zmq's own are of Python's enum, and to combine two takes longer than to send.
_READABLE, _AT_ONCE, _MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(list[Message])


def new_endpoint() -> str:
    """An address never used before, in Linux's abstract namespace: nothing of it lies on any file system."""
    return f"ipc://@turbofno-{secrets.token_hex(16)}"


class Channel:
    """One end. `listen` talks to many peers, each by its identity; `connect` to one, whose identity is empty.

    A connection is never made again: who wants to talk to a peer's successor opens another channel.
    """

    def __init__(
        self, socket: zmq.Socket[bytes], receive: Callable[[bytes, Message], None]
    ) -> None:
        self._socket = socket
        self._many = socket.type == zmq.ROUTER
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[bytes, list[Message]] = {}
        self._fd: int = socket.FD
        self._loop.add_reader(self._fd, self._take_in)
        # The descriptor tells of changes only; what came before is met here.
        self._loop.call_soon(self._take_in)

    @classmethod
    def listen(cls, endpoint: str, receive: Callable[[bytes, Message], None]) -> Channel:
        """Take messages in at `endpoint`, from processes of the same user only."""
        socket = _socket(zmq.ROUTER)
        socket.setsockopt(zmq.IPC_FILTER_UID, os.getuid())
        socket.bind(endpoint)
        return cls(socket, receive)

    @classmethod
    def connect(
        cls, endpoint: str, identity: bytes, receive: Callable[[bytes, Message], None]
    ) -> Channel:
        """Talk to the process that listens at `endpoint`."""
        socket = _socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.connect(endpoint)
        return cls(socket, receive)

    def send(self, message: Message, to: bytes = b"") -> None:
        """Send after this turn of the loop. What a peer that is gone would get is dropped."""
        if not self._outgoing:
            self._loop.call_soon(self.flush)
        self._outgoing.setdefault(to, []).append(message)

    def flush(self) -> None:
        """Send now."""
        outgoing, self._outgoing = self._outgoing, {}
        if self._socket.closed:
            return
        for to, messages in outgoing.items():
            data = _encoded(messages)
            # It would block only for want of a peer: of one that closed its end.
            with contextlib.suppress(zmq.Again):
                if to:
                    self._socket.send(to, _MORE)
                self._socket.send(data, _AT_ONCE)
        if outgoing:
            # Sending may have used up the descriptor's news of something that came in.
            self._take_in()

    def close(self) -> None:
        """Send nothing more, take nothing in."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=0)

    def _take_in(self) -> None:
        for _ in range(_MESSAGES_A_TURN):
            if self._socket.closed:
                return
            if not int(self._socket.get(zmq.EVENTS)) & _READABLE:
                return
            sender = self._socket.recv() if self._many else b""
            data = self._socket.recv()
            # Of several parts, which nobody of ours sends, the last.
            while self._socket.get(zmq.RCVMORE):
                data = self._socket.recv()
            try:
                for message in _decoder.decode(data):
                    self._receive(sender, message)
            except Exception:
                # What else has come in must still be met: the descriptor will not tell of it again.
                logger.exception("a message of %s could not be dealt with", sender)
        self._loop.call_soon(self._take_in)


def _encoded(messages: list[Message]) -> bytes:
    """All of them but what cannot be written, which must not take the others with it."""
    try:
        return _encoder.encode(messages)
    except Exception:
        return _encoder.encode(list(_written(messages)))


def _written(messages: list[Message]) -> Iterator[msgspec.Raw]:
    for message in messages:
        try:
            yield msgspec.Raw(_encoder.encode(message))
        except Exception:
            logger.exception("a %s could not be written and is not sent", type(message).__name__)


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    # How much can be on the way is bounded by what admission lets in.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
