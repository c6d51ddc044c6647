"""Admission and queue capacity: limits, refusals, and release."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from turbofno.service.engine.interface import PredictRequest
from turbofno.service.errors import PayloadTooLarge, QueueFull, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.admission import ANYONE, Admission, Admitted, Caller
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.pipeline.ticket import Kind, Slice, Ticket
from turbofno.service.settings import Settings
from turbofno.service.shared_sums import SharedSums, SumsMemory

SIZES = {"max_body_bytes": 100, "max_json_bytes": 100, "max_inflight_bytes": 250}


def make(
    sums: SharedSums | None = None, **settings: Any
) -> tuple[Admission, QueueCapacity, Metrics]:
    metrics, chosen = Metrics(), Settings(**{**SIZES, **settings})
    capacity = QueueCapacity(chosen, metrics)
    return Admission(chosen, metrics, capacity, sums or SharedSums(chosen)), capacity, metrics


@contextmanager
def admit(
    admission: Admission, size: int | None, model: str = "m", caller: Caller = ANYONE
) -> Iterator[Admitted]:
    admitted = admission.admit(size, model=model, version="1", caller=caller)
    try:
        yield admitted
    finally:
        admitted.leave()


def ticket(
    fields: int, model: str = "m", *, priority: int = 0, deadline: float | None = None
) -> Ticket:
    """A ticket of fields of 100 bytes that arrived at time 0."""
    runnable = Mock(version="1")
    runnable.name = model
    array = np.zeros((fields, 1, 25), np.float32)
    request = PredictRequest(model, "1", array, "id", priority=priority, deadline=deadline)
    return Ticket(Kind.of(runnable, request), request, 0.0, Mock(), fields)


def inflight(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("turbofno_inflight_bytes")


def test_front_ends_have_limits_of_bytes_together() -> None:
    limits = {"model_limits": "m bytes=150", "frontends": 2}
    settings = Settings(**{**SIZES, **limits})
    memory = SumsMemory(settings)
    (first, *_), (second, _, metrics) = (
        make(SharedSums(settings, memory.file, own), **limits) for own in (0, 1)
    )
    with admit(first, 80) as one, admit(second, 80) as another:
        one.hold(80)
        with pytest.raises(QueueFull, match=r"requests of model 'm' hold 80 bytes .* for 80 more"):
            another.hold(80)
        another.hold(70)
        assert inflight(metrics) == 70, "metrics of front ends are added up"
        with admit(first, 100, "other") as other:
            other.hold(100)
            with (
                pytest.raises(QueueFull, match=r"requests being served hold 250 bytes"),
                admit(second, 10, "other"),
            ):
                pass
    with admit(second, 100) as alone:
        alone.hold(100)


def test_bytes_are_held_during_a_request_and_released_on_error() -> None:
    admission, _, metrics = make()
    with admit(admission, 60) as budget:
        assert inflight(metrics) == 0, "nothing has come yet"
        budget.hold(20)
        budget.hold(60)
        assert inflight(metrics) == 60
        budget.hold(50)
        assert inflight(metrics) == 50
    with suppress(KeyError), admit(admission, 60) as budget:
        budget.hold(60)
        raise KeyError
    assert inflight(metrics) == 0


def test_bytes_that_have_come_are_held_from_the_admission_on() -> None:
    admission, _, metrics = make()
    first = admission.admit(100, model="m", version="1", received=100)
    second = admission.admit(None, model="m", version="1", received=100)
    assert inflight(metrics) == 200
    for announced, received in ((51, 51), (100, 10), (None, 51)):
        with pytest.raises(QueueFull, match="TURBOFNO_MAX_INFLIGHT_BYTES"):
            admission.admit(announced, model="m", version="1", received=received)
    first.hold(100)
    assert inflight(metrics) == 200, "counted once"
    first.leave()
    second.leave()
    assert inflight(metrics) == 0


def test_inflight_limit_refuses_and_names_its_setting() -> None:
    admission, _, _ = make()
    with admit(admission, 100) as first, admit(admission, 100) as second:
        first.hold(100)
        second.hold(100)
        refusal = pytest.raises(QueueFull, match="TURBOFNO_MAX_INFLIGHT_BYTES")
        with refusal as caught, admit(admission, 51):
            pass
        assert caught.value.retry_after is not None
        with admit(admission, 50) as third:
            third.hold(50)


def test_announced_bytes_that_do_not_arrive_do_not_block_others() -> None:
    admission, _, _ = make()
    with ExitStack() as promised:
        for length in [100, None] * 50:
            promised.enter_context(admit(admission, length))
        with admit(admission, 100) as budget:
            budget.hold(100)


def test_body_over_the_inflight_limit_is_refused_and_holds_nothing_more() -> None:
    admission, _, metrics = make()
    with (
        admit(admission, 100) as first,
        admit(admission, 100) as second,
        admit(admission, None) as third,
    ):
        for budget in (first, second):
            budget.hold(100)
        third.hold(30)
        third.hold(50)
        with pytest.raises(QueueFull, match="TURBOFNO_MAX_INFLIGHT_BYTES"):
            third.hold(51)
        assert inflight(metrics) == 250
    assert inflight(metrics) == 0
    assert (
        metrics.registry.get_sample_value(
            "turbofno_rejections_total", {"reason": "inflight_bytes", "model": "m"}
        )
        == 1
    )


def test_body_over_the_limit_is_refused() -> None:
    admission, _, metrics = make()
    with pytest.raises(PayloadTooLarge, match="TURBOFNO_MAX_BODY_BYTES"), admit(admission, 101):
        pass
    assert inflight(metrics) == 0
    reasons = {"reason": "body_too_large", "model": "m"}
    assert metrics.registry.get_sample_value("turbofno_rejections_total", reasons) == 1


def test_full_queue_refuses_before_the_body_is_read() -> None:
    admission, capacity, _ = make(
        max_queued_fields=4, max_queued_fields_per_model=4, max_fields_per_request=4
    )
    queued = ticket(4)
    capacity.reserve(queued)
    with pytest.raises(QueueFull, match="TURBOFNO_MAX_QUEUED_FIELDS"), admit(admission, 1):
        pass
    capacity.release([Slice(queued, 0, 1)])
    with admit(admission, 1):
        pass


def test_a_slot_that_was_left_is_not_given_back_again() -> None:
    admission, capacity, _ = make(max_queued_fields_per_model=4, max_fields_per_request=4)
    with admit(admission, 1) as admitted:
        admitted.leave_slot()
        capacity.reserve(ticket(4))
    with pytest.raises(QueueFull), admit(admission, 1):
        pass


def test_requests_that_do_not_queue_take_and_need_no_slots() -> None:
    admission, capacity, _ = make(max_queued_fields_per_model=4, max_fields_per_request=4)
    others = [admission.admit(1, model="m", version="1", queued=False) for _ in range(5)]
    with admit(admission, 1):
        pass
    for other in others:
        other.leave()
    capacity.reserve(ticket(4))
    with pytest.raises(QueueFull), admit(admission, 1):
        pass
    admission.admit(1, model="m", version="1", queued=False).leave()


def test_a_slot_is_kept_until_the_request_is_in_the_queue() -> None:
    async def main() -> None:
        admission, *_ = make()
        for _ in range(2):
            together = [admission.admit(1, model="m", version="1") for _ in range(2)]
            for admitted in together:
                admission.enter_queue(admitted)
                admitted.leave()
            assert admission.coming["m", "1"] == 2
            await asyncio.sleep(0)
            assert admission.coming["m", "1"] == 0

    asyncio.run(main())


def test_a_body_fits_easily_if_it_leaves_three_quarters_of_every_limit() -> None:
    admission, _, _ = make(model_limits="m bytes=100")
    for model, most in (("m", 25), ("other", 250 // 4)):
        with admit(admission, None, model) as admitted:
            for held in (0, 10):
                admitted.hold(held)
                assert admitted.fits_easily(most)
                assert not admitted.fits_easily(most + 1)


def test_refusal_counts_fields_on_their_way_as_others_not_as_the_requests_own() -> None:
    admission, capacity, _ = make(max_queued_fields_per_model=4, max_fields_per_request=4)
    capacity.reserve(ticket(2))
    with (
        admit(admission, 1),
        admit(admission, 1),
        pytest.raises(QueueFull, match="'m' holds or expects 4 fields and has no room for 1 more"),
        admit(admission, 1),
    ):
        pass


def test_full_queue_of_one_model_does_not_block_others() -> None:
    admission, capacity, _ = make(max_queued_fields_per_model=4, max_fields_per_request=4)
    capacity.reserve(ticket(4))
    with pytest.raises(QueueFull, match="QUEUED_FIELDS_PER_MODEL"), admit(admission, 1):
        pass
    with admit(admission, 1, "other"):
        pass


def test_total_queue_limit_holds_across_models() -> None:
    _, capacity, _ = make(
        max_queued_fields=4, max_queued_fields_per_model=3, max_fields_per_request=3
    )
    capacity.reserve(ticket(3, "a"))
    with pytest.raises(QueueFull, match="all models"):
        capacity.reserve(ticket(2, "b"))
    capacity.reserve(ticket(1, "b"))


def test_tickets_are_reserved_together_only_if_all_of_them_fit() -> None:
    _, capacity, _ = make(
        max_queued_fields=6, max_queued_fields_per_model=4, max_fields_per_request=4
    )
    assert not capacity.reserve_all([ticket(3), ticket(2)])
    assert capacity.reserve_all([ticket(2), ticket(2)])
    assert not capacity.reserve_all([ticket(1, "b"), ticket(2, "b")])
    assert capacity.reserve_all([ticket(1, "b"), ticket(1, "b")])
    assert capacity.total == 6


def test_tickets_are_not_reserved_together_if_one_of_them_has_a_limit_of_its_own() -> None:
    _, capacity, _ = make()
    limited = ticket(1)
    limited.request.client_max_fields = 1
    assert not capacity.reserve_all([limited, ticket(1)])
    capacity.note_batch("m", limit=1000, seconds=1.0)
    # The last one waits for 2 s, as its fields run behind those of the others.
    for deadlines in ((2.1, None, 9.0), (9.0, None, 2.1)):
        assert not capacity.reserve_all([ticket(7, deadline=deadline) for deadline in deadlines])
    assert capacity.total == 0
    assert capacity.reserve_all([ticket(7, deadline=deadline) for deadline in (2.4, None, 9.0)])


def test_retry_after_follows_the_drain_rate() -> None:
    _, capacity, _ = make()
    assert capacity.drain_seconds == 1.0
    capacity.note_batch("m", limit=1000, seconds=5.0)
    capacity.reserve(ticket(40))
    assert capacity.drain_seconds == pytest.approx(20.0)
    capacity.note_batch("m", limit=1000, seconds=0.0)
    assert capacity.drain_seconds == pytest.approx(16.0)
    capacity.note_batch("other", limit=1000, seconds=1.0)
    capacity.reserve(ticket(10, "other"))
    assert capacity.drain_seconds == pytest.approx(17.0)
    capacity.reserve(ticket(10, "not known yet"))
    assert capacity.drain_seconds == pytest.approx(17.0)
    capacity.reserve(ticket(900))
    assert capacity.drain_seconds == 60.0


def test_request_that_cannot_start_in_time_is_refused_with_retry_after() -> None:
    _, capacity, metrics = make()
    capacity.note_batch("m", limit=1000, seconds=1.0)
    for _ in range(4):
        capacity.reserve(ticket(10))
    capacity.reserve(ticket(1, deadline=4.5))
    with pytest.raises(QueueFull, match="TURBOFNO_REQUEST_DEADLINE_SECONDS") as caught:
        capacity.reserve(ticket(1, deadline=0.9))
    assert caught.value.retry_after == pytest.approx(4.1 * 1.1 - 0.9)
    capacity.reserve(ticket(1, deadline=0.1, priority=1))
    capacity.reserve(ticket(1, "other", deadline=0.1))
    read = metrics.registry.get_sample_value
    assert read("turbofno_rejections_total", {"reason": "too_late", "model": "m"}) == 1


def test_expected_wait_counts_other_models_but_no_lower_priority() -> None:
    _, capacity, _ = make()
    for model, fields, priority in (
        ("a", 10, 5), ("a", 10, 6), ("a", 10, 6), ("b", 40, 5), ("b", 40, 5), ("b", 40, 5), ("c", 5, 5),
    ):  # fmt: skip
        capacity.note_batch(model, limit=1000, seconds=1.0)
        capacity.reserve(ticket(fields, model, priority=priority))
    assert capacity.wait_seconds("a", 5, 0.0) == pytest.approx(1.0 + 1.0 + 0.5)
    assert capacity.wait_seconds("a", 6, 0.0) == pytest.approx(3.0 + 3.0 + 0.5)
    assert capacity.wait_seconds("new", 10, 0.0) == 0.0


def test_expected_wait_counts_only_one_batch_of_a_large_request() -> None:
    _, capacity, _ = make(max_batch_size=10)
    capacity.note_batch("m", limit=1000, seconds=1.0)
    large = ticket(400)
    capacity.reserve(large)
    capacity.reserve(ticket(5))
    assert capacity.wait_seconds("m", 5, 0.0) == pytest.approx(1.5)
    assert capacity.drain_seconds == pytest.approx(40.5)
    capacity.release([Slice(large, 0, 393)])
    assert capacity.wait_seconds("m", 5, 0.0) == pytest.approx(1.2)
    capacity.release([Slice(large, 393, 400)])
    assert capacity.wait_seconds("m", 5, 0.0) == pytest.approx(0.5)
    assert capacity.drain_seconds == 1.0


def test_expected_wait_counts_the_remaining_time_of_running_batches() -> None:
    _, capacity, _ = make()
    capacity.note_batch("m", limit=1000, seconds=1.0)
    for start, part in ((10.0, 0), (10.2, 10)):
        capacity.dispatch([Slice(ticket(20), part, part + 10)], start, waited=False)
    assert capacity.wait_seconds("m", 5, 10.5) == pytest.approx(1.5)
    capacity.end_batch(10.9)
    assert capacity.wait_seconds("m", 5, 11.0) == pytest.approx(0.9)
    assert capacity.wait_seconds("m", 5, 15.0) == 0.0
    capacity.end_batch(15.0)
    assert capacity.wait_seconds("m", 5, 15.0) == 0.0


def request(fields: int, *, most: int) -> PredictRequest:
    array = np.zeros((fields, 1, 25), np.float32)
    return PredictRequest("m", None, array, "id", client="alice", client_max_fields=most)


def test_fields_in_progress_are_limited_by_caller_and_released() -> None:
    _, capacity, _ = make()
    with capacity.quota(request(6, most=8)):
        whole = r"^API key 'alice' has 6 fields .* asked for 3 more: its limit is 8\. Retry"
        with pytest.raises(QueueFull, match=whole), capacity.quota(request(3, most=8)):
            pass
        with capacity.quota(request(2, most=8)), capacity.quota(request(50, most=0)):
            pass
    with pytest.raises(PayloadTooLarge, match="its limit is 8"), capacity.quota(request(9, most=8)):
        pass
    with capacity.quota(request(8, most=8)):
        pass


def test_bytes_are_limited_by_caller_without_blocking_others() -> None:
    admission, _, metrics = make()
    alice, bob = Caller("alice", max_bytes=100), Caller("bob", max_bytes=100)
    with admit(admission, 80, caller=alice) as first:
        first.hold(80)
        with pytest.raises(QueueFull, match="'alice'"), admit(admission, 21, caller=alice):
            pass
        with admit(admission, None, caller=alice) as chunked, pytest.raises(QueueFull):
            chunked.hold(21)
        with admit(admission, 100, caller=bob) as other:
            other.hold(100)
    # Over the limit by itself, with its length announced or not.
    small = Caller("carol", max_bytes=40)
    with pytest.raises(PayloadTooLarge, match="'carol'"), admit(admission, 41, caller=small):
        pass
    with admit(admission, None, caller=small) as chunked:
        chunked.hold(30)
        with pytest.raises(PayloadTooLarge, match=r"limit is 40.* Send fewer fields"):
            chunked.hold(41)
    with admit(admission, 100, caller=alice) as again:
        again.hold(100)
    assert inflight(metrics) == 0


def work_for(model: str, fields: int, *, caller_most: int = 0) -> PredictRequest:
    array = np.zeros((fields, 1, 25), np.float32)
    return PredictRequest(model, None, array, "id", client="bob", client_max_fields=caller_most)


def test_fields_in_progress_are_limited_by_model_without_blocking_others() -> None:
    _, capacity, metrics = make(model_limits="m fields=8")
    with capacity.quota(work_for("m", 6)):
        refusal = pytest.raises(QueueFull, match=r"model 'm' has 6 .* 3 more: .* 8 .*MODEL_LIMITS")
        with refusal as caught, capacity.quota(work_for("m", 3)):
            pass
        assert caught.value.retry_after
        with capacity.quota(work_for("m", 2)), capacity.quota(work_for("other", 50)):
            pass
        # A refusal by the caller's limit does not count against the model.
        with (
            capacity.quota(work_for("other", 2, caller_most=2)),
            pytest.raises(QueueFull, match="bob"),
            capacity.quota(work_for("m", 1, caller_most=2)),
        ):
            pass
    with (
        pytest.raises(PayloadTooLarge, match="TURBOFNO_MODEL_LIMITS"),
        capacity.quota(work_for("m", 9)),
    ):
        pass
    with capacity.quota(work_for("m", 8)):
        pass
    reasons = {"reason": "model_fields", "model": "m"}
    assert metrics.registry.get_sample_value("turbofno_rejections_total", reasons) == 2


def test_bytes_are_limited_by_model_without_blocking_others() -> None:
    admission, _, _ = make(model_limits="m bytes=60")
    with admit(admission, 40) as first:
        first.hold(40)
        full = pytest.raises(QueueFull, match=r"'m' hold 40 .*: its limit is 60 .*MODEL_LIMITS")
        for size in (21, 60):
            with full, admit(admission, size):
                pass
        with admit(admission, None) as chunked, pytest.raises(QueueFull, match="MODEL_LIMITS"):
            chunked.hold(21)
        with admit(admission, 100, "other") as other:
            other.hold(100)
    with pytest.raises(PayloadTooLarge, match="MODEL_LIMITS"), admit(admission, 61):
        pass
    with admit(admission, 60) as again:
        again.hold(60)


def test_limits_of_bytes_by_model_and_by_caller_hold_together() -> None:
    admission, _, _ = make(model_limits="m bytes=60")
    for most, size, whose in ((100, 61, "model 'm'"), (40, 41, "API key 'alice'")):
        caller = Caller("alice", max_bytes=most)
        with (
            pytest.raises(PayloadTooLarge, match=whose),
            admit(admission, size, caller=caller),
        ):
            pass


def test_draining_refuses_new_requests_and_waits_for_admitted_ones() -> None:
    async def main() -> None:
        admission, _, _ = make()
        with admit(admission, 1):
            pass
        with admit(admission, 1):
            with admit(admission, 1):
                admission.start_draining()
                with pytest.raises(Unavailable, match="shutting down"), admit(admission, 1):
                    pass
                waiting = asyncio.create_task(admission.wait_idle())
                await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not waiting.done()
        await asyncio.wait_for(waiting, 1)
        await asyncio.wait_for(admission.wait_idle(), 1)

    asyncio.run(main())


def test_answer_is_never_refused_but_blocks_others_until_it_is_sent() -> None:
    admission, _, metrics = make()
    with admit(admission, 10) as budget:
        budget.hold(10)
        budget.hold_answer(310)
        budget.hold(300)
        assert inflight(metrics) == 300, "what takes less than before is not refused either"
        with pytest.raises(QueueFull), admit(admission, 1):
            pass
    with admit(admission, 1):
        pass
    assert inflight(metrics) == 0
