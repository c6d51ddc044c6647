"""Queue limits: how many fields may wait, their expected wait, and requests to refuse at once because of it."""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from math import inf

from turbofno.service.engine.interface import PredictRequest
from turbofno.service.errors import PayloadTooLarge, QueueFull
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.batcher import Policy
from turbofno.service.pipeline.ticket import Kind, Slice, Ticket
from turbofno.service.settings import Settings, env_name

_SMOOTHING = 0.2
"""Weight of the newest batch in the drain rate."""
_MARGIN = 1.1
"""Factor on expected waits: without it, half of the requests admitted at the limit would miss their deadline."""


class QueueCapacity:
    """Counts waiting fields against the queue limits and estimates waiting times. For the event loop only."""

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._policy = Policy.of(settings)
        self._bytes: Counter[str] = Counter()
        """Model -> input bytes that wait; a field's device time is taken as proportional to its bytes."""
        self._ahead: defaultdict[str, Counter[int]] = defaultdict(Counter)
        """Model -> level -> bytes that run before a new request: at most one batch of each waiting request."""
        self._seconds_per_byte: dict[str, float] = {}
        """By model, in full batches."""
        self._slowdown = 1.0
        """Factor of waits on account of the scheduler's jobs, such as turns of rollouts, that run between batches."""
        self._running: deque[float] = deque()
        """Expected seconds of each batch on the device, in order."""
        self._running_since = 0.0
        """Time at which the first of them started to run alone."""
        self._model_quotas = {
            name: one.fields for name, one in settings.model_limits.items() if one.fields
        }
        """Model -> most fields in progress, where limited."""
        self._quota_used: Counter[tuple[str, str]] = Counter()
        """("caller" or "model", its name) -> fields in progress."""
        self.total = 0

    def waiting(self, model: str, version: str) -> int:
        return self._waiting[model, version]

    def reserve(self, ticket: Ticket) -> None:
        """Count a ticket's fields as waiting, and against its quota until `release_quota`.

        Raises:
            PayloadTooLarge: the request alone is over a quota.
            QueueFull: a quota is used up, the queue is full, or its backlog would make the ticket miss its deadline.
        """
        kind, deadline = ticket.kind, ticket.request.deadline
        self._check_quota(ticket.request)
        self.check(kind.bucket.model, kind.bucket.version, ticket.size)
        if deadline is not None:
            allowed, flow = deadline - ticket.arrival, kind.flow
            wait = self.wait_seconds(flow.model, flow.level, ticket.arrival)
            if wait * _MARGIN > allowed > 0.0:
                raise self.queue_full(
                    "too_late",
                    flow.model,
                    f"the work ahead of this request takes about {wait:.2g} s, but the request must start within "
                    f"{allowed:.2g} s (its own time limit, or {env_name('request_deadline_seconds')}).",
                    wait * _MARGIN - allowed,
                )
        self._count(kind, ticket.size, min(ticket.size, self._batch_limit(kind)))
        self._count_quota(ticket.request, ticket.size)

    def reserve_all(self, tickets: Sequence[Ticket], *, at_once: bool = False) -> bool:
        """Reserve for tickets of one kind together, if even the last of them fits behind the others and none has a quota.

        False if not: then nothing is counted, and some of them may still fit one by one. Tickets that start `at_once` do not
        wait: nothing is counted, but they have to fit.
        """
        kind, arrival = tickets[0].kind, tickets[0].arrival
        (model, version, *_), limit = kind.bucket, self._batch_limit(kind)
        fields, ahead, before = 0, 0, inf
        limited = model in self._model_quotas
        for ticket in tickets:
            request, size = ticket.request, ticket.size
            fields += size
            ahead += size if size < limit else limit
            if request.deadline is not None and request.deadline < before:
                before = request.deadline
            limited = limited or request.client_max_fields > 0
        if (
            limited
            or self._waiting[model, version] + fields > self._settings.max_queued_fields_per_model
            or self.total + fields > self._settings.max_queued_fields
        ):
            return False
        own = ahead * kind.field_bytes * self._pace(model)
        wait = self.wait_seconds(model, kind.flow.level, arrival) + own
        if wait * _MARGIN > before - arrival:
            return False
        if not at_once:
            self._count(kind, fields, ahead)
        return True

    def restore(self, tickets: Sequence[Ticket]) -> None:
        """Count the fields of tickets of one kind as waiting again: they were admitted before."""
        limit, sizes = self._batch_limit(tickets[0].kind), [ticket.size for ticket in tickets]
        self._count(tickets[0].kind, sum(sizes), sum([min(size, limit) for size in sizes]))

    def release(self, slices: Sequence[Slice]) -> None:
        """Give back the capacity of slices that leave the queue.

        They are of one bucket. The fields of their tickets before them have left it already.
        """
        kind = slices[0].ticket.kind
        limit, fields = self._batch_limit(kind), 0
        levels = self._ahead[kind.bucket.model]
        for ticket, start, stop in slices:
            fields += stop - start
            waited = ticket.size - start
            ahead = min(waited, limit) - min(waited - stop + start, limit)
            levels[ticket.kind.flow.level] -= ahead * kind.field_bytes
        self._count(kind, -fields, 0)

    @contextmanager
    def quota(self, request: PredictRequest) -> Iterator[None]:
        """Count a request's fields against the limits of its model and its caller.

        Raises:
            PayloadTooLarge: the request alone is over a limit.
            QueueFull: it is over a limit together with the fields now in progress.
        """
        self._check_quota(request)
        self._count_quota(request, len(request.fields))
        try:
            yield
        finally:
            self.release_quota(request)

    def release_quota(self, *requests: PredictRequest) -> None:
        """Undo what `reserve` or `quota` counted against quotas; requests without a limit are ignored."""
        if self._quota_used:
            for request in requests:
                self._count_quota(request, -len(request.fields))

    def _check_quota(self, request: PredictRequest) -> None:
        fields = len(request.fields)
        for (scope, name), limit in self._quotas(request):
            used = self._quota_used[scope, name]
            if used + fields <= limit:
                continue
            whose, setting = f"API key {name!r}", ""
            if scope == "model":
                whose, setting = f"model {name!r}", f" ({env_name('model_limits')})"
            message = (
                f"{whose} has {used} fields in progress and was asked for {fields} more: "
                f"its limit is {limit}{setting}."
            )
            raise self.over_limit(f"{scope}_fields", request.model, message, never=fields > limit)

    def _count_quota(self, request: PredictRequest, fields: int) -> None:
        for key, _ in self._quotas(request):
            self._quota_used[key] += fields

    def _quotas(self, request: PredictRequest) -> list[tuple[tuple[str, str], int]]:
        """A request's limits: (("caller" or "model", its name), most fields in progress)."""
        quotas = []
        if limit := self._model_quotas.get(request.model):
            quotas.append((("model", request.model), limit))
        if limit := request.client_max_fields:
            quotas.append((("caller", request.client), limit))
        return quotas

    def dispatch(self, batch: Sequence[Slice], now: float, *, waited: bool = True) -> float:
        """Take a batch onto the device, out of the queue if it `waited`. Returns its expected seconds; 0: not known yet."""
        if waited:
            self.release(batch)
        if not self._running:
            self._running_since = now
        kind = batch[0].ticket.kind
        size = sum(stop - start for _, start, stop in batch) * kind.field_bytes
        expected = size * self._seconds_per_byte.get(kind.bucket.model, 0.0)
        self._running.append(expected)
        return expected

    def end_batch(self, now: float) -> None:
        """Record the end, with or without success, of the batch that started first."""
        self._running.popleft()
        self._running_since = now

    def note_batch(self, model: str, limit: int, seconds: float) -> None:
        """Update the drain rate with a batch's seconds, as if it had been full (`limit` input bytes).

        Under load, when the rate matters, batches are full.
        """
        latest = seconds / limit
        if model in self._seconds_per_byte:
            latest = _smoothed(self._seconds_per_byte[model], latest)
        self._seconds_per_byte[model] = latest

    def note_jobs(self, seconds: float, batch_seconds: float) -> None:
        """Record the seconds of jobs for which a batch of `batch_seconds` had to wait."""
        self._slowdown = _smoothed(self._slowdown, 1.0 + seconds / max(batch_seconds, 1e-6))

    def forget_jobs(self) -> None:
        """Expect no jobs between batches: those that were noted are over."""
        self._slowdown = 1.0

    def wait_seconds(self, model: str, level: int, now: float) -> float:
        """Expected wait of new work: running batches, its model's queue, and other models' share meanwhile."""
        if not (self.total or self._running):
            return 0.0
        own = self._backlog(model, level)
        others = sum(
            min(own, self._backlog(other, level)) for other in self._ahead if other != model
        )
        running = sum(self._running) - (now - self._running_since) if self._running else 0.0
        return max(running, 0.0) + own + others

    @property
    def drain_seconds(self) -> float:
        """Expected seconds until the queue is empty, bounded to 1..60, for Retry-After."""
        return _bounded(sum(size * self._pace(model) for model, size in self._bytes.items()))

    def _backlog(self, model: str, level: int) -> float:
        """Expected device seconds of the model's work that runs before a new request at this level."""
        ahead = sum(n for other, n in self._ahead.get(model, {}).items() if other <= level)
        return ahead * self._pace(model)

    def _pace(self, model: str) -> float:
        """Expected seconds in which a byte of the model's queue runs."""
        return self._seconds_per_byte.get(model, 0.0) * self._slowdown

    def check(self, model: str, version: str, fields: int, *, coming: int = 0) -> None:
        """Raises QueueFull if so many more fields of the model do not fit into the queue, beside those on their way there."""
        settings, waiting = self._settings, self._waiting[model, version] + coming
        total = self.total + coming
        if waiting + fields > settings.max_queued_fields_per_model:
            whose, setting = f"of model {model!r}", "max_queued_fields_per_model"
        elif total + fields > settings.max_queued_fields:
            whose, waiting, setting = "of all models together", total, "max_queued_fields"
        else:
            return
        raise self.queue_full(
            "queue_full",
            model,
            f"the queue {whose} holds or expects {waiting} fields and has no room for {fields} more: "
            f"the limit is {getattr(settings, setting)} ({env_name(setting)}).",
        )

    def queue_full(
        self, reason: str, model: str, message: str, retry_after: float | None = None
    ) -> QueueFull:
        """Count a refusal; return its error, by default with the time in which the queue drains."""
        self._metrics.reject(reason, model)
        return QueueFull(
            f"{message} Retry after the time in Retry-After.",
            retry_after=self.drain_seconds if retry_after is None else _bounded(retry_after),
        )

    def over_limit(
        self, reason: str, model: str, message: str, *, never: bool
    ) -> QueueFull | PayloadTooLarge:
        """As `queue_full`, for a limit that the request alone may exceed: then it `never` fits."""
        error = self.queue_full(reason, model, message)
        return PayloadTooLarge(f"{message} Send fewer fields in a request.") if never else error

    def _batch_limit(self, kind: Kind) -> int:
        return self._policy.limit(kind.field_bytes, kind.gradient_bytes, model=kind.flow.model)

    def _count(self, kind: Kind, fields: int, ahead: int) -> None:
        """Add `fields` to the waiting fields; `ahead` of them run before a new request."""
        key = model, _ = kind.bucket[:2]
        self.total += fields
        if key not in self._waiting:
            self._metrics.queue_depth.labels(*key).set_function(partial(self.waiting, *key))
        self._waiting[key] += fields
        self._bytes[model] += fields * kind.field_bytes
        self._ahead[model][kind.flow.level] += ahead * kind.field_bytes


def _smoothed(before: float, latest: float) -> float:
    return _SMOOTHING * latest + (1 - _SMOOTHING) * before


def _bounded(seconds: float) -> float:
    return min(max(seconds, 1.0), 60.0)
