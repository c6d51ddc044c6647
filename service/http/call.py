"""A request (`Call`), the operation that serves it, and the reply: the same for every transport."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from turbofno.service.context import AppContext
from turbofno.service.engine.interface import PredictResult
from turbofno.service.logs import accept_request_id
from turbofno.service.pipeline.admission import ANYONE, UNCOUNTED, Admitted, Caller

if TYPE_CHECKING:
    from turbofno.service.answer_warnings import AnswerWarning
    from turbofno.service.http.parameters import Parameter
    from turbofno.service.http.served import Served

Headers = list[tuple[bytes, bytes]]
"""Of a request: in the order received, names in lower case."""
Lines = list[bytes]
"""Headers of a reply, each as it is sent, `name: value`; names in lower case."""
Bytes = bytes | memoryview
ProtocolLabel = Literal["oip", "predict", "rollout", "vjp", "solver", "admin"]

_SMALL_PIECE = 4096


class ClientLeft(Exception):
    """The client closed the connection before the reply."""


@dataclass(frozen=True, slots=True)
class Operation:
    """One entry of the table of operations: its paths, its functions and its description in OpenAPI."""

    run: Callable[[Call], Awaitable[Reply]]
    """Reads the body, does the work, returns the reply. Raises ServiceError, ClientLeft."""
    paths: Mapping[str, dict[str, Any]] = field(repr=False)
    """Path template -> its operation in OpenAPI; empty: not documented."""
    method: str = "POST"
    parameters: tuple[Parameter, ...] = ()
    """Of the query."""
    hint: str | None = ""
    """End of the error text for an unknown parameter; None: unknown ones are ignored."""
    parse: Callable[[Call, Mapping[str, Any]], Any] | None = None
    """Reads `Call.parameters` from the query's parameters and the headers. Raises ServiceError.

    None: an operation without fields, which requires neither a ready model nor capacity.
    """
    protocol: ProtocolLabel = "admin"
    """Label of its requests in the metrics."""
    queued: bool = True
    """True if its fields wait in the model's queue."""
    of_model: bool = True
    """True if its requests count as the model's in metrics."""


class Target(NamedTuple):
    """The resource that a path names."""

    path: str
    """Percent-decoded."""
    route: str
    """The template of the path; empty: none of the table's."""
    operations: Mapping[str, Operation] | None
    """By method; empty: a model's path with an unknown verb. None: what FastAPI serves."""
    model: str
    version: str | None
    """None: the newest."""
    protocol: ProtocolLabel = "admin"
    """That of its operations."""


class Call:
    """A request and its state until the reply is sent. Each transport has its own kind, which implements `more`.

    `model` and `version` hold only names known to the engine, so that metric labels stay bounded.
    """

    operation: Operation
    """The target's operation for the method, set by `operations.begin`."""
    root_path = ""
    """The path at which the application is mounted. `path` is below it."""
    caller: Caller
    protocol: ProtocolLabel
    model: str
    version: str
    served: Served
    """The requested model, set once it is known to be ready."""
    parameters: Any = None
    """Parameters, the result of the operation's `parse`."""
    checked: Served | None = None
    """The model for which the head was checked and `parameters` were read."""
    pieces: list[bytes | bytearray | memoryview]
    """Of the body."""
    place: memoryview | None
    """Memory for the whole body, in which everything after `pieces` was received."""
    received: int
    """Bytes of the body that have come."""
    complete: bool
    """True if the body has come, or the rest of it will not be read."""
    admitted: Admitted
    """Its bytes and queue slot, held until the reply has been sent or the client has left."""
    declared_bytes: int | None = None
    """Size of the decoded body, if its headers give it; set by `operations.begin` for an operation with fields."""
    aligned_at: int | None = None
    """Offset in the body of fields that are used without a copy; set by the operation's `parse`."""
    at_once = False
    """True if it came whole and no other can come in that turn of the event loop: there is no other, nor a connection for it."""
    shed: bool
    """True if refused because the queue was full."""
    fields: int
    body_bytes: int
    warned: tuple[str, ...]
    """Reasons of the answer's warnings."""
    of_input: tuple[AnswerWarning, ...]
    """The warnings of the input, also once interpolated to the training grid."""
    steps: dict[str, float]
    """The steps that ran, of decode, queue, compute and encode, with their durations in seconds."""
    span: Any
    trace: str
    """W3C traceparent of the request's span; empty if not traced."""

    def __init__(
        self,
        context: AppContext,
        method: str,
        raw_path: bytes,
        query: bytes,
        headers: Headers,
        target: Target,
    ) -> None:
        """`raw_path` is percent-encoded; `path` is not."""
        self.pieces, self.place, self.received, self.complete = [], None, 0, False
        self.context = context
        self.method = method
        self.path = target.path
        self.raw_path = raw_path
        self.query = query
        given = dict(headers)
        # Repeated headers are equivalent to one with a comma-separated list (RFC 9110).
        self.headers = given if len(given) == len(headers) else _joined(headers)
        self.target = target
        self._reset()

    def _reset(self) -> None:
        self.started, self.steps = time.perf_counter(), {}
        self.request_id = accept_request_id(self.headers.get(b"x-request-id", b""))
        self.caller, self.admitted, self.shed = ANYONE, UNCOUNTED, False
        self.protocol, self.model, self.version = self.target.protocol, "", ""
        self.fields, self.body_bytes, self.warned = 0, 0, ()
        self.of_input = ()
        self.span, self.trace = None, ""

    def renew(self, body: memoryview) -> None:
        """Become the next request on the connection, with the same head but for the length of its body."""
        self.pieces.append(body)
        # Nobody needs Content-Length, as the size is known.
        self.declared_bytes = self.received = len(body)
        self._reset()

    def add(self, piece: bytes | memoryview) -> None:
        """Append a piece of the body. Small ones are merged: a client could send millions, each an object."""
        self.received += len(piece)
        if len(piece) >= _SMALL_PIECE:
            self.pieces.append(piece)
        elif self.pieces and isinstance(self.pieces[-1], bytearray):
            self.pieces[-1] += piece
        else:
            self.pieces.append(bytearray(piece))

    def skip_body(self) -> None:
        """Mark the body as complete: the rest will not be read."""
        self.complete = True

    async def more(self) -> None:
        """Wait for the next piece or the end of the body. Raises ClientLeft."""
        raise NotImplementedError

    def header(self, name: bytes) -> str | None:
        """Return a header's value, repeated ones joined by commas; `name` in lower case."""
        value = self.headers.get(name)
        return None if value is None else value.decode("latin-1")

    def note(self, step: str, started: float) -> None:
        """Add the time since `started` to a step."""
        self.steps[step] = self.steps.get(step, 0.0) + time.perf_counter() - started

    def note_result(self, result: PredictResult) -> None:
        """Note size and times of the engine's work."""
        self.fields = len(result.fields)
        self.steps["queue"], self.steps["compute"] = result.queue_seconds, result.compute_seconds


class Reply(msgspec.Struct, eq=False):
    """A status, headers and a body in pieces, which a stream of further pieces may follow."""

    status: int
    headers: Sequence[bytes] = ()
    body: Sequence[Bytes] = ()
    stream: AsyncGenerator[Bytes] | None = None
    size: int = 0
    """Length of `body` in bytes."""

    def __post_init__(self) -> None:
        self.size = sum(map(len, self.body))


def encoded(headers: Mapping[str, str]) -> Lines:
    return [f"{name.lower()}: {value}".encode("latin-1") for name, value in headers.items()]


def _joined(headers: Headers) -> dict[bytes, bytes]:
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = b", ".join((joined[name], value)) if name in joined else value
    return joined
