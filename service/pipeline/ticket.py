"""One request's work between the queue and its outcome."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, Protocol

from service.pipeline.shares import Flow, level_of

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Mapping, Sequence

    from service.pipeline.engine import Fields, PredictResult
    from service.pipeline.vjp import VjpShapes

_serial = itertools.count()


class ModelOutput(NamedTuple):
    """What one run of a model gave, float32 [n, out_channels, *grid], and what really ran. Times are seconds."""

    fields: Fields | None
    """None if they stand where `Runnable.start` was told."""
    backend: str
    precision: str = "fp32"
    gather_seconds: float = 0.0
    compute_seconds: float = 0.0
    trust: Mapping[str, list[float]] = MappingProxyType({})
    """As in PredictResult, for all fields of the run."""
    total: float | None = None
    """Sum of all values, where that is known: not finite if any of them is not."""
    release: Callable[[], None] | None = None
    """To be called once, when nobody looks at the fields any more; None if they are the receiver's own memory."""


class Runnable(Protocol):
    """A loaded model, as the pipeline sees it."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def start(
        self, parts: Sequence[Fields], answers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        """Begin to predict `parts`, each float32 [n, in_channels, *grid], as one batch; on the device thread.

        With `answers`, which must be `page_locked.straight`, those of each part are written there if they have that
        shape. The parts must be left unchanged, and the answers alone. What it returns is called once, on any thread; it waits for the
        answer, whose memory may be lent (`ModelOutput.release`): there is not much of it.

        Raises:
            DeviceLost: here or from the wait; the process can run nothing more on the device.
            Exception: here only, whatever the model raises; nothing of the batch is left running then.
        """
        ...

    def start_vjp(self, parts: Sequence[Fields], shapes: VjpShapes) -> Callable[[], ModelOutput]:
        """As `start`, for gradients: the parts are rows of these shapes, and the answer has such rows."""
        ...

    def kept_bytes(self, shapes: VjpShapes) -> int:
        """Memory that the gradient of one field takes beside its row, about; on any thread.

        Raises:
            NotDifferentiable: the model has none.
        """
        ...

    def free_memory(self) -> None:
        """Give back the memory that it holds only to be faster; after running out. On the device thread."""
        ...


class Bucket(NamedTuple):
    """Tickets with equal buckets can run in one batch. `runnable` is an identity: a reloaded model is another."""

    model: str
    version: str
    runnable: int
    shape: tuple[int, ...]
    dtype: str
    vjp: VjpShapes | None


@dataclass(slots=True, eq=False)
class Ticket:
    """Fields [n, in_channels, *grid], or rows for gradients, of one request. Times are on the scheduler's clock.

    `outputs` and the counts of compute belong to the device thread while a slice runs, to the event loop else.
    """

    runnable: Runnable
    fields: Fields
    arrival: float
    outcome: asyncio.Future[PredictResult]
    priority: int = 0
    deadline: float | None = None
    request_id: str = ""
    trace: str = ""
    answer: Fields | None = None
    """Where the outputs are to stand; someone else's memory once the request has its outcome."""
    vjp: VjpShapes | None = None
    serial: int = field(default_factory=lambda: next(_serial))
    turn: int = field(init=False)
    """Its place in its lane: by arrival, and at the end again after each batch that took a part of it."""
    taken: int = 0
    """Fields handed to the device so far."""
    done: int = 0
    """Fields answered so far."""
    under_way: int = 0
    """Its slices that the device threads have."""
    landed: asyncio.Future[None] | None = None
    """Who waits for them to have none."""
    started: float | None = None
    compute_seconds: float = 0.0
    batch_sizes: list[int] = field(default_factory=list)
    outputs: Fields | None = None
    backend: str = ""
    precision: str = "fp32"
    trust: dict[str, list[float]] = field(default_factory=dict)
    bucket: Bucket = field(init=False)
    flow: Flow = field(init=False)
    kept_bytes: int = field(init=False)
    """Memory that a field takes while it runs, beside its own; 0 where no gradient is asked for."""

    def __post_init__(self) -> None:
        self.bucket = Bucket(
            self.runnable.name,
            self.runnable.version,
            id(self.runnable),
            self.fields.shape[1:],
            self.fields.dtype.str,
            self.vjp,
        )
        self.turn = self.serial
        self.flow = Flow(self.runnable.name, level_of(self.priority))
        self.kept_bytes = 0 if self.vjp is None else self.runnable.kept_bytes(self.vjp)

    def give_way(self) -> None:
        """Go behind all that waits now: it has had its turn."""
        self.turn = next(_serial)

    @property
    def size(self) -> int:
        """Number of fields."""
        return len(self.fields)

    @property
    def field_bytes(self) -> int:
        return self.fields.nbytes // self.size

    @property
    def waiting(self) -> int:
        """Fields not yet handed to the device."""
        return self.size - self.taken

    @property
    def settled(self) -> bool:
        """It has its outcome, or nobody waits for it any more."""
        return self.outcome.done()


class Slice(NamedTuple):
    """Fields `start:stop` of a ticket: its part of one batch."""

    ticket: Ticket
    start: int
    stop: int

    @property
    def fields(self) -> Fields:
        return self.ticket.fields[self.start : self.stop]

    @property
    def whole(self) -> bool:
        return self.stop - self.start == self.ticket.size
