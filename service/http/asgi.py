"""The ASGI transport, for hosts other than the service's own server."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

from turbofno.service.http.call import Bytes, Call, ClientLeft, Reply
from turbofno.service.http.operations import begin, target_of
from turbofno.service.http.problems import CLIENT_CLOSED_REQUEST, problem, stopped
from turbofno.service.logs import request_id

if TYPE_CHECKING:
    from collections.abc import Coroutine

    from starlette.types import ASGIApp, Receive, Scope, Send

    from turbofno.service.context import AppContext

T = TypeVar("T")

_BODILESS = {"GET", "HEAD", "OPTIONS"}
"""Methods of requests whose body is not read."""


class AsgiCall(Call):
    """A request whose body comes in ASGI messages."""

    __slots__ = ("_receive", "_whole")

    def __init__(self, scope: Scope, receive: Receive, context: AppContext) -> None:
        path: str = scope["path"]
        quoted = quote(path, errors="replace").encode()
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        super().__init__(
            context, scope["method"], path, scope.get("raw_path") or quoted, scope["query_string"],
            headers, target_of(quoted),
        )  # fmt: skip
        self._receive = receive
        self._whole = asyncio.Event()

    async def more(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        self.add(message.get("body", b""))
        if not message.get("more_body", False):
            self.skip_body()

    def skip_body(self) -> None:
        super().skip_body()
        self._whole.set()

    async def until_left(self) -> None:
        """Return when the client has left. Waits for the end of the body first: its reader detects the end of the client."""
        await self._whole.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass


class CallMiddleware:
    """Serves HTTP by the table of operations; passes other scopes, such as the lifespan, to the application."""

    def __init__(self, app: ASGIApp, *, context: AppContext) -> None:
        self._app = app
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = AsgiCall(scope, receive, self._context)
        token = request_id.set(call.request_id)
        sending = _Sending(call, send)
        try:
            if (reply := begin(call)) is not None:
                await sending.reply(reply)
            else:
                if call.method in _BODILESS:
                    call.skip_body()
                await unless_left(call, sending.execute())
        except ClientLeft:
            if not sending.started:
                await sending.reply(Reply(CLIENT_CLOSED_REQUEST))
        except Exception as error:
            if sending.started:
                raise
            await sending.reply(problem(call, error))
        except asyncio.CancelledError:
            if sending.started:
                raise
            # Not raised again, since it is answered: the server would log a traceback for each.
            await sending.reply(stopped(call))
        finally:
            self._context.access_log.close(call, sending.status, sending.size)
            request_id.reset(token)


class _Sending:
    """The reply to one request, as ASGI messages."""

    def __init__(self, call: Call, send: Send) -> None:
        self._call = call
        self._send = send
        self.status = CLIENT_CLOSED_REQUEST
        self.size = 0
        """Bytes of the body sent."""
        self.started = False

    async def execute(self) -> None:
        await self.reply(await self._call.operation.run(self._call))

    async def reply(self, reply: Reply) -> None:
        headers = [*reply.headers]
        if reply.stream is None and reply.status not in (204, CLIENT_CLOSED_REQUEST):
            headers.append((b"content-length", str(reply.size).encode()))
        headers += self._call.context.access_log.headers(self._call)
        self.status, self.started = reply.status, True
        start = {"type": "http.response.start", "status": reply.status, "headers": headers}
        await self._send(start)
        for piece in reply.body:
            await self._body(bytes(piece))
        if reply.stream is not None:
            async with aclosing(reply.stream) as stream:
                async for piece in stream:
                    await self._body(piece)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _body(self, piece: Bytes) -> None:
        if self._call.method != "HEAD":
            self.size += len(piece)
            # The server applies backpressure before the message that follows a body, not during it.
            await self._send({"type": "http.response.body", "body": piece, "more_body": True})


async def unless_left(call: AsgiCall, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of `work`, or cancel it and raise ClientLeft if the client leaves first."""
    working, watching = asyncio.create_task(work), asyncio.create_task(call.until_left())
    try:
        await asyncio.wait((working, watching), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)
        # Break the reference cycle of error and frame, which would hold the fields until a garbage collection.
        del work, working
