"""Admission: what is held, what is refused, and that everything is given back."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack, suppress
from typing import Any

import pytest

from service.errors import PayloadTooLarge, QueueFull, Unavailable
from service.metrics import Metrics
from service.pipeline.admission import Admission, QueueSlots
from service.settings import Settings

SIZES = {"max_body_bytes": 100, "max_json_bytes": 100, "max_inflight_bytes": 250}


def make(**settings: Any) -> tuple[Admission, QueueSlots, Metrics]:
    metrics, chosen = Metrics(), Settings(**{**SIZES, **settings})
    slots = QueueSlots(chosen, metrics)
    return Admission(chosen, metrics, slots), slots, metrics


def inflight(metrics: Metrics) -> float | None:
    return metrics.registry.get_sample_value("turbofno_inflight_bytes")


def test_bytes_are_held_while_inside_and_given_back_on_error() -> None:
    admission, _, metrics = make()
    with admission.admit(60) as room:
        assert inflight(metrics) == 0, "nothing has come yet"
        room.hold(20)
        room.hold(60)
        assert inflight(metrics) == 60
        room.hold(50)
        assert inflight(metrics) == 50
    with suppress(KeyError), admission.admit(60) as room:
        room.hold(60)
        raise KeyError
    assert inflight(metrics) == 0


def test_inflight_limit_refuses_and_names_its_setting() -> None:
    admission, _, _ = make()
    with admission.admit(100) as first, admission.admit(100) as second:
        first.hold(100)
        second.hold(100)
        refusal = pytest.raises(QueueFull, match="TURBOFNO_MAX_INFLIGHT_BYTES")
        with refusal as caught, admission.admit(51):
            pass
        assert caught.value.retry_after is not None
        with admission.admit(50) as third:
            third.hold(50)


def test_senders_who_only_promise_bytes_do_not_keep_others_out() -> None:
    admission, _, _ = make()
    with ExitStack() as promised:
        for length in [100, None] * 50:
            promised.enter_context(admission.admit(length))
        with admission.admit(100) as room:
            room.hold(100)


def test_body_that_arrives_when_there_is_no_room_is_refused_and_holds_nothing_more() -> None:
    admission, _, metrics = make()
    with (
        admission.admit(100) as first,
        admission.admit(100) as second,
        admission.admit(None) as third,
    ):
        for room in (first, second):
            room.hold(100)
        third.hold(50)
        with pytest.raises(QueueFull, match="TURBOFNO_MAX_INFLIGHT_BYTES"):
            third.hold(51)
        assert inflight(metrics) == 250
    assert inflight(metrics) == 0
    assert (
        metrics.registry.get_sample_value("turbofno_rejections_total", {"reason": "inflight_bytes"})
        == 1
    )


def test_body_over_the_limit_is_refused() -> None:
    admission, _, metrics = make()
    with pytest.raises(PayloadTooLarge, match="TURBOFNO_MAX_BODY_BYTES"), admission.admit(101):
        pass
    assert inflight(metrics) == 0


def test_full_queue_refuses_before_the_body_is_read() -> None:
    admission, slots, _ = make(
        max_queued_fields=4, max_queued_fields_per_model=4, max_fields_per_request=4
    )
    slots.take("m", "1", 4)
    with pytest.raises(QueueFull, match="TURBOFNO_MAX_QUEUED_FIELDS"), admission.admit(1):
        pass
    slots.release("m", "1", 1)
    with admission.admit(1):
        pass


def test_total_queue_limit_holds_across_models() -> None:
    _, slots, _ = make(max_queued_fields=4, max_queued_fields_per_model=3, max_fields_per_request=3)
    slots.take("a", "1", 3)
    with pytest.raises(QueueFull, match="all models"):
        slots.take("b", "1", 2)
    slots.take("b", "1", 1)


def test_retry_after_follows_the_drain_rate() -> None:
    _, slots, _ = make()
    assert slots.drain_seconds == 1.0
    slots.note_batch(10, 5.0)
    slots.take("m", "1", 40)
    assert slots.drain_seconds == pytest.approx(20.0)
    slots.note_batch(10, 0.0)
    assert slots.drain_seconds == pytest.approx(16.0)
    slots.take("m", "1", 900)
    assert slots.drain_seconds == 60.0


def test_draining_refuses_new_work_and_waits_for_the_old() -> None:
    async def main() -> None:
        admission, _, _ = make()
        with admission.admit(1):
            admission.start_draining()
            with pytest.raises(Unavailable, match="shutting down"), admission.admit(1):
                pass
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(admission.wait_idle(), 0.01)
        await asyncio.wait_for(admission.wait_idle(), 1)

    asyncio.run(main())


def test_answer_is_never_refused_but_keeps_others_out_until_it_is_sent() -> None:
    admission, _, metrics = make()
    with admission.admit(10) as room:
        room.hold(10)
        room.hold_answer(300)
        assert inflight(metrics) == 300
        with pytest.raises(QueueFull), admission.admit(1):
            pass
    with admission.admit(1):
        pass
    assert inflight(metrics) == 0
