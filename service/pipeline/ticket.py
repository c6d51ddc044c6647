"""A request in the queue, and the types that describe it."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Sequence
from typing import NamedTuple, Protocol, cast

import msgspec

from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import Runnable
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.errors import ServiceError, Unavailable
from turbofno.service.pipeline.shares import Flow, level_of

_serial = itertools.count(1)


class Outcome(Protocol):
    """Receiver of a request's result or error, for example a future."""

    def done(self) -> bool:
        """True if it was set or cancelled."""

    def set_result(self, result: PredictResult, /) -> None: ...

    def set_exception(self, error: ServiceError, /) -> None: ...


class JoinedOutcome(Outcome, Protocol):
    """The outcome of a request that was made of several: each of them gets the error, or its part of the result."""

    def alone(self) -> Sequence[Outcome]:
        """The outcomes of the joined requests; this one is not set any more. Those that nobody wants are set."""

    def divided(self, tickets: Sequence[Ticket]) -> None:
        """Note the tickets of these outcomes, to cancel them."""


class Bucket(NamedTuple):
    """Tickets with equal buckets can run in one batch. `runnable` is the id of the instance: a reload makes a new one."""

    model: str
    version: str
    runnable: int
    shape: tuple[int, ...]
    vjp: VjpShapes | None


class Kind(msgspec.Struct, frozen=True, eq=False):
    """Attributes shared by similar requests, which are counted and queued together."""

    runnable: Runnable
    bucket: Bucket
    flow: Flow
    field_bytes: int
    gradient_bytes: int
    """Memory that a field's gradient takes in addition to the field; 0 for predictions."""

    @classmethod
    def of(cls, runnable: Runnable, request: PredictRequest) -> Kind:
        """The kind of a request. Raises NotDifferentiable."""
        fields, vjp = request.fields, request.vjp
        return cls(
            runnable,
            Bucket(runnable.name, runnable.version, id(runnable), fields.shape[1:], vjp),
            Flow(runnable.name, level_of(request.priority)),
            fields.nbytes // len(fields),
            0 if vjp is None else runnable.gradient_bytes(vjp),
        )


CANCELLED = Unavailable("cancelled")
"""The error of requests that were cancelled."""


class Ticket(msgspec.Struct, eq=False):
    """A queued request of `size` fields and its progress.

    While a slice runs, `result` belongs to the device threads, otherwise to the event loop.
    """

    kind: Kind
    request: PredictRequest
    arrival: float
    """On the `time.monotonic` clock."""
    outcome: Outcome
    """A JoinedOutcome if the request is made of several."""
    size: int
    order: float = 0
    """Its position in its lane: by arrival; at the end again after each batch that took a part of it."""
    dispatched: int = 0
    """Fields taken out of the queue so far."""
    running_slices: int = 0
    """Number of its slices on the device threads."""
    result: PredictResult | None = None
    """Set when its first slice is dispatched, then filled."""
    ended: bool = False
    """It succeeded or failed; its outcome is set once no batch can write to the request's `output_buffer`."""
    error: ServiceError | None = None
    requests: int = 1
    """Number of requests: several if they were joined."""

    def __post_init__(self) -> None:
        if self.request.joined:
            self.requests = len(self.request.joined)
        if not self.order:
            self.requeue()

    def requeue(self) -> None:
        """Move behind all tickets that wait now."""
        self.order = next(_serial)

    def alone(self) -> list[Ticket]:
        """A ticket for each of its requests; only itself if they are not joined."""
        if not self.request.joined:
            return [self]
        joined = cast("JoinedOutcome", self.outcome)
        pairs = zip(self.request.alone(), joined.alone(), strict=True)
        tickets = [
            # In the place of this one, before the next.
            Ticket(
                self.kind, request, self.arrival, outcome, len(request.fields),
                self.order + place / self.requests,
            )
            for place, (request, outcome) in enumerate(pairs)
        ]  # fmt: skip
        joined.divided(tickets)
        return tickets

    @property
    def waiting(self) -> int:
        """Number of fields still in the queue."""
        return self.size - self.dispatched

    @property
    def settled(self) -> bool:
        """True if it has its outcome or was cancelled."""
        return self.ended or self.outcome.done()


def by_kind(tickets: Sequence[Ticket]) -> Collection[tuple[Kind, Sequence[Ticket]]]:
    """The tickets of each kind, in order."""
    if len(tickets) == 1 or len({ticket.kind for ticket in tickets}) == 1:
        return ((tickets[0].kind, tickets),)
    groups: dict[Kind, list[Ticket]] = {}
    for ticket in tickets:
        groups.setdefault(ticket.kind, []).append(ticket)
    return groups.items()


class Slice(NamedTuple):
    """Fields `start:stop` of a ticket: its part of one batch."""

    ticket: Ticket
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.ticket.size

    def of(self, array: Fields) -> Fields:
        """The slice's part of an array with an entry for each field of the ticket."""
        return array if self.whole else array[self.start : self.stop]
