"""Messages over real sockets: delivery to the right peer, whatever else is sent with them."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
import uvloop

from tests.service.waiting import until
from turbofno.service.processes import channel as channel_module
from turbofno.service.processes.channel import Channel, new_endpoint, of_this_user
from turbofno.service.processes.messages import Cancel, Message, Returned

pytestmark = pytest.mark.timeout(20)

UNWRITABLE = Returned(0, 1 << 70)

CANCELLED = msgspec.msgpack.encode([Cancel(7)])

Run = Callable[[Coroutine[Any, Any, None]], None]


def sockets() -> set[str]:
    """The Unix sockets of this process, by inode: channels open no others, what earlier tests left running does."""
    found = set()
    for descriptor in os.listdir("/proc/self/fd"):
        # One is that of the listing, and is gone.
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{descriptor}"))
    _, *listed = Path("/proc/net/unix").read_text().splitlines()
    return found & {f"socket:[{line.split()[6]}]" for line in listed}


@pytest.fixture(params=[None, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a coroutine on one of the event loops, which leaves no socket and no error of a callback."""

    def on_loop(main: Coroutine[Any, Any, None]) -> None:
        before, errors = sockets(), []
        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.get_loop().set_exception_handler(lambda _, error: errors.append(error))
            runner.run(main)
        assert not errors
        del runner
        # What is left open warns, which is an error here.
        gc.collect()
        assert sockets() <= before

    return on_loop


def stranger(endpoint: str) -> socket.socket:
    """A connection that does not read what it gets."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(endpoint.replace("@", "\0"))
    return connected


def framed(*frames: bytes) -> bytes:
    """Frames as on the socket."""
    return b"".join(len(frame).to_bytes(4, "little") + frame for frame in frames)


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
    listening = Channel(inbox.receive).listen(endpoint)
    peers = [
        Channel(other.receive).connect(endpoint, name)
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
    run: Run, caplog: pytest.LogCaptureFixture
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

    run(main())
    assert caplog.text.count("a Returned could not be encoded") == 2


def test_messages_to_an_unknown_peer_are_dropped(run: Run) -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, _, _, (a,)):
            listening.send(Returned(1, None), b"nobody")
            listening.send(Returned(2, None), b"a")
            assert await a.until(1) == [(b"", Returned(2, None))]

    run(main())


def test_foreign_messages_are_ignored(run: Run) -> None:
    async def main() -> None:
        async with connected() as (_, endpoint, inbox, _):
            foreign = stranger(endpoint)
            foreign.sendall(framed(b"foreign", b"garbage", b"", b"one"))
            foreign.sendall(b"a size, and less than that")
            mate = Channel(lambda *_: None).connect(endpoint, b"mate")
            for number in range(200):
                mate.send(Cancel(number))
                mate.flush()
            expected = [(b"mate", Cancel(number)) for number in range(200)]
            assert await inbox.until(200) == expected
            mate.close()
            foreign.close()

    run(main())


def test_a_message_larger_than_the_socket_takes_arrives_whole_and_in_order(run: Run) -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, _, _, (a,)):
            large = Returned(1, "x" * 5_000_000)
            for message in (large, Returned(2, None)):
                listening.send(message, b"a")
                listening.flush()
            assert await a.until(2) == [(b"", large), (b"", Returned(2, None))]

    run(main())


def test_messages_to_a_peer_that_left_are_dropped(run: Run) -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, endpoint, inbox, (a,)):
            peer = Channel(lambda *_: None).connect(endpoint, b"b")
            peer.send(Cancel(1))
            await inbox.until(1)
            peer.close()
            for number in range(3):
                for name in (b"a", b"b"):
                    listening.send(Returned(number, "x" * 1_000_000), name)
                listening.flush()
            assert len(await a.until(3)) == 3
            gone = Channel(lambda *_: None).connect(new_endpoint(), b"c")
            gone.send(Cancel(2))
            gone.flush()
            gone.close()

    run(main())


async def introduced(endpoint: str, inbox: Inbox) -> socket.socket:
    """A stranger whose identity and first message have been received."""
    peer = stranger(endpoint)
    peer.sendall(framed(b"peer", CANCELLED))
    await inbox.until(1)
    return peer


def sent_all(peer: socket.socket) -> int:
    """Send Cancel(7) until the socket takes no more. Returns how often."""
    frames = framed(CANCELLED) * 100
    peer.setblocking(False)
    sent = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            sent += peer.send(frames[sent % len(frames) :])
    return sent // len(framed(CANCELLED))


@pytest.mark.parametrize("unread", [b"", b"x"], ids=["all read", "unread"])
def test_what_a_peer_sent_before_it_died_arrives(run: Run, unread: bytes) -> None:
    async def main() -> None:
        async with connected() as (listening, endpoint, inbox, _):
            peer = await introduced(endpoint, inbox)
            if unread:
                # It dies with this unread, which resets the connection.
                listening.send(Returned(0, None), b"peer")
                listening.flush()
                await asyncio.sleep(0.05)
            sent = sent_all(peer)
            peer.close()
            assert len(await inbox.until(1 + sent)) == 1 + sent
            assert not listening._connections

    run(main())


def test_a_failed_write_loses_nothing_that_the_peer_had_sent(run: Run) -> None:
    async def main() -> None:
        async with connected() as (listening, endpoint, inbox, _):
            peer = await introduced(endpoint, inbox)
            sent = sent_all(peer)
            peer.close()
            # Before the event loop reads again.
            for _ in range(3):
                listening.send(Returned(0, None), b"peer")
                listening.flush()
            assert len(await inbox.until(1 + sent)) == 1 + sent
            assert not listening._connections

    run(main())


def test_a_write_that_fails_while_frames_are_handled_loses_none(run: Run) -> None:
    async def main() -> None:
        endpoint, found = new_endpoint(), []

        def receive(sender: bytes, messages: list[Message]) -> None:
            found.extend(messages)
            listening.send(Returned(0, None), sender)
            listening.flush()

        listening = Channel(receive).listen(endpoint)
        peer = stranger(endpoint)
        peer.sendall(framed(b"peer"))
        sent = sent_all(peer)
        peer.close()
        await until(lambda: len(found) == sent)
        listening.close()

    run(main())


def test_a_peer_is_lost_once_after_its_last_message(run: Run) -> None:
    async def main() -> None:
        endpoint, found, lost = new_endpoint(), [], []

        def receive(_: bytes, messages: list[Message]) -> None:
            assert not lost
            found.extend(messages)

        listening = Channel(receive, on_lost=lost.append).listen(endpoint)
        peer, stays = stranger(endpoint), stranger(endpoint)
        stays.sendall(framed(b"stays"))
        peer.sendall(framed(b"peer", CANCELLED))
        await until(lambda: bool(found))
        sent = sent_all(peer)
        peer.close()
        # A failed write ends the connection before all frames are handled.
        for _ in range(3):
            listening.send(Returned(0, None), b"peer")
            listening.flush()
        await until(lambda: bool(lost))
        assert len(found) == 1 + sent > 64
        await asyncio.sleep(0.05)
        assert b"stays" in listening._peers
        listening.close()
        await asyncio.sleep(0.05)
        assert lost == [b"peer"]
        stays.close()

    run(main())


def test_all_megabytes_of_a_killed_process_arrive(run: Run) -> None:
    large = msgspec.msgpack.encode([Returned(1, "x" * 3_000_000)])
    script = """if True:
        import os, socket, sys
        connected = socket.socket(socket.AF_UNIX)
        connected.connect("\\0" + sys.argv[1])
        connected.sendall(sys.stdin.buffer.read())
        os.kill(os.getpid(), 9)
    """

    async def main() -> None:
        async with connected() as (listening, endpoint, inbox, _):
            # A message to it stays unread: its end resets the connection.
            def answer(sender: bytes, messages: list[Message]) -> None:
                inbox.receive(sender, messages)
                listening.send(Returned(0, None), sender)

            listening._receive = answer
            process = await asyncio.create_subprocess_exec(
                sys.executable, "-c", script, endpoint[1:], stdin=asyncio.subprocess.PIPE
            )
            await process.communicate(framed(b"peer", CANCELLED, large, large, CANCELLED))
            assert process.returncode == -signal.SIGKILL
            assert [type(message) for _, message in await inbox.until(4)] == [
                Cancel, Returned, Returned, Cancel,
            ]  # fmt: skip

    run(main())


def test_a_frame_may_come_in_pieces(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with connected() as (_, endpoint, inbox, _):
            peer = stranger(endpoint)
            for byte in framed(b"peer", CANCELLED, CANCELLED):
                peer.sendall(bytes([byte]))
                await asyncio.sleep(0.002)
            assert await inbox.until(2) == [(b"peer", Cancel(7))] * 2
            peer.close()

    run(main())
    assert not caplog.records


def test_a_peer_that_sends_many_messages_does_not_block_the_event_loop(run: Run) -> None:
    async def main() -> None:
        async with connected() as (_, endpoint, inbox, _):
            peer = stranger(endpoint)
            peer.sendall(framed(b"peer"))
            sent, handled = sent_all(peer), [0]
            peer.close()
            async with asyncio.timeout(10):
                while handled[-1] < sent:
                    await asyncio.sleep(0)
                    handled.append(len(inbox.messages))
            assert max(after - before for before, after in pairwise(handled)) <= 64

    run(main())


def test_a_channel_that_its_receiver_closes_receives_no_more(run: Run) -> None:
    async def main() -> None:
        endpoint, found = new_endpoint(), []

        def receive(_: bytes, messages: list[Message]) -> None:
            found.extend(messages)
            listening.close()

        listening = Channel(receive).listen(endpoint)
        peer = stranger(endpoint)
        peer.sendall(framed(b"peer", *[CANCELLED] * 5))
        await until(lambda: bool(found))
        await asyncio.sleep(0.05)
        assert found == [Cancel(7)]
        peer.close()

    run(main())


def test_a_closed_channel_handles_nothing_of_a_peer_that_left_before(run: Run) -> None:
    async def main() -> None:
        async with connected() as (listening, endpoint, inbox, _):
            peer = await introduced(endpoint, inbox)
            sent = sent_all(peer)
            peer.close()
            listening.send(Returned(0, None), b"peer")
            (connection,) = listening._connections
            await until(lambda: connection._ended)
            listening.close()
            handled = len(inbox.messages)
            await asyncio.sleep(0.05)
            assert len(inbox.messages) == handled < sent

    run(main())


@pytest.mark.parametrize("turns", range(7))
def test_a_channel_that_closes_leaves_no_connection(run: Run, turns: int) -> None:
    async def main() -> None:
        endpoint, inbox = new_endpoint(), Inbox()
        listening = Channel(inbox.receive).listen(endpoint)
        peer = stranger(endpoint)
        peer.sendall(framed(b"peer", CANCELLED))
        mate = Channel(inbox.receive).connect(endpoint, b"mate")
        mate.send(Cancel(1))
        mate.flush()
        for _ in range(turns):
            await asyncio.sleep(0)
        for channel in (listening, mate):
            channel.close()
            channel.send(Cancel(2))
        inbox.messages.clear()
        peer.settimeout(0)
        for _ in range(50):
            await asyncio.sleep(0.001)
        with contextlib.suppress(ConnectionResetError):
            assert peer.recv(1) == b""
        assert not inbox.messages
        peer.close()
        with socket.socket(socket.AF_UNIX) as late, pytest.raises(ConnectionRefusedError):
            late.connect(endpoint.replace("@", "\0"))

    run(main())


@pytest.mark.parametrize("turns", range(4))
def test_the_event_loop_may_end_right_after_a_channel(run: Run, turns: int) -> None:
    async def main() -> None:
        endpoint = new_endpoint()
        listening = Channel(lambda *_: None).listen(endpoint)
        mate = Channel(lambda *_: None).connect(endpoint, b"mate")
        for _ in range(turns):
            await asyncio.sleep(0)
        mate.close()
        listening.close()

    run(main())


def test_what_was_flushed_arrives_from_a_channel_that_closes(run: Run) -> None:
    async def main() -> None:
        async with connected() as (_, endpoint, inbox, _):
            peer = Channel(lambda *_: None).connect(endpoint, b"peer")
            await asyncio.sleep(0.05)
            peer.send(Returned(1, "x" * 50_000))
            peer.flush()
            peer.close()
            assert await inbox.until(1) == [(b"peer", Returned(1, "x" * 50_000))]

    run(main())


def test_without_a_descriptor_a_channel_accepts_later(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    none_left = OSError(errno.EMFILE, "Too many open files")
    accept, times = socket.socket.accept, []

    def scarce(listening: socket.socket) -> tuple[socket.socket, Any]:
        times.append(time.monotonic())
        if len(times) < 4:
            raise BlockingIOError if len(times) == 1 else none_left
        return accept(listening)

    monkeypatch.setattr(socket.socket, "accept", scarce)
    monkeypatch.setattr(channel_module, "PAUSE_SECONDS", 0.05)

    async def main() -> None:
        async with connected(b"a"):
            assert times[3] - times[1] >= 0.09

    run(main())
    assert caplog.text.count("no connection can be accepted for now: [Errno 24] Too many") == 2


def test_a_process_of_another_user_is_refused(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with connected() as (_, endpoint, inbox, _):
            monkeypatch.setattr(os, "geteuid", lambda: -1)
            peer = stranger(endpoint)
            peer.sendall(framed(b"peer", CANCELLED))
            peer.settimeout(0)
            await asyncio.sleep(0.05)
            with contextlib.suppress(ConnectionResetError):
                assert peer.recv(1) == b""
            assert not inbox.messages
            peer.close()

    run(main())


def test_the_user_of_a_peer_counts_not_its_group() -> None:
    for user, of_this in ((os.geteuid(), True), (os.geteuid() + 1, False)):
        credentials = struct.pack("3i", 1, user, os.getegid() + of_this)
        assert of_this_user(Mock(getsockopt=lambda *_, found=credentials: found)) is of_this


def test_a_second_peer_of_the_same_name_is_refused(run: Run) -> None:
    async def main() -> None:
        async with connected(b"a") as (listening, endpoint, inbox, (a,)):
            other = Inbox()
            second = Channel(other.receive).connect(endpoint, b"a")
            second.send(Cancel(1))
            third = stranger(endpoint)
            third.sendall(framed(b"a", b"b", CANCELLED))
            listening.send(Returned(1, None), b"a")
            assert await a.until(1) == [(b"", Returned(1, None))]
            assert (inbox.messages, other.messages) == ([], [])
            second.close()
            third.close()

    run(main())
