"""The socket transport: uvicorn's HTTP protocol with limits that it lacks; requests bypass ASGI.

This file alone overrides or calls uvicorn's internals (test_uvicorn.py fails if a version lacks one): `HttpToolsProtocol`
with its parser callbacks, `data_received`, `eof_received`, `on_response_complete`, `shutdown`, which reads
`response_complete` of `self.cycle` and sets its `keep_alive`.
"""

from __future__ import annotations

import asyncio
import re
from collections import deque
from collections.abc import Callable
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from turbofno.service.context import AppContext
from turbofno.service.http.exchange import CONTINUE, Exchange
from turbofno.service.http.reception import Reception
from turbofno.service.settings import env_name

BODY_SECONDS = 0.02
"""Seconds for which the body of an admitted request is awaited, with its slot, before a task reads it, with its time limit;
counted anew once there is memory for it."""
LINGER_SECONDS = 5.0
"""Seconds for which the rest of a refused body is read. Closing at once would reset the connection before a client that is
still sending has read the reply."""
FIRST_PROBE_SECONDS, LONGEST_PROBE_SECONDS = 0.02, 1.0
"""Intervals between probes of a half-closed connection; each is twice the one before."""
MOST_PIPELINED = 4
"""Pipelined requests at which reading pauses. A disconnect is detected only while the connection is read."""
_LENGTH = re.compile(rb"\r\ncontent-length: *([0-9]+)\r\n", re.IGNORECASE)


class Edge(HttpToolsProtocol):
    """One connection. Its own refusals have a JSON body for clients of both protocols: `error` and RFC 9457's members."""

    # With more attributes than 30, uvicorn's among them, each instance would have a dictionary of its own: cache misses, with
    # hundreds of connections.
    __slots__ = (
        "_admitted", "_arriving", "_behind", "_counted", "_half_closed", "_head", "_header_bytes", "_idle_since", "_limits",
        "_reception", "_timers", "_unanswered", "app_context",
    )  # fmt: skip
    cycle: Any
    """The newest exchange, by the name that uvicorn uses."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.app_context: AppContext = self.config.app.state.context  # type: ignore[union-attr]
        self._limits = self.app_context.settings
        self._counted = False
        """True if it is one of the open connections."""
        self._header_bytes = 0
        self._behind = False
        """True if the newest header began behind another request's bytes, so that `_header_bytes` counts less than it."""
        self._timers: dict[Callable[..., object], asyncio.TimerHandle] = {}
        """By the function that they call."""
        self._idle_since = 0.0
        self._unanswered: deque[Exchange] = deque()
        """In the order of their requests; the first is being served."""
        self._admitted: Exchange | None = None
        """A request to start when its body has been received, or takes long."""
        self._arriving = False
        """True from the end of the newest request's header to the end of its body."""
        self._reception: Reception | None = None
        """Receives the admitted request's body, if that is large."""
        self._half_closed = False
        self._head: tuple[bytes, bytes, Exchange] | None = None
        """The last request for an operation, if its head can be repeated, with the bytes of the head before and behind the
        number of its Content-Length: requests that repeat them need no parser."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self._limits.max_connections
        if self.app_context.connections.total >= most:
            self._refuse(
                503,
                "connections",
                f"{most} connections are open, the limit ({env_name('max_connections')}); retry later",
                "retry-after: 1\r\n",
            )
            return
        # A refused one does not count: with TLS its client may take long to close it.
        self.app_context.connections.add(1)
        self._counted = True
        self._start_header_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timers()
        for exchange in self._unanswered:
            exchange.disconnected = True
            exchange.abandon()
        self._unanswered.clear()
        # Break the reference cycles with the last exchange, which would wait for a garbage collection.
        self.cycle = self._admitted = self._reception = self._head = None
        super().connection_lost(exc)
        if self._counted:
            self.app_context.connections.add(-1)

    def eof_received(self) -> bool:  # type: ignore[override]
        """Handle the client's half-close. Returns True to keep the connection open for the replies."""
        if self._arriving or not self._unanswered or self.transport.get_extra_info("sslcontext"):
            return False
        self._half_closed = True
        for exchange in self._unanswered:
            exchange.keep_alive = exchange is not self._unanswered[-1]
        self._probe(FIRST_PROBE_SECONDS)
        return True

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        between = not (self._unanswered or self._header_bytes or self._arriving)
        if between and (exchange := self._repeated(data)) is not None:
            self._begin(exchange)
            self._start_admitted()
            return
        # Counted since the last header's end or body byte, so it bounds trailers and chunk extensions too.
        self._header_bytes += len(data)
        is_http = self._feed(data)
        if between and is_http:
            self._remember_head(data)
        if self._admitted is not None and not self.transport.is_closing():
            if self._admitted.complete or not self._admitted.awaits_body:
                self._start_admitted()
            elif self._admitted.needs_place:
                self._receive_in_place(self._admitted)
            elif self._body_is_late not in self._timers:
                self._call_after(BODY_SECONDS, self._body_is_late)
        if not is_http:
            return
        if not self._arriving:
            if self._header_bytes and self._header_too_slow not in self._timers:
                # A header has begun and not ended.
                self._start_header_timer()
            if not self._unanswered and not self._header_bytes:
                self._start_idle_time()
        if self._header_bytes > self._limits.max_header_bytes:
            self._refuse_header()

    def on_message_begin(self) -> None:
        # uvicorn's makes an ASGI scope, which an exchange does not need.
        self.url = b""
        self.headers = []
        self._behind = not self._header_bytes

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        most = self._limits.max_header_bytes
        # Only then can the header be too large: the bytes read with it are more, or unknown.
        if (self._behind or self._header_bytes > most) and self._header_size() > most:
            self._refuse_header()
            raise httptools.HttpParserError("the rest is not parsed")
        if self.parser.should_upgrade():
            # The parser stops here, expecting another protocol; `_feed` goes on.
            return
        # Raises for a URL that cannot be parsed: this request has not begun then.
        exchange = Exchange(self)
        self._header_bytes = 0
        self._arriving = True
        self._stop(self._header_too_slow)
        self._begin(exchange)

    def on_body(self, body: bytes) -> None:
        self.cycle.take(body)
        self._header_bytes = 0

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._header_bytes = 0
        self._arriving = False
        self._stop(self.transport.close)
        self.cycle.end_body()
        if self.cycle.response_complete and not self.cycle.keep_alive:
            self.transport.close()
        self._pace(self.cycle)

    def on_response_complete(self) -> None:
        exchange = self._unanswered.popleft()
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        if self.flow.read_paused:
            self.read_on()
        if self._unanswered:
            self._unanswered[0].start()
        elif self._half_closed:
            self.transport.close()
        elif self._arriving:
            self._call_after(LINGER_SECONDS, self.transport.close)
        else:
            self._start_idle_time()
            self._pace(exchange)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_reader_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._stop(self._drop_unless_read)

    def _repeated(self, data: bytes) -> Exchange | None:
        """The request, if received bytes are the last one's head again, but for the length, and a whole body."""
        if self._head is None:
            return None
        before, behind, exchange = self._head
        # Length of number and body; its number mostly has as many digits as the body's. If not, the parser reads this head.
        rest = len(data) - len(before) - len(behind)
        size = rest - len(str(rest))
        head = b"%b%d%b" % (before, size, behind)
        if not (len(head) + size == len(data) and data.startswith(head)) or exchange.begun:
            return None
        exchange.renew(memoryview(data)[len(head) :])
        return exchange

    def _remember_head(self, data: bytes) -> None:
        """Keep the head of the received bytes if they are one request that can be repeated."""
        exchange = self.cycle
        if exchange is None or not exchange.repeatable:
            return
        size = len(data) - (exchange.declared_bytes or 0)
        # The first blank line is where the body begins only if the bytes are one request.
        if data.find(b"\r\n\r\n") + 4 == size and (length := _LENGTH.search(data, 0, size)):
            self._head = data[: length.start(1)], data[length.end(1) : size], exchange

    def _feed(self, data: bytes) -> bool:
        """Parse received bytes. Returns False if they were not HTTP and have been refused."""
        while True:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    self._refuse(400, "no_http", "This server is no proxy.")
                    return False
                data = self._without_upgrade() + data[upgrade.args[0] :]
                self._expect_head()
            except httptools.HttpParserError as error:
                # The parser's texts are its own: none repeats what was sent, but that of a URL, inside a callback's error.
                of_url = isinstance(error.__context__, httptools.HttpParserInvalidURLError)
                why = "Invalid url" if of_url else error
                self._refuse(400, "no_http", f"these bytes are no HTTP/1.1 request: {why}")
                return False
            else:
                return True

    def _header_size(self) -> int:
        """Bytes of the parsed request line and header. Spaces before values, beyond one each, are not known any more."""
        line = b"%b %b HTTP/1.1\r\n" % (self.parser.get_method(), self.url)
        return len(line) + sum([len(name) + len(value) + 4 for name, value in self.headers]) + 2

    def _expect_head(self) -> None:
        """Have the next bytes parsed as a request's head."""
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)

    def _without_upgrade(self) -> bytes:
        """The head of a request without its `Upgrade`, which a server may ignore (RFC 9110, 7.8)."""
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        for name, value in self.headers:
            if name == b"connection":
                tokens = [token.strip() for token in value.split(b",")]
                value = b", ".join([token for token in tokens if token.lower() != b"upgrade"])
            if name != b"upgrade":
                lines.append(b"%b: %b" % (name, value))
        return b"\r\n".join([*lines, b"", b""])

    def _begin(self, exchange: Exchange) -> None:
        first = not self._unanswered
        self._unanswered.append(exchange)
        self.cycle = exchange
        if not first:
            if len(self._unanswered) > MOST_PIPELINED:
                self.flow.pause_reading()
        elif not self.flow.write_paused and (reply := exchange.begin()) is not None:
            exchange.refuse(reply)
        else:
            self._admitted = exchange

    def _receive_in_place(self, exchange: Exchange) -> None:
        """Receive the rest of the admitted request's body where its fields are used, if there is room."""
        place = exchange.find_place()
        if place is None:
            self._start_admitted()
            return
        self._reception = Reception(self, place, exchange.received)
        self.transport.set_protocol(self._reception)
        self.flow.resume_reading()
        self._call_after(BODY_SECONDS, self._body_is_late)

    def body_received(self, size: int) -> None:
        """Serve the admitted request, whose body has come, past the parser."""
        self._reception = None
        self.cycle.received = size
        self.transport.set_protocol(self)
        self._expect_head()
        self.on_message_complete()
        self._start_admitted()

    def _start_admitted(self) -> None:
        exchange, self._admitted = self._admitted, None
        if exchange is not None:
            only = len(self.connections) == 1 == len(self._unanswered)
            exchange.at_once = only and exchange.complete
            exchange.start()

    def _body_is_late(self) -> None:
        """Start the admitted request. Not stopped if its body comes first: then a later request may start early."""
        self._stop(self._body_is_late)
        reception, self._reception = self._reception, None
        if reception is not None:
            self.transport.set_protocol(self)
            self.parser.feed_data(reception.end())
            self.cycle.leave_place()
        self._start_admitted()

    def _pace(self, exchange: Exchange) -> None:
        """Pause reading on a connection whose last request was shed."""
        if exchange.shed and not self._unanswered:
            pause = self.app_context.shedding.pause()
            if pause and not self.flow.read_paused:
                self.flow.pause_reading()
                self._call_after(pause, self.read_on)

    def _start_idle_time(self) -> None:
        """Start the keep-alive timeout. Its timer runs on through later requests: one for each would cost more."""
        self._idle_since = self.loop.time()
        if self._end_if_idle not in self._timers:
            self._call_after(self.timeout_keep_alive, self._end_if_idle)

    def _end_if_idle(self) -> None:
        self._stop(self._end_if_idle)
        if self._unanswered or self._arriving or self._header_bytes:
            return
        left = self._idle_since + self.timeout_keep_alive - self.loop.time()
        if left > 0.0:
            self._call_after(left, self._end_if_idle)
        else:
            self.transport.close()

    def _probe(self, seconds: float) -> None:
        """Write `100 Continue` at intervals: a client that has left resets the connection, another ignores it."""
        waiting = self._unanswered[0] if self._unanswered else None
        if waiting is None or self.transport.is_closing():
            return
        if waiting.chunked and not waiting.response_started:
            self.transport.write(CONTINUE)
        self._call_after(seconds, self._probe, min(2 * seconds, LONGEST_PROBE_SECONDS))

    def _start_header_timer(self) -> None:
        self._call_after(self._limits.header_timeout_seconds, self._header_too_slow)

    def _start_reader_timer(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._call_after(self._limits.keep_alive_seconds, self._drop_unless_read, unread)

    def _drop_unless_read(self, unread: int) -> None:
        """Abort if the client has read nothing: its reply must not stay in memory. A close would wait for the client."""
        if self.transport.get_write_buffer_size() >= unread:
            self.app_context.metrics.reject("unread")
            self.transport.abort()
        else:
            self._start_reader_timer()

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

    def _call_after(self, seconds: float, function: Callable[..., object], *args: object) -> None:
        """Call a function then, and not when it was to be called before."""
        self._stop(function)
        self._timers[function] = self.loop.call_later(seconds, function, *args)

    def _stop(self, function: Callable[..., object]) -> None:
        """Do not call a function any more that `_call_after` was to call."""
        if (timer := self._timers.pop(function, None)) is not None:
            timer.cancel()

    def _stop_timers(self) -> None:
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()

    def read_on(self) -> None:
        """Resume reading, unless pipelined requests wait."""
        if len(self._unanswered) <= MOST_PIPELINED:
            self.flow.resume_reading()

    def _refuse_header(self) -> None:
        self._refuse(
            431,
            "header_too_large",
            f"the request header (or trailer) is over {self._limits.max_header_bytes} bytes "
            f"({env_name('max_header_bytes')})",
        )

    def _refuse(self, status: int, reason: str, message: str, header: str = "") -> None:
        """Send an error for a request that could not be read, and close; only close if other replies are due before it."""
        self._stop_timers()
        if self.transport.is_closing():
            return
        metrics = self.app_context.metrics
        metrics.reject(reason)
        if len(self._unanswered) > self._arriving or any(
            exchange.response_started for exchange in self._unanswered
        ):
            self.transport.close()
            return
        metrics.requests.labels("", "", "http", status).inc()
        body = orjson.dumps({"error": message, "status": status, "detail": message})
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{header}"
            "connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode("ascii") + body)
        self.transport.close()
