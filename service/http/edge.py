"""The way in from a socket: uvicorn's HTTP protocol, with bounds it lacks, and operations without ASGI between.

What of uvicorn is overridden or called here, and nowhere else (test_edge.py fails where a version lacks it):
`HttpToolsProtocol` with its parser callbacks, `data_received`, `eof_received`, `send_400_response`,
`on_response_complete`, `shutdown`, `_unset_keepalive_if_required`; its queue `pipeline` of (cycle, application), each
started as `cycle.run_asgi(application)`; of the cycle that it knows as `self.cycle`, `response_started`,
`response_complete`, `disconnected`, `keep_alive`, and of its own ones `message_event`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from turbofno.service.http.exchange import CONTINUE, Exchange
from turbofno.service.http.operations import target_of
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from turbofno.service.context import AppContext
    from turbofno.service.http.call import Call, Target

LINGER_SECONDS = 5.0
"""Time for which a refused body may go on arriving. Closing at once would reset the connection, and the client, still
sending, would never read why it was refused."""
FIRST_PROBE_SECONDS, LONGEST_PROBE_SECONDS = 0.02, 1.0
"""Between signs of life to a client that has ended its side of the connection: each time twice as long."""
MOST_PIPELINED = 4
"""Requests that wait on a connection behind others; then it is not read. As long as it is read, the end of the client
is noticed."""


def edge_protocol(context: AppContext) -> type[Edge]:
    """A protocol class for an application, as uvicorn makes one object for each connection from a class."""

    class ContextEdge(Edge):
        app_context = context

    return ContextEdge


class Edge(HttpToolsProtocol):
    """One connection. What it refuses itself it refuses with a JSON body that both protocols' clients can read: `error`
    and RFC 9457's members.
    """

    app_context: AppContext

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limits = self.app_context.settings
        self._in_header = True
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        self._probe_timer: asyncio.TimerHandle | None = None
        self._unanswered: deque[Any] = deque()
        """Exchanges, and uvicorn's cycles, in the order of their requests."""
        self._arriving = False
        """Of the newest of them there is more to come."""
        self._half_closed = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self._limits.max_connections
        if len(self.connections) > most:
            self._refuse(
                503,
                "connections",
                f"{most} connections are open, the limit ({env_name('max_connections')}); retry later",
                "retry-after: 1\r\n",
            )
            return
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        # Those that have not begun never will.
        self.pipeline.clear()
        for cycle in self._unanswered:
            cycle.disconnected = True
            if isinstance(cycle, Exchange):
                cycle.abandon()
            else:
                cycle.message_event.set()
        self._unanswered.clear()
        # Else this and the last exchange would refer to each other, and wait for garbage to be collected.
        self.cycle = None  # type: ignore[assignment]
        super().connection_lost(exc)

    def eof_received(self) -> bool:  # type: ignore[override]
        """The client sends nothing more. True: it may still read what it asked for."""
        if self._arriving or not self._unanswered or self.transport.get_extra_info("sslcontext"):
            return False
        self._half_closed = True
        for cycle in self._unanswered:
            cycle.keep_alive = cycle is not self._unanswered[-1]
        self._probe(FIRST_PROBE_SECONDS)
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        # Counted since the last header's end or body byte, so trailers and chunk extensions too. What
        # came in one piece is bounded by the read size.
        self._header_bytes += len(data)
        self._unset_keepalive_if_required()
        if not self._feed(data):
            return
        if self._in_header:
            if self._header_bytes and self._header_timer is None:
                # Part of a header has come, and not its end.
                self._start_header_timer()
            if not self._unanswered and not self._header_bytes:
                self._await_next()
        if self._header_bytes > self._limits.max_header_bytes:
            self._refuse(
                431,
                "header_too_large",
                f"the request header (or trailer) is over {self._limits.max_header_bytes} bytes "
                f"({env_name('max_header_bytes')})",
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_header = True

    def on_headers_complete(self) -> None:
        if self.parser.should_upgrade():
            # The parser takes what follows for another protocol, and stops: `_feed` goes on.
            return
        self._in_header = False
        self._header_bytes = 0
        self._arriving = True
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        path, _, query = self.url.partition(b"?")
        target = target_of(path)
        if target is not None:
            self._meet(path, query, target)
        else:
            super().on_headers_complete()
            self._unanswered.append(self.cycle)
        if 0 < len(self.pipeline) < MOST_PIPELINED:
            self.flow.resume_reading()

    def on_body(self, body: bytes) -> None:
        if isinstance(self.cycle, Exchange):
            self.cycle.take(body)
        else:
            super().on_body(body)
        self._header_bytes = 0

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._in_header = True
        self._header_bytes = 0
        self._arriving = False
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if isinstance(self.cycle, Exchange):
            self.cycle.end_body()
            self._pace(self.cycle.call)
        else:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        self._unanswered.popleft()
        super().on_response_complete()
        if not self._unanswered and not self.transport.is_closing():
            if self._half_closed:
                self.transport.close()
            elif self._arriving:
                self._unset_keepalive_if_required()
                self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:
        if any(cycle.response_started for cycle in self._unanswered):
            self.transport.close()
            return
        self._refuse(400, "no_http", msg)

    def _feed(self, data: bytes) -> bool:
        """Parse what has come. False: it was no HTTP, and was refused."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    self.send_400_response("This server is no proxy.")
                    return False
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            except httptools.HttpParserError:
                self.send_400_response("Invalid HTTP request received.")
                return False
            else:
                return True

    def _without_upgrade(self) -> bytes:
        """The head of a request that offers another protocol, without the offer: none but HTTP/1.1 is spoken here, and the
        client goes on in that (RFC 9110, 7.8).
        """
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join([token for token in tokens if token.lower() != b"upgrade"])
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _meet(self, path: bytes, query: bytes, target: Target) -> None:
        """A request for an operation, whose headers have come."""
        exchange = Exchange(self, path, query, target)
        first = not self._unanswered
        self._unanswered.append(exchange)
        self.cycle = exchange  # type: ignore[assignment]
        if not first:
            self.pipeline.appendleft((exchange, self.app))  # type: ignore[arg-type]
            if len(self.pipeline) >= MOST_PIPELINED:
                self.flow.pause_reading()
        elif not self.flow.write_paused and (reply := exchange.begin()) is not None:
            exchange.refuse(reply)
        else:
            task = self.loop.create_task(exchange.run_asgi(self.app))
            task.add_done_callback(self.tasks.discard)
            self.tasks.add(task)

    def _pace(self, call: Call) -> None:
        """Let the next request wait on a connection whose last one was shed."""
        if call.shed and not self._unanswered:
            pause = self.app_context.shedding.pause()
            if pause and not self.flow.read_paused:
                self.flow.pause_reading()
                self._pause_timer = self.loop.call_later(pause, self.flow.resume_reading)

    def _await_next(self) -> None:
        """Close the connection if no other request comes."""
        if self.timeout_keep_alive_task is None:
            self.timeout_keep_alive_task = self.loop.call_later(
                self.timeout_keep_alive, self.timeout_keep_alive_handler
            )

    def _probe(self, seconds: float) -> None:
        """Make a client that has left altogether reset the connection, which a write then tells; others skip it."""
        waiting = self._unanswered[0] if self._unanswered else None
        if waiting is None or self.transport.is_closing():
            return
        if isinstance(waiting, Exchange) and waiting.chunked and not waiting.response_started:
            self.transport.write(CONTINUE)
        self._probe_timer = self.loop.call_later(
            seconds, self._probe, min(2 * seconds, LONGEST_PROBE_SECONDS)
        )

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(
            self._limits.header_timeout_seconds, self._header_too_slow
        )

    def _expect_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(
            self._limits.keep_alive_seconds, self._drop_unless_read, unread
        )

    def _drop_unless_read(self, unread: int) -> None:
        """A client that stopped reading must not keep its answer in memory; closing would wait for it."""
        if self.transport.get_write_buffer_size() >= unread:
            self.transport.abort()
        else:
            self._expect_reading()

    def _header_too_slow(self) -> None:
        if not self._header_bytes:
            self.transport.close()
            return
        seconds = self._limits.header_timeout_seconds
        self._refuse(
            408,
            "header_timeout",
            f"the request header did not arrive within {seconds:g} s "
            f"({env_name('header_timeout_seconds')})",
        )

    def _stop_timers(self) -> None:
        for timer in (
            self._header_timer,
            self._linger_timer,
            self._reader_timer,
            self._pause_timer,
            self._probe_timer,
        ):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._linger_timer = self._reader_timer = None
        self._pause_timer = self._probe_timer = None

    def _refuse(self, status: int, reason: str, message: str, header: str = "") -> None:
        """Answer what is no request, and close."""
        self._stop_timers()
        if self.transport.is_closing():
            return
        metrics = self.app_context.metrics
        metrics.reject(reason)
        metrics.requests.labels("", "", "http", status).inc()
        body = orjson.dumps({"error": message, "status": status, "detail": message})
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{header}"
            "connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode("ascii") + body)
        self.transport.close()
