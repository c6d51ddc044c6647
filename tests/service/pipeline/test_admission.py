"""Admission: what is held, what is refused, and that everything is given back."""

from __future__ import annotations

import asyncio
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
    with admission.admit(60):
        assert inflight(metrics) == 60
    with pytest.raises(KeyError), admission.admit(60):
        raise KeyError
    assert inflight(metrics) == 0


def test_inflight_limit_refuses_and_names_its_setting() -> None:
    admission, _, _ = make()
    with admission.admit(100), admission.admit(100):
        refusal = pytest.raises(QueueFull, match="TURBOFNO_MAX_INFLIGHT_BYTES")
        with refusal as caught, admission.admit(51):
            pass
        assert caught.value.retry_after is not None
        with admission.admit(50):
            pass


def test_unknown_length_counts_as_the_largest_body() -> None:
    admission, _, metrics = make()
    with admission.admit(None):
        assert inflight(metrics) == 100


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
