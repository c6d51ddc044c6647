"""The queue's room: how many fields may wait, how long they would, and so who is told at once to come back later."""

from __future__ import annotations

from collections import Counter, deque
from contextlib import contextmanager
from functools import partial
from math import inf
from typing import TYPE_CHECKING

from turbofno.service.errors import PayloadTooLarge, QueueFull
from turbofno.service.pipeline.batcher import Policy
from turbofno.service.pipeline.ticket import Slice
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turbofno.service.engine.interface import PredictRequest
    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.shares import Flow
    from turbofno.service.pipeline.ticket import Kind, Ticket
    from turbofno.service.settings import Settings

_SMOOTHING = 0.2
"""Weight of the newest batch in the drain rate."""
_MARGIN = 1.1
"""Expected waits are taken this much longer: under load the queue stays at the limit, and half of it would be late."""


class QueueCapacity:
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
        self._model_quotas = {
            name: one.fields for name, one in settings.model_limits.items() if one.fields
        }
        """Models with a limit -> most fields in work."""
        self._quota_used: Counter[tuple[str, str]] = Counter()
        """By ("caller" or "model", its name)."""
        self.total = 0

    def waiting(self, model: str, version: str) -> int:
        """Fields of this model that wait now."""
        return self._waiting[model, version]

    def reserve(self, ticket: Ticket) -> None:
        """Count a ticket's fields in.

        Raises:
            QueueFull: there is no room for them, or too much is ahead of them to start before their deadline.
        """
        kind, deadline = ticket.kind, ticket.request.deadline
        self._check(kind.bucket.model, kind.bucket.version, ticket.size)
        if deadline is not None:
            self._check_deadline(kind.flow, deadline - ticket.arrival, ticket.arrival)
        self._count(kind, ticket.size, min(ticket.size, self._batch_limit(kind)))

    def reserve_all(self, tickets: Sequence[Ticket]) -> bool:
        """Count tickets of one kind in that came together, if the last would find room even behind the others.

        False if not: nothing is counted then, and some of them may find room one by one.
        """
        kind, arrival, turn = (
            tickets[0].kind,
            tickets[0].arrival,
            self._batch_limit(tickets[0].kind),
        )
        model, version = kind.bucket[:2]
        fields = sum(one.size for one in tickets)
        if (
            self._waiting[model, version] + fields > self._settings.max_queued_fields_per_model
            or self.total + fields > self._settings.max_queued_fields
        ):
            return False
        ahead = sum(min(one.size, turn) for one in tickets)
        allowed = min(
            (one.request.deadline for one in tickets if one.request.deadline is not None),
            default=inf,
        )
        own = ahead * kind.field_bytes * self._seconds_per_byte.get(model, 0.0)
        wait = self.wait_seconds(model, kind.flow.level, arrival) + own
        if wait * _MARGIN > allowed - arrival:
            return False
        self._count(kind, fields, ahead)
        return True

    def release(self, ticket: Ticket, fields: int) -> None:
        """Count `fields` out, which its ticket counts as taken already: they were dropped."""
        self._release((Slice(ticket, ticket.dispatched - fields, ticket.dispatched),))

    def _release(self, slices: Sequence[Slice]) -> None:
        """Count slices of one bucket out."""
        kind = slices[0].ticket.kind
        turn, fields = self._batch_limit(kind), 0
        levels = self._ahead[kind.bucket.model]
        for ticket, start, stop in slices:
            fields += stop - start
            waited = ticket.size - start
            ahead = min(waited, turn) - min(waited - stop + start, turn)
            levels[ticket.kind.flow.level] -= ahead * kind.field_bytes
        self._count(kind, -fields, 0)

    def check_capacity(self, model: str, version: str, *, coming: int = 0) -> None:
        """Raises QueueFull if not even one more field of the model would find room, beside so many on their way."""
        self._check(model, version, coming + 1)

    @contextmanager
    def quota(self, request: PredictRequest) -> Iterator[None]:
        """Count a request's fields to its model and its caller while it lasts; see `enter`."""
        self.acquire_quota(request)
        try:
            yield
        finally:
            self.release_quota(request)

    def has_quota(self, request: PredictRequest) -> bool:
        """True if its model or its caller has a limit of fields in work, so that `enter` is to be called."""
        return request.client_max_fields > 0 or request.model in self._model_quotas

    def acquire_quota(self, request: PredictRequest) -> None:
        """Count its fields to its model and its caller, until it leaves with its answer.

        Raises:
            PayloadTooLarge: they are more than either may have in work at all.
            QueueFull: they are too many beside what it has in work now.
        """
        fields, model, client = len(request.fields), request.model, request.client
        if most := self._model_quotas.get(model, 0):
            self._check_quota(
                model, f"model {model!r}", ("model", model), fields, most,
                f" ({env_name('model_limits')})",
            )  # fmt: skip
        if most := request.client_max_fields:
            self._check_quota(model, f"API key {client!r}", ("caller", client), fields, most, "")
        self._add_quota_used(request, fields)

    def release_quota(self, *requests: PredictRequest) -> None:
        """The other end of `enter`, of requests without a limit nothing."""
        for request in requests:
            if request.client_max_fields or request.model in self._model_quotas:
                self._add_quota_used(request, -len(request.fields))

    def _add_quota_used(self, request: PredictRequest, fields: int) -> None:
        if request.model in self._model_quotas:
            self._quota_used["model", request.model] += fields
        if request.client_max_fields:
            self._quota_used["caller", request.client] += fields

    def _check_quota(
        self,
        model: str,
        whose: str,
        counted: tuple[str, str],
        fields: int,
        most: int,
        setting: str,
    ) -> None:
        now = self._quota_used[counted]
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

    def dispatch(self, batch: Sequence[Slice], now: float) -> float:
        """Count a batch out on its way to the device. Seconds that it should take; 0: not known yet."""
        self._release(batch)
        kind = batch[0].ticket.kind
        fields = sum(stop - start for _, start, stop in batch)
        return self.start_batch(kind.bucket.model, fields * kind.field_bytes, now)

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

    def _check_deadline(self, flow: Flow, allowed: float, now: float) -> None:
        wait = self.wait_seconds(flow.model, flow.level, now)
        if wait * _MARGIN > allowed > 0.0:
            raise self._full(
                f"the work ahead of this request takes about {wait:.2g} s, and it is of use only if it starts "
                f"within {allowed:.2g} s (its own time limit, or {env_name('request_deadline_seconds')}).",
                "too_late",
                flow.model,
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

    def _batch_limit(self, kind: Kind) -> int:
        """Most fields of a ticket of that kind that run before whoever comes after it."""
        return self._policy.for_model(kind.flow.model).limit(kind.field_bytes, kind.gradient_bytes)

    def _count(self, kind: Kind, fields: int, ahead: int) -> None:
        """Note that so many more fields wait, and so many more of them run before whoever comes."""
        key = model, _ = kind.bucket[:2]
        self.total += fields
        if key not in self._waiting:
            self._metrics.queue_depth.labels(*key).set_function(partial(self.waiting, *key))
        self._waiting[key] += fields
        self._bytes[model] += fields * kind.field_bytes
        levels = self._ahead.setdefault(model, Counter())
        levels[kind.flow.level] += ahead * kind.field_bytes


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), 60.0)
