"""uvicorn's HTTP protocol with the bounds it lacks: connections, headers, bodies after refusal, unread answers."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, cast

import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from service.http.arrival import arrival_of
from service.http.direct import DirectCycle, handler_of
from service.http.early_refusal import SEAT, SMALL_BODY, EarlyRefusal, Seat
from service.settings import env_name

if TYPE_CHECKING:
    from service.context import AppContext
    from service.http.arrival import Arrival
    from service.http.direct import Handler
    from service.metrics import Metrics
    from service.settings import Settings

LINGER_SECONDS = 5.0
"""How long a refused body may go on arriving. Closing at once would reset the connection, and the client, still
sending, would never read why it was refused."""
_CLOSE = (b"connection", b"close")


def bounded_protocol(context: AppContext) -> type[HttpToolsProtocol]:
    """A protocol class with the limits of this service, as uvicorn makes one object for each connection from a class."""

    class Bounded(BoundedProtocol):
        app_context = context
        limits = context.settings
        counts = context.metrics
        early = EarlyRefusal(context)

    return Bounded


class BoundedProtocol(HttpToolsProtocol):
    """Refuses with a JSON body that both protocols' clients can read: `error` and RFC 9457's members."""

    app_context: AppContext
    limits: Settings
    counts: Metrics
    early: EarlyRefusal

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._in_header = True
        self._header_bytes = 0
        self._header_timer: asyncio.TimerHandle | None = None
        self._linger_timer: asyncio.TimerHandle | None = None
        self._reader_timer: asyncio.TimerHandle | None = None
        self._pause_timer: asyncio.TimerHandle | None = None
        self._refused = False
        """The request that is arriving has been answered; the rest of its body is passed over."""
        self._last = False
        """It was the last of this connection."""
        self._seat: Seat | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        most = self.limits.max_connections
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
        self._leave()
        super().connection_lost(exc)
        if isinstance(self.cycle, DirectCycle):
            self.cycle.abandon()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        # Counted since the last header's end or body byte, so trailers and chunk extensions too. What
        # came in one piece is bounded by the read size.
        self._header_bytes += len(data)
        super().data_received(data)
        if self._in_header and self._header_bytes and self._header_timer is None:
            # Part of a header has come, and not its end.
            self._start_header_timer()
        if self._refused and self._linger_timer is None:
            self._linger()
        if not self._in_header:
            # A body that dawdles must not keep others out.
            self._leave()
        if self._header_bytes > self.limits.max_header_bytes:
            self._refuse(
                431,
                "header_too_large",
                f"the request header (or trailer) is over {self.limits.max_header_bytes} bytes "
                f"({env_name('max_header_bytes')})",
            )

    def on_message_begin(self) -> None:
        super().on_message_begin()
        # It may have come with the end of a request that was refused.
        self._unset_keepalive_if_required()
        self._in_header = True

    def on_headers_complete(self) -> None:
        self._in_header = False
        self._header_bytes = 0
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None
        if not self._meet_prediction():
            super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if self._refused:
            pass
        elif isinstance(self.cycle, DirectCycle):
            self.cycle.take(body)
        else:
            super().on_body(body)
        self._header_bytes = 0

    def on_message_complete(self) -> None:
        self._in_header = True
        self._header_bytes = 0
        if self._linger_timer is not None:
            self._linger_timer.cancel()
            self._linger_timer = None
        if self._refused:
            self._end_refusal()
        elif isinstance(self.cycle, DirectCycle):
            self.cycle.end_body()
        else:
            super().on_message_complete()
            self.cycle.more_body = False

    def on_response_complete(self) -> None:
        self._leave()
        super().on_response_complete()
        if (
            self.cycle.response_complete
            and self.cycle.more_body
            and not self.transport.is_closing()
        ):
            self._linger()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._expect_reading()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._reader_timer is not None:
            self._reader_timer.cancel()
            self._reader_timer = None

    def send_400_response(self, msg: str) -> None:
        if (
            self.cycle is not None
            and self.cycle.response_started
            and not self.cycle.response_complete
        ):
            self.transport.close()
            return
        self._refuse(400, "no_http", msg)

    def _meet_prediction(self) -> bool:
        """Answer a prediction that would only be refused; else hold its seat, if it needs one, and start it if it can
        go without the application. False: it is not answered, nor started.
        """
        if (
            self.parser.get_method() != b"POST"
            or (self.cycle is not None and not self.cycle.response_complete)
            or self.flow.write_paused
            or self.expect_100_continue
        ):
            return False
        arrival = arrival_of(self.url, self.headers, self.app_context)
        if arrival is None:
            return False
        if 0 <= _declared(self.headers) <= SMALL_BODY and self._refuse_early(arrival):
            return True
        handler = handler_of(arrival, self.headers)
        if handler is None or self.limits.tracing:
            return False
        self._start(handler, arrival)
        return True

    def _refuse_early(self, arrival: Arrival) -> bool:
        self._last = not self.parser.should_keep_alive()
        adding = [*self.server_state.default_headers, *([_CLOSE] if self._last else ())]
        decision = self.early.decide(arrival, self.headers, adding=adding)
        if isinstance(decision, bytes):
            self._refused = True
            self.transport.write(decision)
        else:
            self._seat = decision
            cast("dict[str, Any]", self.scope)[SEAT] = decision
        return self._refused

    def _start(self, handler: Handler, arrival: Arrival) -> None:
        """What uvicorn does once it has the headers, with another cycle."""
        version = self.parser.get_http_version()
        cast("dict[str, Any]", self.scope).update(
            method="POST",
            http_version=version,
            path=arrival.path,
            raw_path=self.url.partition(b"?")[0],
            query_string=arrival.query,
        )
        self.cycle = DirectCycle(
            handler,
            arrival,
            self.app_context,
            scope=self.scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=version != "1.0" and self.parser.should_keep_alive(),
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def _leave(self) -> None:
        if self._seat is not None:
            self._seat.leave()
            self._seat = None

    def _end_refusal(self) -> None:
        """Like the end of any answer, but what comes next on this connection may have to wait."""
        self._refused = False
        self.server_state.total_requests += 1
        if self._last:
            self.transport.close()
            return
        self._unset_keepalive_if_required()
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )
        pause = self.early.pause()
        if pause and not self.flow.read_paused:
            self.flow.pause_reading()
            self._pause_timer = self.loop.call_later(pause, self.flow.resume_reading)

    def _linger(self) -> None:
        self._linger_timer = self.loop.call_later(LINGER_SECONDS, self.transport.close)

    def _start_header_timer(self) -> None:
        self._header_timer = self.loop.call_later(
            self.limits.header_timeout_seconds, self._header_too_slow
        )

    def _expect_reading(self) -> None:
        unread = self.transport.get_write_buffer_size()
        self._reader_timer = self.loop.call_later(
            self.limits.keep_alive_seconds, self._drop_unless_read, unread
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
        seconds = self.limits.header_timeout_seconds
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
        ):
            if timer is not None:
                timer.cancel()
        self._header_timer = self._linger_timer = self._reader_timer = self._pause_timer = None

    def _refuse(self, status: int, reason: str, message: str, header: str = "") -> None:
        """Answer below ASGI and close: there is no request to give an application."""
        self._stop_timers()
        if self.transport.is_closing():
            return
        self.counts.reject(reason)
        self.counts.requests.labels(model="", version="", protocol="http", code=status).inc()
        body = orjson.dumps({"error": message, "status": status, "detail": message})
        head = (
            f"content-type: application/json\r\ncontent-length: {len(body)}\r\n{header}"
            "connection: close\r\n\r\n"
        )
        self.transport.write(STATUS_LINE[status] + head.encode("ascii") + body)
        self.transport.close()


def _declared(headers: list[tuple[bytes, bytes]]) -> int:
    """Bytes of the body as announced; -1 if they are not."""
    length = next((value for name, value in headers if name == b"content-length"), b"")
    return int(length) if length.isdigit() else -1
