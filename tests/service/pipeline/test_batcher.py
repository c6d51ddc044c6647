"""Properties of the batching policy for arbitrary sequences of tickets."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from turbofno.service.engine.interface import PredictRequest
from turbofno.service.pipeline.batcher import Batcher, Policy
from turbofno.service.pipeline.ticket import Kind, Slice, Ticket
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

MODELS = tuple(Mock(version="1") for _ in range(3))
for index, model in enumerate(MODELS):
    model.name = f"m{index}"


_serials = itertools.count()


def ticket(
    size: int = 1,
    *,
    arrival: float = 0.0,
    model: int = 0,
    grid: int = 4,
    priority: int = 0,
    deadline: float | None = None,
    cancelled: bool = False,
) -> Ticket:
    outcome = Mock()
    outcome.done.return_value = cancelled
    fields = np.zeros((size, 1, grid), np.float32)
    request = PredictRequest(
        MODELS[model].name, "1", fields, str(next(_serials)), priority=priority, deadline=deadline
    )
    return Ticket(Kind.of(MODELS[model], request), request, arrival, outcome, size)


def serial(one: Ticket) -> int:
    """The ticket's serial number."""
    return int(one.request.request_id)


def run_dry(batcher: Batcher, now: float) -> tuple[list[tuple[Slice, ...]], list[Ticket]]:
    batches, expired = [], []
    for _ in range(1000):
        decision = batcher.next_batch(now)
        expired += decision.expired
        if not decision.batch:
            assert decision.wake_at is None
            assert not batcher._queues
            return batches, expired
        batches.append(decision.batch)
    raise AssertionError("the queue never ran dry")


tickets = st.lists(
    st.builds(
        ticket,
        st.integers(1, 9),
        model=st.integers(0, 2),
        grid=st.sampled_from([4, 8]),
        priority=st.integers(0, 3),
        deadline=st.sampled_from([None, 0.5, 2.0]),
        cancelled=st.booleans(),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None)
@given(tickets, st.integers(1, 6), st.integers(1, 200), st.sampled_from([0.0, 1.0]))
def test_every_batch_keeps_the_limits_and_every_ticket_is_accounted_for(
    given_tickets: list[Ticket], max_fields: int, max_bytes: int, now: float
) -> None:
    batcher = Batcher(Policy(max_fields=max_fields, max_bytes=max_bytes))
    for one in given_tickets:
        batcher.add(one)
    batches, expired = run_dry(batcher, now)
    ran: dict[int, list[tuple[int, int]]] = {}
    order: dict[object, list[int]] = {}
    for batch in batches:
        fields = sum(part.stop - part.start for part in batch)
        nbytes = sum(part.of(part.ticket.request.fields).nbytes for part in batch)
        assert 1 <= fields <= max_fields
        assert nbytes <= max_bytes or fields == 1
        assert len({part.ticket.kind.bucket for part in batch}) == 1
        for part in batch:
            ran.setdefault(serial(part.ticket), []).append((part.start, part.stop))
            if part.start == 0:
                served = order.setdefault((part.ticket.kind.bucket, part.ticket.kind.flow), [])
                served.append(serial(part.ticket))
    for serials in order.values():
        assert serials == sorted(serials), "arrival order inside a bucket, at equal priority"
    for one in given_tickets:
        dead = one.request.deadline is not None and one.request.deadline <= now
        if one.settled:
            assert serial(one) not in ran
            assert one not in expired
        elif dead:
            assert one in expired
            assert serial(one) not in ran
        else:
            parts = ran[serial(one)]
            assert parts[0][0] == 0
            assert parts[-1][1] == one.size
            assert all(a[1] == b[0] for a, b in pairwise(parts))
            field_bytes = one.request.fields.nbytes // one.size
            limit = max(1, min(max_fields, max_bytes // field_bytes))
            assert one.size > limit or len(parts) == 1, "only what exceeds a batch is split"


def test_oversized_ticket_alternates_with_others_and_fills_their_batches() -> None:
    batcher = Batcher(Policy(max_fields=8, max_bytes=10**9))
    small, large, last = ticket(3), ticket(20), ticket(2)
    for one in (small, large, last):
        batcher.add(one)
    batches, _ = run_dry(batcher, 0.0)
    assert [[(p.ticket, p.start, p.stop) for p in b] for b in batches] == [
        [(small, 0, 3), (large, 0, 5)],
        [(last, 0, 2), (large, 5, 11)],
        [(large, 11, 19)],
        [(large, 19, 20)],
    ]


def test_a_ticket_that_does_not_fit_keeps_its_place_and_stays_whole() -> None:
    batcher = Batcher(Policy(max_fields=4, max_bytes=10**9))
    first, second, third = ticket(1), ticket(4), ticket(1)
    for one in (first, second, third):
        batcher.add(one)
    batches, _ = run_dry(batcher, 0.0)
    assert [[part.ticket for part in batch] for batch in batches] == [[first], [second], [third]]


def test_a_model_with_other_limits_has_batches_of_the_usual_size() -> None:
    policy = Policy.of(Settings(model_limits="a batch=2, b fields=3"))  # type: ignore[arg-type]
    assert [policy.limit(4, model=model) for model in ("a", "b", "c")] == [2, 16, 16]


@pytest.mark.parametrize("grid", [4, 8])
def test_who_comes_waits_one_turn_of_each_request_however_large_they_are(grid: int) -> None:
    batcher = Batcher(Policy(max_fields=16, max_bytes=10**9))
    larges = [ticket(4000) for _ in range(3)]
    for one in larges:
        batcher.add(one)
    ran: Counter[int] = Counter()
    for _ in range(50):
        single, turns = ticket(grid=grid), 0
        batcher.add(single)
        while single.waiting:
            batch = batcher.next_batch(0.0).batch
            batcher.note_ran(batch, 0.1)
            ran.update({serial(part.ticket): part.stop - part.start for part in batch})
            turns += 1
        assert turns <= len(larges) + 1
    least, *_, most = sorted(ran[serial(one)] for one in larges)
    assert most - least <= 16


def test_higher_priority_goes_first_in_another_bucket_and_in_the_same() -> None:
    for model in (0, 1):
        batcher = Batcher(Policy(max_fields=1, max_bytes=10**9))
        run_some(batcher, [ticket(), ticket(model=model, priority=1)])
        low = [ticket() for _ in range(3)]
        high = ticket(model=model, priority=1)
        for one in (*low, high):
            batcher.add(one)
        assert [part.ticket for part in batcher.next_batch(0.0).batch] == [high]


def test_older_bucket_goes_first_at_equal_shares() -> None:
    batcher = Batcher(Policy(max_fields=8, max_bytes=10**9))
    old, new = ticket(grid=8), ticket(grid=4)
    batcher.add(old)
    batcher.add(new)
    assert batcher.next_batch(0.2).batch[0].ticket is old


def test_batch_is_filled_up_from_other_priorities_of_its_bucket() -> None:
    batcher = Batcher(Policy(max_fields=6, max_bytes=10**9))
    low, high, default, other = (
        ticket(2, priority=9), ticket(2, priority=1), ticket(3), ticket(priority=1, grid=8),
    )  # fmt: skip
    for one in (low, high, default, other):
        batcher.add(one)
    batches, _ = run_dry(batcher, 0.0)
    assert [[part.ticket for part in batch] for batch in batches] == [
        [high, default],
        [other],
        [low],
    ]


def run_some(batcher: Batcher, some: list[Ticket], seconds: float = 1.0) -> None:
    for one in some:
        batcher.add(one)
    for _ in some:
        batcher.note_ran(batcher.next_batch(0.0).batch, seconds)


def served(batcher: Batcher, waiting: dict[str, Callable[[], Ticket]], rounds: int) -> Counter[str]:
    """Device seconds of each kind of work when all of them always have work waiting."""
    seconds = {"m0": 1.0, "m1": 4.0, "m2": 0.25}
    kinds = {}
    for kind, make in waiting.items():
        for _ in range(rounds):
            kinds[serial(one := make())] = kind
            batcher.add(one)
    got: Counter[str] = Counter()
    for _ in range(rounds):
        batch = batcher.next_batch(0.0).batch
        batcher.note_ran(batch, seconds[batch[0].ticket.kind.runnable.name])
        got[kinds[serial(batch[0].ticket)]] += seconds[batch[0].ticket.kind.runnable.name]
    return got


def test_models_share_device_time_however_slow_their_batches_are() -> None:
    batcher = Batcher(Policy(max_fields=1, max_bytes=10**9))
    got = served(batcher, {f"m{m}": partial(ticket, model=m) for m in range(3)}, 600)
    assert max(got.values()) - min(got.values()) <= 2 * 4.0, got


def test_an_idle_model_runs_next_despite_a_long_queue_of_another() -> None:
    batcher = Batcher(Policy(max_fields=1, max_bytes=10**9))
    run_some(batcher, [ticket() for _ in range(50)])
    for _ in range(1000):
        batcher.add(ticket())
    batcher.note_ran(batcher.next_batch(0.0).batch, 1.0)
    late = ticket(model=1)
    batcher.add(late)
    assert batcher.next_batch(0.0).batch[0].ticket is late


@pytest.mark.parametrize("queued", [True, False], ids=["queued", "at once"])
def test_idle_flows_accumulate_no_credit(queued: bool) -> None:
    batcher = Batcher(Policy(max_fields=1, max_bytes=10**9))
    for _ in range(500):
        if queued:
            run_some(batcher, [ticket()])
        else:
            batcher.note_ran(batcher.batch_of([ticket()]), 1.0)
    got = served(batcher, {"m0": ticket, "m1": partial(ticket, model=1)}, 100)
    assert abs(got["m0"] - got["m1"]) <= 2 * 4.0, got


def test_each_level_gets_twice_the_time_of_the_one_below_and_the_lowest_is_not_starved() -> None:
    batcher = Batcher(Policy(max_fields=1, max_bytes=10**9))
    waiting = {str(level): partial(ticket, priority=level) for level in (4, 5, 6)}
    got = served(batcher, waiting, 700)
    assert got == {"4": 400.0, "5": 200.0, "6": 100.0}
    got = served(Batcher(Policy(max_fields=1, max_bytes=10**9)), {
        "highest": partial(ticket, priority=1), "lowest": partial(ticket, priority=10),
    }, 1100)  # fmt: skip
    assert got["lowest"] >= 2.0


def test_a_batch_of_several_flows_is_charged_to_each_by_its_fields() -> None:
    batcher = Batcher(Policy(max_fields=8, max_bytes=10**9))
    high, low, first, second = (
        ticket(8, priority=4), ticket(12, priority=6), ticket(8, model=1), ticket(8, model=2),
    )  # fmt: skip
    # By weight: 0.5 s, 14 s, 0.45 s, 0.6 s.
    batcher.note_ran([Slice(high, 0, 1), Slice(low, 5, 12)], 8.0)
    batcher.note_ran([Slice(first, 0, 1)], 0.45)
    batcher.note_ran([Slice(second, 0, 1)], 0.6)
    for one in (low, second, high, first):
        batcher.add(one)
    batches, _ = run_dry(batcher, 0.0)
    assert [batch[0].ticket for batch in batches] == [first, high, second, low, low]


def test_default_priority_is_in_the_middle() -> None:
    assert ticket(priority=0).kind.flow == ticket(priority=5).kind.flow
    assert ticket(priority=10**6).kind.flow == ticket(priority=10).kind.flow
    assert len({ticket(priority=level).kind.flow for level in range(1, 11)}) == 10


def test_work_that_fails_at_once_does_not_starve_others() -> None:
    batcher = Batcher(Policy(max_fields=1, max_bytes=10**9))
    for _ in range(10):
        batcher.add(ticket())
    batcher.add(ticket(model=1))
    names = []
    for _ in range(3):
        batch = batcher.next_batch(0.0).batch
        batcher.note_ran(batch, 0.0)
        names.append(batch[0].ticket.kind.runnable.name)
    assert "m1" in names


def test_discarded_ticket_does_not_run() -> None:
    batcher = Batcher(Policy(max_fields=4, max_bytes=10**9))
    gone, stays = ticket(), ticket(arrival=1.0)
    batcher.add(gone)
    batcher.add(stays)
    batcher.discard(gone)
    batcher.discard(gone)
    batches, _ = run_dry(batcher, 2.0)
    assert [[p.ticket for p in b] for b in batches] == [[stays]]


def test_discarded_tickets_count_neither_for_a_full_batch_nor_as_waiting() -> None:
    batcher = Batcher(Policy(max_fields=4, max_bytes=10**9))
    gone, stays = ticket(3), ticket(2)
    batcher.add(gone, stays)
    batcher.discard(gone)
    assert batcher.next_batch(0.0, full_only=True).batch == ()
    batcher.discard(stays)
    batcher.discard(stays)
    assert run_dry(batcher, 0.0) == ([], [])


def test_tickets_that_ran_or_expired_do_not_count_for_a_full_batch() -> None:
    batcher = Batcher(Policy(max_fields=4, max_bytes=10**9))
    late, rest = ticket(2, deadline=1.0), ticket(3)
    batcher.add(ticket(4), rest)
    batcher.next_batch(0.0)
    assert batcher.next_batch(0.0, full_only=True).batch == ()
    batcher.next_batch(0.0)
    batcher.add(late, ticket(4), ticket(3))
    assert batcher.next_batch(2.0).expired == (late,)
    assert batcher.next_batch(2.0, full_only=True).batch == ()


def test_a_flow_whose_tickets_expired_lends_no_turn_to_the_rest_of_its_bucket() -> None:
    batcher = Batcher(Policy(max_fields=4, max_bytes=10**9))
    run_some(batcher, [ticket(priority=9)])
    late, same, other = ticket(priority=1, deadline=1.0), ticket(priority=9), ticket(model=1)
    for one in (late, same, other):
        batcher.add(one)
    batches, expired = run_dry(batcher, 2.0)
    assert [[part.ticket for part in batch] for batch in batches] == [[other], [same]]
    assert expired == [late]


def test_partly_run_ticket_does_not_expire() -> None:
    batcher = Batcher(Policy(max_fields=2, max_bytes=10**9))
    one = ticket(4, deadline=1.0)
    batcher.add(one)
    assert batcher.next_batch(0.5).batch
    decision = batcher.next_batch(5.0)
    assert decision.expired == ()
    assert decision.batch[0].start == 2


def test_queue_delay_defers_a_batch_until_it_is_full_or_old_enough() -> None:
    batcher = Batcher(Policy(max_fields=2, max_bytes=10**9, max_delay=1.0))
    batcher.add(ticket(arrival=0.0))
    decision = batcher.next_batch(0.5)
    assert decision.batch == ()
    assert decision.wake_at == 1.0
    for model in (1, 2):
        batcher.add(ticket(arrival=0.25 / model, model=model))
    assert batcher.next_batch(0.5).wake_at == 1.0, "the first of all"
    assert len(batcher.next_batch(1.0).batch) == 1
    assert batcher.next_batch(1.0).wake_at == 1.125
    run_dry(batcher, 2.0)
    batcher.add(ticket(arrival=1.0))
    batcher.add(ticket(arrival=1.1))
    assert len(batcher.next_batch(1.1).batch) == 2


def test_queue_delay_does_not_defer_a_ticket_past_its_deadline() -> None:
    batcher = Batcher(Policy(max_fields=8, max_bytes=10**9, max_delay=10.0))
    batcher.add(ticket(arrival=0.0))
    batcher.add(ticket(arrival=1.0, deadline=2.0))
    assert batcher.next_batch(1.0).wake_at == 1.5
    assert len(batcher.next_batch(1.5).batch) == 2


def test_full_only_defers_a_partial_batch_and_all_behind_it() -> None:
    batcher = Batcher(Policy(max_fields=4, max_bytes=10**9))
    batcher.add(ticket(4, arrival=0.0))
    first, second = ticket(3, model=1, arrival=1.0), ticket(1, model=1, arrival=3.0)
    batcher.add(first)
    batcher.add(ticket(4, arrival=2.0))
    assert batcher.next_batch(2.0, full_only=True).batch[0].ticket.arrival == 0.0
    assert batcher.next_batch(2.0, full_only=True).batch == ()
    batcher.add(second)
    assert [p.ticket for p in batcher.next_batch(3.0, full_only=True).batch] == [first, second]
    assert batcher.next_batch(3.0, full_only=True).batch[0].ticket.arrival == 2.0


def test_lowered_limit_holds_for_its_bucket_until_restored() -> None:
    batcher = Batcher(Policy(max_fields=8, max_bytes=10**9))
    waiting, other = ticket(5), ticket(5, grid=8)
    bucket = waiting.kind.bucket
    batcher.add(waiting)
    batcher.add(other)
    batcher.lowered[bucket] = 2
    sizes = [[(p.start, p.stop) for p in batch] for batch in run_dry(batcher, 0.0)[0]]
    assert sorted(sizes) == [[(0, 2)], [(0, 5)], [(2, 4)], [(4, 5)]]
    batcher.add(ticket(3))
    assert batcher.next_batch(0.0).batch[0].stop == 2, "it outlives an empty queue"
    del batcher.lowered[bucket]
    batcher.add(ticket(7))
    assert [(p.start, p.stop) for p in batcher.next_batch(0.0).batch] == [(2, 3), (0, 7)]
