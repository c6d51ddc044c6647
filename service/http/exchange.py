"""A request and its reply on a connection: the body as it arrives, the task, the bytes sent."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

import httptools
from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from turbofno.service.engine.interface import heap_buffer
from turbofno.service.errors import ServiceError
from turbofno.service.http.access_log import shown_path
from turbofno.service.http.call import Bytes, Call, Reply
from turbofno.service.http.eager_task import EagerTask
from turbofno.service.http.operations import begin, target_of
from turbofno.service.http.problems import CLIENT_CLOSED_REQUEST, problem, stopped
from turbofno.service.logs import request_id
from turbofno.service.pipeline.admission import UNCOUNTED

if TYPE_CHECKING:
    from turbofno.service.http.edge import Edge

logger = logging.getLogger(__name__)

CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_UNREAD_BYTES = 256 * 1024
"""Unread body bytes at which reading pauses: about two reads of the socket. A declared body of at most so many is awaited
before its operation starts, which then needs no task; a larger one too, if it is received in its place."""
_RECEIVED_BYTES = 5 * 1024 * 1024
"""Most bytes of a body that is received in its place."""
_COME_BYTES = 64 * 1024
"""Bytes of a large body that must have come before memory is taken for the rest: an announced body that never comes must not
occupy the engine's memory."""
_TLS_BYTES = 64 * 1024
"""Bytes written at once over TLS, which buffers the whole of a write, however little the client has read: only the next waits."""


class Exchange(Call):
    """A request and its reply on a connection."""

    # The body's attributes too: a class's instances share the names of 30 at most (see Edge).
    __slots__ = (
        "_edge", "_expects_continue", "_more", "_running", "_task", "_unread", "begun", "chunked", "complete", "disconnected",
        "keep_alive", "pieces", "place", "received", "response_complete", "response_started", "sent",
    )  # fmt: skip

    def __init__(self, edge: Edge) -> None:
        """The request whose header the connection has received."""
        parser, host = edge.parser, None
        if edge.url.startswith(b"/"):
            path, _, query = edge.url.partition(b"?")
        else:
            # A whole URL, as a proxy gets it, or "*".
            url = httptools.parse_url(edge.url)
            path, query = url.path or b"/", url.query or b""
            if url.host is not None:
                # The URL's host replaces Host (RFC 9112, 3.2.2).
                host = edge.url.split(b"/", 3)[2].partition(b"?")[0]
        method = parser.get_method().decode("ascii")
        super().__init__(edge.app_context, method, path, query, edge.headers, target_of(path))
        expected = self.headers.get(b"expect")
        self._expects_continue = expected is not None and expected.lower() == b"100-continue"
        self.chunked = parser.get_http_version() != "1.0"
        """True if the client accepts chunked bodies and interim responses."""
        if not self.chunked:
            # Only HTTP/1.1 requires it.
            self.headers.setdefault(b"host", b"")
        if host is not None and b"host" in self.headers:
            self.headers[b"host"] = host
        self.keep_alive = self.chunked and parser.should_keep_alive()
        self.disconnected = False
        self.response_started = False
        self.response_complete = False
        self.sent = 0
        """Bytes of the reply's body that were written."""
        self._more: asyncio.Future[None] | None = None
        """Set while `more` waits for the body."""
        self._edge = edge
        self.begun = False
        """True from the check of its headers until its reply was sent and its task has ended."""
        self._running = False
        self._task: asyncio.Task[None] | EagerTask | None = None
        self._unread = 0

    def renew(self, body: memoryview) -> None:
        super().renew(body)
        self.response_started = self.response_complete = False
        self.sent = 0

    def take(self, piece: bytes) -> None:
        """Add a piece of the body, unless the request was already answered."""
        if self.response_complete:
            return
        self.add(piece)
        self._unread += len(piece)
        if self._unread > _UNREAD_BYTES:
            self._edge.flow.pause_reading()
        self._wake()

    def end_body(self) -> None:
        self.complete = True
        if self._unread > _UNREAD_BYTES:
            # A disconnect is detected only while the connection is read.
            self._edge.read_on()
        self._wake()

    def _wake(self) -> None:
        if self._more is not None and not self._more.done():
            self._more.set_result(None)

    async def more(self) -> None:
        if self._expects_continue and not self.received:
            self._expects_continue = False
            self._edge.transport.write(CONTINUE)
        self._unread = 0
        self._edge.flow.resume_reading()
        self._more = self._edge.loop.create_future()
        await self._more

    def abandon(self) -> None:
        """Cancel the work: the client has left."""
        if self._task is not None:
            # A task that is cancelled before its first step does not run at all, and would release nothing.
            if self._running:
                self._task.cancel()
            return
        if self.begun:
            # Admitted, and not started.
            self._close(CLIENT_CLOSED_REQUEST, 0)
        self._release()

    @property
    def repeatable(self) -> bool:
        """True if `renew` can make it the connection's next request, once it is over."""
        return (
            self.complete and self.keep_alive and self.chunked and not self._expects_continue
            and self.declared_bytes is not None
        )  # fmt: skip

    @property
    def awaits_body(self) -> bool:
        """True if the rest of the body is announced and will follow at once, into pieces or its place."""
        declared = self.declared_bytes
        if self._expects_continue or declared is None:
            return False
        # Bytes behind the last request's body must be read, or closing would reset the connection.
        in_place = self.keep_alive and self.aligned_at is not None
        return declared <= (_RECEIVED_BYTES if in_place else _UNREAD_BYTES)

    @property
    def needs_place(self) -> bool:
        """True if enough of a large body has come that it deserves its place."""
        return self.received >= _COME_BYTES and (self.declared_bytes or 0) > _UNREAD_BYTES

    def find_place(self) -> memoryview | None:
        """Return the new `place` of the body, whose bytes are then held; None if much is held already, or there is no room."""
        size, start = self.declared_bytes, self.aligned_at
        assert size is not None
        assert start is not None
        if not self.admitted.fits_easily(size):
            return None
        try:
            place = self.context.engine.buffer(size, aligned_at=start)
        except ServiceError:
            # The request is refused if there is still no room when its body has come.
            return None
        self.admitted.hold(size)
        self.place = heap_buffer(size, start) if place is None else place
        return self.place

    def leave_place(self) -> None:
        """Hold only the bytes in pieces."""
        self.place = None
        self.admitted.hold(self.received)

    def begin(self) -> Reply | None:
        """Return the reply if the headers decide it."""
        self.begun = True
        return begin(self)

    def start(self) -> None:
        """Serve the request; at once, if its body is complete and its operation only waits for the engine."""
        edge = self._edge
        if self.complete and self.admitted is not UNCOUNTED and self.operation.queued:
            task = EagerTask(self._run(), edge.tasks.discard)
            if not task.ended:
                self._task = task
                edge.tasks.add(task)  # type: ignore[arg-type]
            return
        self._task = edge.loop.create_task(self._run())
        self._task.add_done_callback(edge.tasks.discard)
        edge.tasks.add(self._task)

    def refuse(self, reply: Reply) -> None:
        """Send a reply at once, without reading the body."""
        body = self._body(reply)
        self._edge.transport.writelines((self._head(reply), *body))
        self._close(reply.status, reply.size if body else 0)
        self._end()
        self._release()

    def _close(self, status: int, sent_bytes: int) -> None:
        """Close a request that has no task."""
        token = request_id.set(self.request_id)
        self.context.access_log.close(self, status, sent_bytes)
        request_id.reset(token)

    async def _run(self) -> None:
        self._running = True
        request_id.set(self.request_id)
        status = CLIENT_CLOSED_REQUEST
        try:
            reply = None
            try:
                if not self.disconnected:
                    reply = None if self.begun else self.begin()
                    reply = reply or await self.operation.run(self)
            except asyncio.CancelledError:
                # The client has left, or the process ends.
                reply = None if self.disconnected else stopped(self)
            except Exception as error:
                reply = problem(self, error)
            if reply is not None:
                status = reply.status
                await self._send(reply)
        except Exception as error:
            # Its status is counted even if the reply cannot be sent any more.
            reply = problem(self, error)
            status = reply.status
            if self.response_started:
                self._edge.transport.close()
            else:
                await self._send(reply)
        except asyncio.CancelledError:
            # The process ends while the reply is sent, or the client has left.
            if self.disconnected:
                status = CLIENT_CLOSED_REQUEST
            else:
                logger.warning("%s %s was cut short", self.method, shown_path(self))
                self._edge.transport.close()
        finally:
            self.context.access_log.close(self, status, self.sent)
            self._release()

    async def _send(self, reply: Reply) -> None:
        """Send the reply. Closes its stream, however far it came."""
        flow, transport, stream = self._edge.flow, self._edge.transport, reply.stream
        try:
            if flow.write_paused:
                await self._drain(reply)
            if self.disconnected:
                return
            head, body = self._head(reply), self._body(reply)
            self.response_started = True
            self.sent = reply.size if body else 0
            await self._write((head, *body), self.sent, reply)
            if stream is not None:
                async for piece in stream:
                    self.sent += len(piece)
                    await self._write(self._chunk(piece), len(piece), reply)
                if self.chunked:
                    transport.write(b"0\r\n\r\n")
            if not self.disconnected:
                self._end()
        finally:
            if stream is not None:
                await stream.aclose()

    async def _write(self, parts: Sequence[Bytes], size: int, reply: Reply) -> None:
        """Write parts of a reply, with `size` bytes of its body. Over TLS others are served between portions of them, and a
        client that leaves is noticed.
        """
        flow, transport, portions = self._edge.flow, self._edge.transport, [parts]
        if size > _TLS_BYTES and transport.get_extra_info("sslcontext"):
            portions = [
                [memoryview(part)[start : start + _TLS_BYTES]]
                for part in parts
                for start in range(0, len(part), _TLS_BYTES)
            ]
        for portion in portions:
            transport.writelines(portion)
            if flow.write_paused:
                await self._drain(reply)
            elif portion is not portions[-1]:
                await asyncio.sleep(0)

    async def _drain(self, reply: Reply) -> None:
        """Wait until the client has read enough; meanwhile a whole reply's bytes are held, instead of the body's."""
        if reply.stream is None:
            self.admitted.hold_answer(reply.size)
        await self._edge.flow.drain()

    def _chunk(self, piece: Bytes) -> Sequence[Bytes]:
        return (b"%x\r\n" % len(piece), piece, b"\r\n") if self.chunked else (piece,)

    def _head(self, reply: Reply) -> bytes:
        """Status line and headers. Values are not checked: none may contain text chosen by a client."""
        edge = self._edge
        if edge.cycle is self and self.context.admission.draining:
            # On a connection that it keeps, a client would never get to another instance.
            self.keep_alive = False
        lines = [*map(b": ".join, edge.server_state.default_headers), *reply.headers]
        lines += self.context.access_log.headers(self)
        if reply.stream is None:
            if reply.status != 204:
                lines.append(b"content-length: %d" % reply.size)
        elif self.chunked:
            lines.append(b"transfer-encoding: chunked")
        else:
            self.keep_alive = False
        if not self.keep_alive:
            lines.append(b"connection: close")
        return b"%b%b\r\n\r\n" % (STATUS_LINE[reply.status], b"\r\n".join(lines))

    def _body(self, reply: Reply) -> Sequence[Bytes]:
        if self.method == "HEAD":
            return ()
        if reply.stream is None:
            return reply.body
        return [part for piece in reply.body for part in self._chunk(piece)]

    def _release(self) -> None:
        """Drop body and task: the connection keeps this object until its next request."""
        self._task = None
        self.begun = self._running = False
        self.pieces.clear()
        self.place = None

    def _end(self) -> None:
        self.response_complete = True
        if not self.keep_alive and self.complete:
            self._edge.transport.close()
        self._edge.on_response_complete()
