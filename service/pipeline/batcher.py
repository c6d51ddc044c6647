"""Which tickets run next, together: a policy of tickets and a time, without clock, threads or tasks."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

from service.pipeline.ticket import Slice

if TYPE_CHECKING:
    from service.pipeline.ticket import Bucket, Ticket
    from service.settings import Settings


@dataclass(frozen=True, slots=True)
class Policy:
    """Most fields and input bytes in a batch, and how long an idle device waits for one to fill."""

    max_fields: int
    max_bytes: int
    max_delay: float = 0.0

    @classmethod
    def of(cls, settings: Settings) -> Self:
        """The policy that the settings ask for."""
        return cls(
            settings.max_batch_size, settings.max_batch_bytes, settings.max_queue_delay_seconds
        )

    def limit(self, field_bytes: int) -> int:
        """Most fields of that size in a batch. One always fits."""
        return max(1, min(self.max_fields, self.max_bytes // field_bytes))


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do at one moment. `batch` is empty if nothing is to run yet; then look again at `wake_at`."""

    batch: tuple[Slice, ...] = ()
    expired: tuple[Ticket, ...] = ()
    wake_at: float | None = None


class Batcher:
    """Waiting tickets by bucket.

    Inside a bucket: arrival order, always. Across buckets: the one with the earliest ticket, where each
    priority level below the highest counts as PRIORITY_STEP_SECONDS of later arrival. So a higher priority
    goes first, and a lower one still runs once it has waited for its handicap. Only tickets larger than a
    batch are split; the others stay whole.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._queues: dict[Bucket, _Queue] = {}
        self._learnt: dict[Bucket, int] = {}

    def __len__(self) -> int:
        """Number of tickets that wait, in whole or in part."""
        return sum(len(queue.tickets) for queue in self._queues.values())

    def add(self, ticket: Ticket) -> None:
        """Put a ticket at the end of its bucket."""
        queue = self._queues.get(ticket.bucket)
        if queue is None:
            limit = self._policy.limit(max(1, ticket.fields.nbytes // ticket.size))
            queue = self._queues[ticket.bucket] = _Queue(limit)
            queue.limit = min(limit, self._learnt.get(ticket.bucket, limit))
        queue.add(ticket)

    def lower_limit(self, bucket: Bucket, fields: int) -> None:
        """From now on at most that many fields of this bucket in a batch: more ran out of memory."""
        self._learnt[bucket] = fields
        if bucket in self._queues:
            self._queues[bucket].limit = fields

    def lift_limit(self, bucket: Bucket) -> None:
        """Back to the policy's limit."""
        del self._learnt[bucket]
        if bucket in self._queues:
            self._queues[bucket].limit = self._queues[bucket].policy_limit

    def discard(self, ticket: Ticket) -> None:
        """Forget a ticket, if it still waits."""
        queue = self._queues.get(ticket.bucket)
        if queue is not None:
            queue.discard(ticket)
            if not queue.tickets:
                del self._queues[ticket.bucket]

    def tickets(self) -> list[Ticket]:
        """All that wait, in no particular order."""
        return [ticket for queue in self._queues.values() for ticket in queue.tickets.values()]

    def next_batch(self, now: float, *, full_only: bool = False) -> Decision:
        """Take the next batch out of the queues, and every expired or settled ticket met on the way.

        With `full_only` the bucket whose turn it is goes on waiting for company if it does not fill a batch yet;
        no other takes its turn, else full ones could starve it.
        """
        expired: list[Ticket] = []
        wake_at: float | None = None
        for bucket in sorted(self._queues, key=lambda bucket: self._queues[bucket].rank()):
            queue = self._queues[bucket]
            ready_at = queue.ready_at(self._policy.max_delay)
            if ready_at > now:
                wake_at = ready_at if wake_at is None else min(wake_at, ready_at)
                continue
            if full_only and not queue.full:
                break
            batch = queue.take(now, expired)
            if not queue.tickets:
                del self._queues[bucket]
            if batch:
                return Decision(tuple(batch), tuple(expired))
        return Decision((), tuple(expired), wake_at)


class _Queue:
    """One bucket. The heap keeps removed tickets until they surface; `tickets` is the truth."""

    def __init__(self, limit: int) -> None:
        self.limit = self.policy_limit = limit
        self._fields = 0
        self._heap: list[tuple[float, int]] = []
        self.tickets: OrderedDict[int, Ticket] = OrderedDict()

    def add(self, ticket: Ticket) -> None:
        self.tickets[ticket.serial] = ticket
        self._fields += ticket.waiting
        heapq.heappush(self._heap, (ticket.virtual_arrival, ticket.serial))

    def discard(self, ticket: Ticket) -> None:
        if self.tickets.pop(ticket.serial, None) is not None:
            self._fields -= ticket.waiting

    @property
    def full(self) -> bool:
        return self._fields >= self.limit

    def rank(self) -> tuple[float, int]:
        while self._heap[0][1] not in self.tickets:
            heapq.heappop(self._heap)
        return self._heap[0]

    def ready_at(self, delay: float) -> float:
        """When to run: now if full or without delay; no ticket is held for over half of its time to live."""
        if delay == 0.0 or self.full:
            return float("-inf")
        return min(
            ticket.arrival + delay
            if ticket.deadline is None
            else min(ticket.arrival + delay, (ticket.arrival + ticket.deadline) / 2)
            for ticket in self.tickets.values()
        )

    def take(self, now: float, expired: list[Ticket]) -> list[Slice]:
        batch: list[Slice] = []
        room = self.limit
        while room and self.tickets:
            ticket = next(iter(self.tickets.values()))
            if ticket.settled:
                self.discard(ticket)
                continue
            # Once a part has run the work has started, and its deadline is met.
            if ticket.taken == 0 and ticket.deadline is not None and ticket.deadline <= now:
                self.discard(ticket)
                expired.append(ticket)
                continue
            if ticket.size <= self.limit and ticket.size > room:
                break
            count = min(ticket.waiting, room)
            batch.append(Slice(ticket, ticket.taken, ticket.taken + count))
            ticket.taken += count
            self._fields -= count
            room -= count
            if not ticket.waiting:
                del self.tickets[ticket.serial]
        return batch
