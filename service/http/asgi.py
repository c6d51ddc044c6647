"""The ASGI transport, for hosts other than the service's own server."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar
from urllib.parse import quote

from starlette.types import ASGIApp, Receive, Scope, Send

from turbofno.service.context import AppContext
from turbofno.service.errors import Unavailable
from turbofno.service.http.call import Bytes, Call, ClientLeft, Reply
from turbofno.service.http.operations import begin, target_of
from turbofno.service.http.problems import CLIENT_CLOSED_REQUEST, problem, stopped
from turbofno.service.logs import request_id

logger = logging.getLogger(__name__)

T = TypeVar("T")

_BODILESS = {"GET", "HEAD", "OPTIONS"}
"""Methods of requests whose body is not read."""
_NOT_BEGUN = (
    "no model loads, because the lifespan of this application has not begun: switch the ASGI server's lifespan on, or, if another "
    "application mounts this one, enter this one's `app.router.lifespan_context(app)` in the lifespan of that one"
)


class AsgiCall(Call):
    """A request and its reply as ASGI messages."""

    def __init__(self, scope: Scope, receive: Receive, send: Send, context: AppContext) -> None:
        path, root = scope["path"], scope.get("root_path", "")
        # Servers and mounting applications leave it in the path, unless a proxy has cut it off.
        if path.startswith(f"{root}/"):
            path = path[len(root) :]
        quoted = quote(path, errors="replace").encode()
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        super().__init__(
            context, scope["method"], scope.get("raw_path") or quoted, scope["query_string"], headers,
            target_of(quoted),
        )  # fmt: skip
        self.root_path = root.rstrip("/")
        if scope.get("http_version") != "1.1":
            # Only HTTP/1.1 requires it.
            self.headers.setdefault(b"host", b"")
        self._receive, self._send = receive, send
        self._whole = asyncio.Event()
        self.status = CLIENT_CLOSED_REQUEST
        self.sent = 0
        """Bytes of the reply's body."""
        self.started_reply = False

    async def more(self) -> None:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientLeft
        # bytes, by ASGI: nobody changes them
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

    async def serve(self) -> None:
        await self.reply(await self.operation.run(self))

    async def reply(self, reply: Reply) -> None:
        """Send a reply. Closes its stream, however far it came."""
        try:
            lines = [*reply.headers, *self.context.access_log.headers(self)]
            if reply.stream is None:
                # Instead of the body's bytes.
                self.admitted.hold_answer(reply.size)
                if reply.status not in (204, CLIENT_CLOSED_REQUEST):
                    lines.append(b"content-length: %d" % reply.size)
            headers = [line.split(b": ", 1) for line in lines]
            self.status, self.started_reply = reply.status, True
            start = {"type": "http.response.start", "status": reply.status, "headers": headers}
            await self._send(start)
            for piece in reply.body:
                await self._send_piece(piece)
            if reply.stream is not None:
                async for piece in reply.stream:
                    await self._send_piece(piece)
            await self._send({"type": "http.response.body", "body": b"", "more_body": False})
        finally:
            if reply.stream is not None:
                await reply.stream.aclose()

    async def _send_piece(self, piece: Bytes) -> None:
        if self.method != "HEAD":
            self.sent += len(piece)
            # The server applies backpressure before the message that follows a body, not during it.
            body = {"type": "http.response.body", "body": bytes(piece), "more_body": True}
            await self._send(body)


class CallMiddleware:
    """Serves HTTP by the table of operations; passes other scopes, such as the lifespan, to the application."""

    def __init__(self, app: ASGIApp, *, context: AppContext) -> None:
        self._app = app
        self._context = context
        self._logged = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        call = AsgiCall(scope, receive, send, self._context)
        token = request_id.set(call.request_id)
        try:
            reply = await self._serve(call)
            # Behind the error's end, so that its fields are not held while the client reads.
            if reply is not None:
                await call.reply(reply)
        finally:
            self._context.access_log.close(call, call.status, call.sent)
            request_id.reset(token)

    async def _serve(self, call: AsgiCall) -> Reply | None:
        """Serve a request. Returns the reply that is not sent yet: one that needs no body, or an error's."""
        try:
            self._check_begun()
            if (reply := begin(call)) is not None:
                return reply
            if call.method in _BODILESS:
                call.skip_body()
            await unless_left(call, call.serve())
        except ClientLeft:
            call.status = CLIENT_CLOSED_REQUEST
            return None if call.started_reply else Reply(CLIENT_CLOSED_REQUEST)
        except (Exception, asyncio.CancelledError) as error:
            if call.started_reply:
                raise
            # A cancellation that is answered is not raised again: the server would log a traceback for each.
            return problem(call, error) if isinstance(error, Exception) else stopped(call)
        return None

    def _check_begun(self) -> None:
        """Raise Unavailable if nothing starts the engine: one that `create_app` was given may run without the lifespan."""
        if self._context.begun.is_set() or self._context.engine.ready:
            return
        if not self._logged:
            self._logged = True
            logger.error(_NOT_BEGUN)
        raise Unavailable(_NOT_BEGUN)


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
