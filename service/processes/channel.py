"""A ZeroMQ socket on the event loop: messages in and out, those of one turn of the loop in one piece."""

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
    from collections.abc import Callable, Iterator

_MESSAGES_A_TURN = 64
"""So that a full socket does not keep everything else on the loop waiting."""

logger = logging.getLogger(__name__)

# As plain numbers: zmq's own are of Python's enum, and to combine two takes longer than to send.
_READABLE, _AT_ONCE, _MORE = int(zmq.POLLIN), int(zmq.NOBLOCK), int(zmq.NOBLOCK) | int(zmq.SNDMORE)


class References(Protocol):
    """Values that do not travel, but are known on both sides: arrays and configurations."""

    def refer(self, value: Any) -> Any:
        """The value to send to `Channel.peer` in place of such a one."""
        ...

    def resolve(self, kind: type, reference: Any) -> Any:
        """The value of that kind for what `Channel.peer` sent. Raises ServiceError if its messages are of no use."""
        ...


class _Nothing:
    """Everything travels as it is."""

    def refer(self, value: Any) -> Any:
        raise NotImplementedError(f"a {type(value).__name__} does not travel")

    def resolve(self, kind: type, _: Any) -> Any:
        raise NotImplementedError(f"a {kind.__name__} does not travel")


def new_endpoint() -> str:
    """An address never used before, in Linux's abstract namespace: nothing of it lies on any file system."""
    return f"ipc://@turbofno-{secrets.token_hex(16)}"


class Channel:
    """One end. `listen` talks to many peers, each by its identity; `connect` to one, whose identity is empty.

    A connection is never made again: who wants to talk to a peer's successor opens another channel.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        receive: Callable[[bytes, list[Message]], None],
        references: References | None,
    ) -> None:
        self._socket = socket
        self.peer = b""
        """Whose messages are being written or read."""
        known = references or _Nothing()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=known.refer)
        self._decoder = msgspec.msgpack.Decoder(list[Message], dec_hook=known.resolve)
        self._many = socket.type == zmq.ROUTER
        self._receive = receive
        self._loop = asyncio.get_running_loop()
        self._outgoing: dict[bytes, list[Message]] = {}
        self._fd: int = socket.FD
        self._loop.add_reader(self._fd, self._take_in)
        # The descriptor tells of changes only; what came before is met here.
        self._loop.call_soon(self._take_in)

    @classmethod
    def listen(
        cls,
        endpoint: str,
        receive: Callable[[bytes, list[Message]], None],
        references: References | None = None,
    ) -> Channel:
        """Take messages in at `endpoint`, from processes of the same user only.

        `receive` is called with a peer's identity and all that it sent in one turn of its event loop.
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
        """Talk to the process that listens at `endpoint`."""
        socket = _socket(zmq.DEALER)
        socket.setsockopt(zmq.IDENTITY, identity)
        socket.setsockopt(zmq.RECONNECT_IVL, -1)
        socket.connect(endpoint)
        return cls(socket, receive, references)

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
            self.peer = to
            data = self._encoded(messages)
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
            self.peer = sender
            try:
                self._receive(sender, self._decoder.decode(data))
            except ServiceError as error:
                logger.warning("messages of %s are of no use: %s", sender, error)
            except Exception:
                # What else has come in must still be met: the descriptor will not tell of it again.
                logger.exception("a message of %s could not be dealt with", sender)
        self._loop.call_soon(self._take_in)

    def _encoded(self, messages: list[Message]) -> bytes:
        """All of them but what cannot be written, which must not take the others with it."""
        try:
            return self._encoder.encode(messages)
        except Exception:
            return self._encoder.encode(list(self._written(messages)))

    def _written(self, messages: list[Message]) -> Iterator[msgspec.Raw]:
        for message in messages:
            try:
                yield msgspec.Raw(self._encoder.encode(message))
            except Exception:
                logger.exception(
                    "a %s could not be written and is not sent", type(message).__name__
                )


def _socket(kind: int) -> zmq.Socket[bytes]:
    socket: zmq.Socket[bytes] = zmq.Context.instance().socket(kind)
    # How much can be on the way is bounded by what admission lets in.
    socket.setsockopt(zmq.SNDHWM, 0)
    socket.setsockopt(zmq.RCVHWM, 0)
    return socket
