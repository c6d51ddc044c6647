"""One request's work between the queue and its outcome."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
from msgspec import field

from turbofno.service.errors import Unavailable
from turbofno.service.pipeline.shares import Flow, level_of

if TYPE_CHECKING:
    from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult
    from turbofno.service.engine.runnable import Runnable
    from turbofno.service.engine.vjp import VjpShapes
    from turbofno.service.errors import ServiceError

_serial = itertools.count()


class Outcome(Protocol):
    """Receiver of a request's one answer, result or error. A future is one."""

    def done(self) -> bool:
        """It was given, or nobody waits for it any more."""
        ...

    def set_result(self, result: PredictResult, /) -> None: ...

    def set_exception(self, error: ServiceError, /) -> None: ...


class Bucket(NamedTuple):
    """Tickets with equal buckets can run in one batch. `runnable` is an identity: a reloaded model is another."""

    model: str
    version: str
    runnable: int
    shape: tuple[int, ...]
    vjp: VjpShapes | None


class Kind(msgspec.Struct, frozen=True, eq=False):
    """Attributes that like requests share: the requests of a block are admitted, counted and queued kind by kind."""

    runnable: Runnable
    bucket: Bucket
    flow: Flow
    field_bytes: int
    gradient_bytes: int
    """Memory that a field takes while it runs, beside its own; 0 where no gradient is asked for."""

    @classmethod
    def of(cls, runnable: Runnable, request: PredictRequest) -> Kind:
        """The kind of a request, of at least one field. Raises NotDifferentiable."""
        fields, vjp = request.fields, request.vjp
        return cls(
            runnable,
            Bucket(runnable.name, runnable.version, id(runnable), fields.shape[1:], vjp),
            Flow(runnable.name, level_of(request.priority)),
            fields.nbytes // len(fields),
            0 if vjp is None else runnable.gradient_bytes(vjp),
        )


CANCELLED = Unavailable("cancelled")
"""The error of whom nobody waits for any more."""


class Ticket(msgspec.Struct, eq=False):
    """A request's place in the queue, and what has become of its `size` fields.

    While a slice runs the result belongs to the device threads, to the event loop else.
    """

    kind: Kind
    request: PredictRequest
    arrival: float
    """On the `time.monotonic` clock."""
    outcome: Outcome
    size: int
    order: int = field(default_factory=_serial.__next__)
    """Its place in its lane: by arrival, and at the end again after each batch that took a part of it."""
    dispatched: int = 0
    """Fields handed to the device so far."""
    answered: int = 0
    """Fields answered so far."""
    running_slices: int = 0
    """Its slices that the device threads have."""
    result: PredictResult | None = None
    """Facts of its answer, from when its first slice was handed over."""
    ended: bool = False
    """It succeeded or failed; its outcome is told once nothing writes into the request's `answer` any more."""
    error: ServiceError | None = None
    """The error with which it failed."""

    def requeue(self) -> None:
        """Go behind all that waits now: it has had its turn."""
        self.order = next(_serial)

    @property
    def waiting(self) -> int:
        """Fields not yet handed to the device."""
        return self.size - self.dispatched

    @property
    def settled(self) -> bool:
        """It has its outcome, or nobody waits for it any more."""
        return self.ended or self.outcome.done()


class Slice(NamedTuple):
    """Fields `start:stop` of a ticket: its part of one batch."""

    ticket: Ticket
    start: int
    stop: int

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.ticket.size

    def of(self, array: Fields) -> Fields:
        """Its part of an array with an entry for each field of the ticket."""
        ticket, start, stop = self
        return array if stop - start == ticket.size else array[start:stop]
