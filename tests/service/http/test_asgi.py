"""Work is cancelled when its client leaves; other cancellation is passed on."""

from __future__ import annotations

import asyncio
from typing import Any
from unittest.mock import Mock

import pytest

from turbofno.service.http.asgi import AsgiCall, unless_left
from turbofno.service.http.call import ClientLeft, Reply


class Client:
    """A client that leaves on demand."""

    def __init__(self) -> None:
        self.left = asyncio.Event()
        self.asked = 0

    async def receive(self) -> dict[str, Any]:
        self.asked += 1
        await self.left.wait()
        return {"type": "http.disconnect"}


class Work:
    """Work of a given duration that records if it was cancelled."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self.cancelled = False

    async def run(self) -> str:
        try:
            await asyncio.sleep(self._seconds)
        except asyncio.CancelledError:
            self.cancelled = True
            raise
        return "answer"


def call_of(client: Client) -> AsgiCall:
    """A call with a complete body from this client."""
    scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
    call = AsgiCall(scope, client.receive, Mock(), Mock())
    call.skip_body()
    return call


async def outcome(client: Client, work: Work) -> str:
    return await unless_left(call_of(client), work.run())


def test_work_continues_while_the_client_waits() -> None:
    async def main() -> tuple[str, int, int]:
        client = Client()
        answer = await outcome(client, Work(0.1))
        await asyncio.sleep(0)
        return answer, client.asked, len(asyncio.all_tasks())

    assert asyncio.run(main()) == ("answer", 1, 1)


@pytest.mark.parametrize("leaves_after", [0.0, 0.05])
def test_a_client_that_leaves_cancels_the_work(leaves_after: float) -> None:
    async def main() -> tuple[Work, int]:
        client, work = Client(), Work(5.0)
        asyncio.get_running_loop().call_later(leaves_after, client.left.set)
        with pytest.raises(ClientLeft):
            await asyncio.wait_for(outcome(client, work), 2)
        task = asyncio.current_task()
        assert task is not None
        return work, task.cancelling()

    work, cancelling = asyncio.run(main())
    assert work.cancelled
    assert not cancelling


def test_external_cancellation_is_not_a_disconnect() -> None:
    async def main() -> Work:
        work = Work(5.0)
        task = asyncio.create_task(outcome(Client(), work))
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return work

    assert asyncio.run(main()).cancelled


def test_an_error_of_the_work_is_raised() -> None:
    async def fail() -> None:
        await asyncio.sleep(0.05)
        raise ValueError("its own")

    async def main() -> None:
        with pytest.raises(ValueError, match="its own"):
            await unless_left(call_of(Client()), fail())

    asyncio.run(main())


def test_a_request_holds_the_bytes_of_its_reply_while_the_client_reads() -> None:
    async def main() -> None:
        sent: list[dict[str, Any]] = []
        reads = asyncio.Event()

        async def send(message: dict[str, Any]) -> None:
            sent.append(message)
            if message["type"] == "http.response.body":
                await reads.wait()

        context = Mock(**{"access_log.headers.return_value": [b"server: a: b"]})
        scope = {"method": "POST", "path": "/", "query_string": b"", "headers": []}
        call = AsgiCall(scope, Client().receive, send, context)
        call.admitted = Mock()
        answer = asyncio.create_task(call.reply(Reply(200, [b"content-type: c"], (b"1234",))))
        await asyncio.sleep(0)
        assert [message["type"] for message in sent] == [
            "http.response.start",
            "http.response.body",
        ]
        call.admitted.hold_answer.assert_called_once_with(4)
        headers = [[b"content-type", b"c"], [b"server", b"a: b"], [b"content-length", b"4"]]
        assert sent[0]["headers"] == headers
        reads.set()
        await answer

    asyncio.run(main())
