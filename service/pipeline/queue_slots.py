"""The queue's room: how many fields may wait, how long they would, and so who is told at once to come back later."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING

from service.errors import PayloadTooLarge, QueueFull
from service.model_limits import UNLIMITED
from service.pipeline.batcher import Policy
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from service.metrics import Metrics
    from service.model_limits import ModelLimits
    from service.pipeline.engine import PredictRequest
    from service.pipeline.ticket import Ticket
    from service.settings import Settings

_SMOOTHING = 0.2
"""Weight of the newest batch in the drain rate."""
_UNCOUNTED = nullcontext()
_MARGIN = 1.1
"""Expected waits are taken this much longer: under load the queue stays at the limit, and half of it would be late."""


class QueueSlots:
    """Counts the fields that wait for the device and says when there is room again.

    Used from the event loop only.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._policy = Policy.of(settings)
        self._bytes: Counter[str] = Counter()
        """Model -> input bytes that wait: what a field takes goes by its size."""
        self._ahead: dict[str, Counter[int]] = {}
        """Model -> those of them, at each level, that run before whoever comes: of each request one batch."""
        self._seconds_per_byte: dict[str, float] = {}
        """By model, in full batches."""
        self._running: deque[float] = deque()
        """Seconds that each batch on the device should take, in their order."""
        self._running_since = 0.0
        """When the first of them had the device to itself."""
        self._in_work: Counter[tuple[str, str]] = Counter()
        """By ("caller" or "model", its name)."""
        self.total = 0

    def waiting(self, model: str, version: str) -> int:
        """Fields of this model that wait now."""
        return self._waiting[model, version]

    def take(self, ticket: Ticket) -> None:
        """Count a ticket's fields in.

        Raises:
            QueueFull: there is no room for them, or too much is ahead of them to start before their deadline.
        """
        name, version = ticket.runnable.name, ticket.runnable.version
        self._check(name, version, ticket.size)
        if ticket.deadline is not None:
            self._check_deadline(ticket, ticket.deadline - ticket.arrival)
        self._count(ticket, was=0, now=ticket.size)

    def release(self, ticket: Ticket, fields: int) -> None:
        """Count `fields` out, which its ticket counts as taken already: they have started to run or were dropped."""
        self._count(ticket, was=ticket.waiting + fields, now=ticket.waiting)

    def check_room(self, model: str, version: str, *, coming: int = 0) -> None:
        """Raises QueueFull if not even one more field of the model would find room, beside so many on their way."""
        self._check(model, version, coming + 1)

    def in_work(self, request: PredictRequest) -> AbstractContextManager[None]:
        """Count a request's fields to its model and its caller, from the queue to the answer, if those have limits.

        Raises:
            PayloadTooLarge: they are more than either may have in work at all.
            QueueFull: they are too many beside what it has in work now.
        """
        limits = self._settings.model_limits.get(request.model, UNLIMITED)
        limited = limits.fields or request.client_max_fields
        return self._counted(request, limits) if limited else _UNCOUNTED

    @contextmanager
    def _counted(self, request: PredictRequest, limits: ModelLimits) -> Iterator[None]:
        fields = len(request.fields)
        counted = []
        if limits.fields:
            counted.append(("model", request.model))
            self._check_work(
                request.model, f"model {request.model!r}", counted[-1], fields, limits.fields,
                f" ({env_name('model_limits')})",
            )  # fmt: skip
        if request.client_max_fields:
            counted.append(("caller", request.client))
            self._check_work(
                request.model,
                f"API key {request.client!r}",
                counted[-1],
                fields,
                request.client_max_fields,
                "",
            )
        for one in counted:
            self._in_work[one] += fields
        try:
            yield
        finally:
            for one in counted:
                self._in_work[one] -= fields

    def _check_work(
        self,
        model: str,
        whose: str,
        counted: tuple[str, str],
        fields: int,
        most: int,
        setting: str,
    ) -> None:
        now = self._in_work[counted]
        if now + fields <= most:
            return
        reason = f"{counted[0]}_fields"
        message = (
            f"{whose} has {now} fields in work and is asked for {fields} more: "
            f"its limit is {most}{setting}."
        )
        if fields > most:
            self._metrics.reject(reason, model)
            raise PayloadTooLarge(f"{message} Send fewer fields in a request.")
        raise self._full(message, reason, model)

    def start_batch(self, model: str, size: int, now: float) -> float:
        """Note a batch of so many input bytes on its way to the device. Seconds that it should take; 0: not known yet."""
        if not self._running:
            self._running_since = now
        expected = size * self._seconds_per_byte.get(model, 0.0)
        self._running.append(expected)
        return expected

    def end_batch(self, now: float) -> None:
        """Note that the batch started first has ended, however."""
        self._running.popleft()
        self._running_since = now

    def note_batch(self, model: str, room: int, seconds: float) -> None:
        """Learn the drain rate from one batch, in which `room` input bytes would have had room.

        Counted as if it had been full: under load, when the rate matters, it is.
        """
        latest = seconds / room
        if model in self._seconds_per_byte:
            latest = _SMOOTHING * latest + (1 - _SMOOTHING) * self._seconds_per_byte[model]
        self._seconds_per_byte[model] = latest

    def wait_seconds(self, model: str, level: int, now: float) -> float:
        """How long new work should wait: for what runs, its own model's queue, and other models' turns meanwhile."""
        own = self._backlog(model, level)
        turns = sum(
            min(own, self._backlog(other, level)) for other in self._ahead if other != model
        )
        running = sum(self._running) - (now - self._running_since) if self._running else 0.0
        return max(running, 0.0) + own + turns

    @property
    def drain_seconds(self) -> float:
        """How long the queue should take to run empty: 1 s to 60 s, for Retry-After."""
        return _bounded(
            sum(
                size * self._seconds_per_byte.get(model, 0.0) for model, size in self._bytes.items()
            )
        )

    def _backlog(self, model: str, level: int) -> float:
        """Device seconds of what runs before new work of a model at this level."""
        ahead = sum(n for other, n in self._ahead.get(model, {}).items() if other <= level)
        return ahead * self._seconds_per_byte.get(model, 0.0)

    def _check(self, model: str, version: str, fields: int) -> None:
        settings, waiting = self._settings, self._waiting[model, version]
        if waiting + fields > settings.max_queued_fields_per_model:
            raise self._no_slot(
                model, f"of model {model!r}", waiting, fields, "max_queued_fields_per_model"
            )
        if self.total + fields > settings.max_queued_fields:
            raise self._no_slot(
                model, "of all models together", self.total, fields, "max_queued_fields"
            )

    def _no_slot(
        self, model: str, whose: str, waiting: int, fields: int, setting: str
    ) -> QueueFull:
        return self._full(
            f"the queue {whose} holds {waiting} fields and has no room for {fields} more: "
            f"the limit is {getattr(self._settings, setting)} ({env_name(setting)}).",
            "queue_full",
            model,
        )

    def _check_deadline(self, ticket: Ticket, allowed: float) -> None:
        wait = self.wait_seconds(ticket.flow.model, ticket.flow.level, ticket.arrival)
        if wait * _MARGIN > allowed > 0.0:
            raise self._full(
                f"the work ahead of this request takes about {wait:.2g} s, and it is of use only if it starts "
                f"within {allowed:.2g} s (its own time limit, or {env_name('request_deadline_seconds')}).",
                "too_late",
                ticket.flow.model,
                wait * _MARGIN - allowed,
            )

    def _full(
        self, message: str, reason: str, model: str, retry_after: float | None = None
    ) -> QueueFull:
        self._metrics.reject(reason, model)
        return QueueFull(
            f"{message} Retry after the time in Retry-After.",
            retry_after=self.drain_seconds if retry_after is None else _bounded(retry_after),
        )

    def _count(self, ticket: Ticket, *, was: int, now: int) -> None:
        """Note that of a ticket's fields so many wait, where so many did."""
        model, version = ticket.runnable.name, ticket.runnable.version
        self.total += now - was
        key = (model, version)
        if key not in self._waiting:
            self._metrics.queue_depth.labels(*key).set_function(partial(self.waiting, *key))
        self._waiting[key] += now - was
        self._bytes[model] += (now - was) * ticket.field_bytes
        turn = self._policy.for_model(model).limit(ticket.field_bytes, ticket.kept_bytes)
        levels = self._ahead.setdefault(model, Counter())
        levels[ticket.flow.level] += (min(now, turn) - min(was, turn)) * ticket.field_bytes


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), 60.0)
