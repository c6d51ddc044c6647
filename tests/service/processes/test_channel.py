"""Messages over real sockets: delivery to the right peer, whatever else is sent with them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tests.service.waiting import until
from turbofno.service.processes.channel import Channel, new_endpoint
from turbofno.service.processes.messages import Cancel, Message, Returned

pytestmark = pytest.mark.timeout(20)

UNWRITABLE = Returned(0, 1 << 70)


class Inbox:
    """Received messages, with their senders."""

    def __init__(self) -> None:
        self.messages: list[tuple[bytes, Message]] = []

    def receive(self, sender: bytes, messages: list[Message]) -> None:
        self.messages.extend((sender, message) for message in messages)

    async def until(self, count: int) -> list[tuple[bytes, Message]]:
        """Wait for that many messages, and a moment for more."""
        await until(lambda: len(self.messages) >= count)
        await asyncio.sleep(0.05)
        return self.messages


@asynccontextmanager
async def connected(*names: bytes) -> AsyncIterator[tuple[Channel, str, Inbox, list[Inbox]]]:
    """A listening channel that knows all peers, its address and inbox, and the peers' inboxes."""
    endpoint, inbox, others = new_endpoint(), Inbox(), [Inbox() for _ in names]
    listening = Channel.listen(endpoint, inbox.receive)
    peers = [
        Channel.connect(endpoint, name, other.receive)
        for name, other in zip(names, others, strict=True)
    ]
    try:
        for peer in peers:
            peer.send(Cancel(0))
        await inbox.until(len(names))
        inbox.messages.clear()
        yield listening, endpoint, inbox, others
    finally:
        for channel in (*peers, listening):
            channel.close()


def test_a_message_that_cannot_be_encoded_does_not_drop_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def main() -> None:
        async with connected(b"a", b"b") as (listening, _, _, (a, b)):
            for message in (Returned(1, "x"), UNWRITABLE, Returned(2, "y")):
                listening.send(message, b"a")
            listening.send(UNWRITABLE, b"b")
            listening.flush()
            listening.send(Returned(3, "z"), b"b")
            assert await a.until(2) == [(b"", Returned(1, "x")), (b"", Returned(2, "y"))]
            assert await b.until(1) == [(b"", Returned(3, "z"))]

    asyncio.run(main())
    assert caplog.text.count("a Returned could not be encoded") == 2


def test_messages_to_an_unknown_peer_are_dropped() -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, _, _, (a,)):
            listening.send(Returned(1, None), b"nobody")
            listening.send(Returned(2, None), b"a")
            assert await a.until(1) == [(b"", Returned(2, None))]

    asyncio.run(main())


def test_foreign_messages_are_ignored() -> None:
    async def main() -> None:
        async with connected() as (_, endpoint, inbox, _):
            stranger = socket.socket(socket.AF_UNIX)
            stranger.connect(endpoint.replace("@", "\0"))
            for frame in (b"stranger", b"garbage", b"", b"one"):
                stranger.sendall(len(frame).to_bytes(4, "little") + frame)
            stranger.sendall(b"a size, and less than that")
            mate = Channel.connect(endpoint, b"mate", lambda *_: None)
            for number in range(200):
                mate.send(Cancel(number))
                mate.flush()
            expected = [(b"mate", Cancel(number)) for number in range(200)]
            assert await inbox.until(200) == expected
            mate.close()
            stranger.close()

    asyncio.run(main())


def test_a_message_larger_than_the_socket_takes_arrives_whole_and_in_order() -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, _, _, (a,)):
            large = Returned(1, "x" * 5_000_000)
            for message in (large, Returned(2, None)):
                listening.send(message, b"a")
                listening.flush()
            assert await a.until(2) == [(b"", large), (b"", Returned(2, None))]

    asyncio.run(main())


def test_messages_to_a_peer_that_left_are_dropped() -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, endpoint, inbox, (a,)):
            peer = Channel.connect(endpoint, b"b", lambda *_: None)
            peer.send(Cancel(1))
            await inbox.until(1)
            peer.close()
            for number in range(3):
                for name in (b"a", b"b"):
                    listening.send(Returned(number, "x" * 1_000_000), name)
                listening.flush()
            assert len(await a.until(3)) == 3
            gone = Channel.connect(new_endpoint(), b"c", lambda *_: None)
            gone.send(Cancel(2))
            gone.flush()
            gone.close()

    asyncio.run(main())


def test_a_second_peer_of_the_same_name_is_refused() -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, endpoint, inbox, (a,)):
            other = Inbox()
            second = Channel.connect(endpoint, b"a", other.receive)
            second.send(Cancel(1))
            listening.send(Returned(1, None), b"a")
            assert await a.until(1) == [(b"", Returned(1, None))]
            assert (inbox.messages, other.messages) == ([], [])
            second.close()

    asyncio.run(main())
