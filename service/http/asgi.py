"""The ASGI transport: serves the table of operations, and passes other requests to FastAPI."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import quote

from turbofno.service.http.call import Body, Call, ClientLeft, Reply
from turbofno.service.http.operations import begin, execute, target_of
from turbofno.service.http.problems import CLIENT_CLOSED_REQUEST, stopped, unexpected
from turbofno.service.logs import request_id

if TYPE_CHECKING:
    from collections.abc import Awaitable

    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from turbofno.service.context import AppContext
    from turbofno.service.http.call import Bytes

T = TypeVar("T")

_WAIT_BYTES = 32 * 1024
"""Longer bodies are sent on their own, so that the server can apply backpressure."""


class ReceivedBody(Body):
    __slots__ = ("_receive", "_whole")

    def __init__(self, receive: Receive) -> None:
        super().__init__()
        self._receive = receive
        self._whole = asyncio.Event()

    async def more(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self.add(message.get("body", b""))
        if not message.get("more_body", False):
            self.skip()

    def skip(self) -> None:
        super().skip()
        self._whole.set()

    async def until_left(self) -> None:
        """Return when the client has left. Waits for the end of the body first: its reader detects the end of the client."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


def call_of(scope: Scope, receive: Receive, context: AppContext) -> Call:
    path: str = scope["path"]
    raw_path = scope.get("raw_path") or quote(path, errors="replace").encode()
    headers = [(name.lower(), value) for name, value in scope["headers"]]
    target = target_of(quote(path, errors="replace").encode())
    return Call(
        context, scope["method"], path, raw_path, scope["query_string"], headers, ReceivedBody(receive), target
    )  # fmt: skip


class CallMiddleware:
    """The outermost layer: makes a `Call` of each request and serves those for the table of operations."""

    def __init__(self, app: ASGIApp, *, context: AppContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = call_of(scope, receive, self._context)
        token = request_id.set(call.request_id)
        sending = _Sending(call, send)
        try:
            await self._answer(call, scope, receive, sending)
        except ClientLeft:
            if not sending.started:
                await sending.reply(Reply(CLIENT_CLOSED_REQUEST))
        except Exception:
            if sending.started:
                raise
            await sending.reply(unexpected(call))
        except asyncio.CancelledError:
            if sending.started:
                raise
            # Not raised again, since it is answered: the server would log a traceback for each.
            await sending.reply(stopped(call))
        finally:
            self._context.access_log.close(call, sending.status, sending.size)
            request_id.reset(token)

    async def _answer(self, call: Call, scope: Scope, receive: Receive, sending: _Sending) -> None:
        reply = begin(call)
        if reply is not None:
            await sending.reply(reply)
        elif call.target is None:
            # FastAPI's GET routes do not serve HEAD; the server omits the body.
            method = "GET" if call.method == "HEAD" else call.method
            await self._app({**scope, "method": method}, receive, sending)
        else:

            async def answer() -> None:
                await sending.reply(await execute(call))

            assert isinstance(call.body, ReceivedBody)
            await unless_left(call.body, answer())


class _Sending:
    """ASGI's `send` for one request: adds the headers common to all replies, records status and size."""

    def __init__(self, call: Call, send: Send) -> None:
        self._call = call
        self._send = send
        self._bodiless = call.method == "HEAD"
        self.status = CLIENT_CLOSED_REQUEST
        self.size = 0
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.started = message["status"], True
            own = self._call.context.access_log.headers(self._call)
            message["headers"] = [*message.get("headers", ()), *own]
        elif message["type"] == "http.response.body":
            more = message.get("more_body", False)
            await self._body(message.get("body", b""), more=more)
            return
        await self._send(message)

    async def reply(self, reply: Reply) -> None:
        """Send a whole reply."""
        headers = reply.headers
        if reply.stream is None and reply.status not in (204, CLIENT_CLOSED_REQUEST):
            headers = [*headers, (b"content-length", str(reply.size).encode())]
        await self({"type": "http.response.start", "status": reply.status, "headers": headers})
        for piece in reply.body:
            await self._body(bytes(piece), more=True)
        if reply.stream is not None:
            async with aclosing(reply.stream) as stream:
                async for piece in stream:
                    await self._body(piece, more=True)
        await self._body(b"", more=False)

    async def _body(self, body: Bytes, *, more: bool) -> None:
        size = len(body)
        if self._bodiless:
            body = b""
        else:
            self.size += size
        if size > _WAIT_BYTES and not more:
            # The server applies backpressure before the message that follows a body, not during it.
            await self._send({"type": "http.response.body", "body": body, "more_body": True})
            body = b""
        await self._send({"type": "http.response.body", "body": body, "more_body": more})


async def unless_left(body: ReceivedBody, work: Awaitable[T]) -> T:
    """Return the result of `work`, or cancel it and raise ClientLeft if the client leaves first."""
    waiting = asyncio.current_task()
    assert waiting is not None
    left = False

    async def watch() -> None:
        nonlocal left
        await body.until_left()
        left = True
        waiting.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await work
    except asyncio.CancelledError:
        if left and not waiting.uncancel():
            raise ClientLeft from None
        raise
    finally:
        watching.cancel()
        # Break the reference cycle of error and frame, which would hold the fields until a garbage collection.
        del work
