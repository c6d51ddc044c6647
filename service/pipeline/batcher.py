"""The batching policy: decides by tickets and a given time only, without clock, threads or tasks."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple, Self

from turbofno.service.pipeline.shares import Flow, Shares
from turbofno.service.pipeline.ticket import Bucket, Kind, Slice, Ticket
from turbofno.service.settings import Settings


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits of a batch, and how long an idle device waits for one to fill."""

    max_fields: int
    max_bytes: int
    max_delay: float = 0.0
    max_gradient_bytes: int = sys.maxsize
    """Most memory that a batch of gradients takes in addition to its fields."""
    max_fields_of: Mapping[str, int] = field(default_factory=dict)
    """Model -> a lower `max_fields`."""

    @classmethod
    def of(cls, settings: Settings) -> Self:
        return cls(
            settings.max_batch_size,
            settings.max_batch_bytes,
            settings.max_queue_delay_seconds,
            settings.max_gradient_bytes,
            {name: limits.batch for name, limits in settings.model_limits.items() if limits.batch},
        )

    def limit(self, field_bytes: int, gradient_bytes: int = 0, *, model: str = "") -> int:
        """Most fields of that size in a batch of a model, each with that much gradient memory; at least 1."""
        most = min(self.max_fields, self.max_fields_of.get(model, self.max_fields))
        return _limit(most, self.max_bytes, self.max_gradient_bytes, field_bytes, gradient_bytes)


@lru_cache(maxsize=1024)
def _limit(
    fields: int, max_bytes: int, max_gradient_bytes: int, field_bytes: int, gradient_bytes: int
) -> int:
    fitting = min(max_bytes // max(1, field_bytes), max_gradient_bytes // max(1, gradient_bytes))
    return max(1, min(fields, fitting))


class Decision(NamedTuple):
    """The next batch; if that is empty, when to ask again."""

    batch: tuple[Slice, ...] = ()
    expired: tuple[Ticket, ...] = ()
    wake_at: float | None = None


class Batcher:
    """Waiting tickets by bucket and priority.

    The next batch belongs to the flow (model and priority) with the least device time (`Shares`) and, within it, to the
    bucket of the oldest ticket. It takes that bucket's tickets of that priority in order of arrival, then fills up with
    the bucket's other priorities, highest first. Only tickets larger than a batch are split. A split ticket goes to the
    end of its lane after each batch, so a new request waits for at most one batch of each earlier one.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._shares = Shares()
        self._queues: dict[Bucket, _Queue] = {}
        self.lowered: dict[Bucket, int] = {}
        """Most fields in a batch of a bucket of which more ran out of memory (`MemoryLimits`)."""

    def add(self, *tickets: Ticket) -> None:
        """Append tickets of one kind to their lane."""
        kind = tickets[0].kind
        queue = self._queues.get(kind.bucket)
        if queue is None:
            queue = self._queues[kind.bucket] = _Queue(kind)
        queue.add(kind.flow, tickets)

    def restore(self, tickets: Sequence[Ticket]) -> None:
        """Put tickets of one kind, which were joined, where they were in their lane."""
        self.add(*tickets)
        kind = tickets[0].kind
        lanes = self._queues[kind.bucket].lanes
        lanes[kind.flow] = OrderedDict(sorted(lanes[kind.flow].items()))

    def limit(self, kind: Kind) -> int:
        lowered = self.lowered.get(kind.bucket)
        if lowered is not None:
            return lowered
        return self._policy.limit(kind.field_bytes, kind.gradient_bytes, model=kind.flow.model)

    def note_ran(self, batch: Sequence[Slice], seconds: float) -> None:
        """Charge the device time of a batch to the flows whose fields ran in it."""
        fields: dict[Flow, int] = {}
        for ticket, start, stop in batch:
            flow = ticket.kind.flow
            fields[flow] = fields.get(flow, 0) + stop - start
        total = sum(fields.values())
        for flow, count in fields.items():
            self._shares.charge(flow, seconds * count / total)

    def discard(self, ticket: Ticket) -> None:
        """Remove a ticket if it still waits."""
        queue = self._queues.get(ticket.kind.bucket)
        if queue is not None:
            queue.discard(ticket)
            self._drop_if_empty(ticket.kind.bucket)

    def next_batch(self, now: float, *, full_only: bool = False) -> Decision:
        """Take the next batch out of the queues, and the expired or settled tickets before it.

        With `full_only` nothing is taken unless the next bucket fills a batch: full buckets behind it must not starve it.
        """
        expired: list[Ticket] = []
        wake_at: float | None = None
        for *_, flow, bucket in self._lanes_in_order():
            queue = self._queues[bucket]
            limit = self.limit(queue.kind)
            full = queue.fields >= limit
            ready_at = float("-inf") if full else queue.ready_at(self._policy.max_delay)
            if ready_at > now:
                wake_at = ready_at if wake_at is None else min(wake_at, ready_at)
                continue
            if full_only and not full:
                break
            batch = queue.take(flow, limit, now, expired)
            self._drop_if_empty(bucket)
            if batch:
                self._shares.serve(flow)
                return Decision(tuple(batch), tuple(expired))
        return Decision((), tuple(expired), wake_at)

    def fit(self, tickets: Sequence[Ticket]) -> bool:
        """True if tickets of one kind could run now as one batch, were the queues empty."""
        fields, limit = sum([ticket.size for ticket in tickets]), self.limit(tickets[0].kind)
        return fields == limit or (fields < limit and not self._policy.max_delay)

    def batch_of(self, tickets: Sequence[Ticket]) -> tuple[Slice, ...]:
        """Tickets that fit, as the next batch, past the empty queues."""
        self._shares.serve(tickets[0].kind.flow)
        for ticket in tickets:
            ticket.dispatched = ticket.size
        return tuple([Slice(ticket, 0, ticket.size) for ticket in tickets])

    def _lanes_in_order(self) -> list[tuple[float, int, float, Flow, Bucket]]:
        """All lanes, ordered by clock, then priority, then age."""
        lanes = [
            (self._shares.clock(flow), flow.level, next(iter(lane)), flow, bucket)
            for bucket, queue in self._queues.items()
            for flow, lane in queue.lanes.items()
        ]
        lanes.sort()
        return lanes

    def _drop_if_empty(self, bucket: Bucket) -> None:
        if not self._queues[bucket].lanes:
            del self._queues[bucket]


class _Queue:
    """One bucket: for each flow a non-empty lane of tickets in order."""

    def __init__(self, kind: Kind) -> None:
        """`kind` is that of its first tickets; kinds of a bucket differ by flow only."""
        self.kind = kind
        self.fields = 0
        self.lanes: dict[Flow, OrderedDict[float, Ticket]] = {}

    def add(self, flow: Flow, tickets: Sequence[Ticket]) -> None:
        self.lanes.setdefault(flow, OrderedDict()).update([(one.order, one) for one in tickets])
        self.fields += sum([one.size for one in tickets])

    def discard(self, ticket: Ticket) -> None:
        lane = self.lanes.get(ticket.kind.flow)
        if lane is not None and lane.pop(ticket.order, None) is not None:
            self.fields -= ticket.waiting
            if not lane:
                del self.lanes[ticket.kind.flow]

    def ready_at(self, delay: float) -> float:
        """Return the time to run: now without delay; a ticket is delayed for at most half of its time to its deadline."""
        if delay == 0.0:
            return float("-inf")
        return min(
            ticket.arrival + delay
            if ticket.request.deadline is None
            else min(ticket.arrival + delay, (ticket.arrival + ticket.request.deadline) / 2)
            for lane in self.lanes.values()
            for ticket in lane.values()
        )

    def take(self, first: Flow, limit: int, now: float, expired: list[Ticket]) -> list[Slice]:
        """A batch of at most `limit` of that lane's tickets' fields, filled up from the other lanes; empty if all of its tickets are over."""
        batch: list[Slice] = []
        room = limit
        for flow in (first, *sorted(self.lanes.keys() - {first})):
            lane = self.lanes[flow]
            while room and lane:
                order, ticket = lane.popitem(last=False)
                start, deadline = ticket.dispatched, ticket.request.deadline
                # A deadline is for the start of the work: it is met once a part has run.
                late = start == 0 and deadline is not None and deadline <= now
                settled = ticket.settled
                if late or settled:
                    self.fields -= ticket.size - start
                    if not settled:
                        expired.append(ticket)
                    continue
                if room < ticket.size <= limit:
                    lane[order] = ticket
                    lane.move_to_end(order, last=False)
                    break
                count = min(ticket.size - start, room)
                ticket.dispatched += count
                self.fields -= count
                room -= count
                batch.append(Slice(ticket, start, ticket.dispatched))
                if ticket.dispatched < ticket.size:
                    ticket.requeue()
                    lane[ticket.order] = ticket
            if not lane:
                del self.lanes[flow]
            if not batch:
                break
        return batch
