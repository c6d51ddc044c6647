"""Messages over real sockets: delivery to the right peer, whatever else is sent with them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq

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
            stranger = zmq.Context.instance().socket(zmq.DEALER)
            stranger.setsockopt(zmq.IDENTITY, b"stranger")
            stranger.connect(endpoint)
            for parts in ([b"garbage"], [b""], [b"one", b"two"], [b"one", b"two", b"three"]):
                stranger.send_multipart(parts)
            mate = Channel.connect(endpoint, b"mate", lambda *_: None)
            for number in range(200):
                mate.send(Cancel(number))
                mate.flush()
            expected = [(b"mate", Cancel(number)) for number in range(200)]
            assert await inbox.until(200) == expected
            mate.close()
            stranger.close(linger=0)

    asyncio.run(main())
