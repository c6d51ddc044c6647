"""One request as a value, whichever way its bytes came, and the reply to it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Literal

from turbofno.service.logs import accept_request_id
from turbofno.service.pipeline.admission import ANYONE

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Iterable, Mapping, Sequence

    from turbofno.service.context import AppContext
    from turbofno.service.http.served import Served
    from turbofno.service.http.shedding import Reservation
    from turbofno.service.pipeline.admission import ByteBudget, Caller

    Headers = list[tuple[bytes, bytes]]
    """As they came, names in lower case."""
    Bytes = bytes | memoryview

Protocol = Literal["oip", "predict", "rollout", "vjp", "solver", "admin"]

_SMALL_PIECE = 4096


class ClientLeft(Exception):
    """Nobody is there to read the reply."""


class Body:
    """A request's body as it arrives, in pieces; each way in has its own `more`."""

    __slots__ = ("complete", "pieces", "size")

    def __init__(self) -> None:
        self.pieces: list[bytes | bytearray] = []
        self.size = 0
        self.complete = False

    def add(self, piece: bytes) -> None:
        """Take the next piece; small ones are put together, else a client could send millions, each an object."""
        self.size += len(piece)
        if len(piece) >= _SMALL_PIECE:
            self.pieces.append(piece)
        elif self.pieces and type(self.pieces[-1]) is bytearray:
            self.pieces[-1] += piece
        else:
            self.pieces.append(bytearray(piece))

    def skip(self) -> None:
        """Note that nobody is going to read it, or what is left of it."""
        self.complete = True

    async def more(self) -> None:
        """Wait until more of the body has come, or its end. Raises ClientLeft."""
        raise NotImplementedError


class Call:
    """A request, and what is learnt of it on its way to the reply.

    `model` and `version` are set only to names the engine knows, so that metric labels stay bounded. Times are
    seconds; None means that the step did not happen.
    """

    __slots__ = (
        "asked",
        "body",
        "body_bytes",
        "budget",
        "caller",
        "compute_seconds",
        "context",
        "decode_seconds",
        "encode_seconds",
        "fields",
        "headers",
        "method",
        "model",
        "path",
        "protocol",
        "query",
        "queue_seconds",
        "raw_headers",
        "raw_path",
        "request_id",
        "reservation",
        "served",
        "shed",
        "span",
        "started",
        "trace",
        "version",
    )  # fmt: skip

    def __init__(
        self,
        context: AppContext,
        method: str,
        path: str,
        raw_path: bytes,
        query: bytes,
        headers: Headers,
        body: Body,
    ) -> None:
        """`path` is decoded, `raw_path` as it came."""
        self.started = time.perf_counter()
        self.context = context
        self.method = method
        self.path = path
        self.raw_path = raw_path
        self.query = query
        self.raw_headers = headers
        given = dict(headers)
        # Several headers of one name mean the same as one with their values in a list (RFC 9110).
        self.headers = given if len(given) == len(headers) else _joined(headers)
        self.body = body
        self.request_id = accept_request_id(self.headers.get(b"x-request-id", b""))
        self.caller: Caller = ANYONE
        self.protocol: Protocol = "admin"
        self.model = self.version = ""
        self.served: Served
        """The model that it is for, once that is known to be there."""
        self.asked: Any = None
        """Its parameters, as the operation's `parse` gave them."""
        self.budget: ByteBudget | None = None
        """Its room, held until the reply has been sent, or nobody is there to send it to."""
        self.reservation: Reservation | None = None
        """Its place in the queue while it is on its way there."""
        self.shed = False
        """Refused because the queue was full."""
        self.fields = self.body_bytes = 0
        self.decode_seconds: float | None = None
        self.queue_seconds: float | None = None
        self.compute_seconds: float | None = None
        self.encode_seconds: float | None = None
        self.span: Any = None
        self.trace = ""
        """The W3C traceparent of its span; empty if it is not traced."""

    def header(self, name: bytes) -> str | None:
        """A header's value, several joined by commas; `name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def release(self) -> None:
        """Give back what it holds: the reply has been sent, or nobody is there to send it to. Repeatable."""
        if self.reservation is not None:
            self.reservation.leave()
        if self.budget is not None:
            self.budget.leave()

    @property
    def steps(self) -> list[tuple[str, float]]:
        """The steps that it took, with their seconds."""
        taken = (
            ("decode", self.decode_seconds),
            ("queue", self.queue_seconds),
            ("compute", self.compute_seconds),
            ("encode", self.encode_seconds),
        )
        return [(step, seconds) for step, seconds in taken if seconds is not None]


class Reply:
    """A status, its own headers and a body: whole, in pieces, or a stream of pieces."""

    __slots__ = ("body", "headers", "size", "status", "stream")

    def __init__(
        self,
        status: int,
        headers: Iterable[tuple[bytes, bytes]] = (),
        body: Sequence[Bytes] = (),
        stream: AsyncGenerator[Bytes] | None = None,
    ) -> None:
        self.status = status
        self.headers = [*headers]
        self.body = body
        self.size = sum(map(len, body))
        """Bytes of a whole body."""
        self.stream = stream


def encoded(headers: Mapping[str, str]) -> Headers:
    """Headers as they go on the wire."""
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


def _joined(headers: Headers) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = b", ".join((joined[name], value)) if name in joined else value
    return joined
