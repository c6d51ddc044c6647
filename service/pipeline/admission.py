"""Who may come in: body bytes before a body is read, queue slots before work is queued."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, Self

from service.errors import PayloadTooLarge, QueueFull, Unavailable
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from service.metrics import Metrics
    from service.settings import Settings

_SMOOTHING = 0.2
"""Weight of the newest batch in the drain rate."""


class QueueSlots:
    """Counts the fields that wait for the device and says when there is room again.

    Used from the event loop only.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        self._settings = settings
        self._metrics = metrics
        self._waiting: Counter[tuple[str, str]] = Counter()
        self._seconds_per_field = 0.0
        self.total = 0

    def waiting(self, model: str, version: str) -> int:
        """Fields of this model that wait now."""
        return self._waiting[model, version]

    def take(self, model: str, version: str, fields: int) -> None:
        """Count `fields` in. Raises QueueFull with the time after which there should be room."""
        per_model = self._waiting[model, version]
        for waiting, setting, whose in (
            (per_model, "max_queued_fields_per_model", f"the queue of model {model!r}"),
            (self.total, "max_queued_fields", "the queue of all models together"),
        ):
            limit = getattr(self._settings, setting)
            if waiting + fields > limit:
                raise self._full(
                    f"{whose} holds {waiting} fields and has no room for {fields} more: "
                    f"the limit is {limit} ({env_name(setting)}). Retry after the time in Retry-After."
                )
        self._count(model, version, fields)

    def release(self, model: str, version: str, fields: int) -> None:
        """Count `fields` out: they have started to run or were dropped."""
        self._count(model, version, -fields)

    def check_room(self) -> None:
        """Raises QueueFull if not even one more field would find room."""
        limit = self._settings.max_queued_fields
        if self.total >= limit:
            raise self._full(
                f"the queue of all models together is full: the limit is {limit} fields "
                f"({env_name('max_queued_fields')}). Retry after the time in Retry-After."
            )

    def note_batch(self, fields: int, seconds: float) -> None:
        """Learn the drain rate from one batch."""
        latest = seconds / fields
        if self._seconds_per_field:
            latest = _SMOOTHING * latest + (1 - _SMOOTHING) * self._seconds_per_field
        self._seconds_per_field = latest

    @property
    def drain_seconds(self) -> float:
        """How long the queue should take to run empty: 1 s to 60 s, for Retry-After."""
        return min(max(self.total * self._seconds_per_field, 1.0), 60.0)

    def _full(self, message: str) -> QueueFull:
        self._metrics.rejections.labels(reason="queue_full").inc()
        return QueueFull(message, retry_after=self.drain_seconds)

    def _count(self, model: str, version: str, fields: int) -> None:
        self.total += fields
        self._waiting[model, version] += fields
        self._metrics.queue_depth.labels(model=model, version=version).inc(fields)


class Room:
    """The bytes that one admitted request holds: of its body, then of its answer. Used from the event loop only."""

    def __init__(self, check: Callable[[int], None], change: Callable[[int], None]) -> None:
        self._check = check
        self._change = change
        self._held = 0

    @classmethod
    def uncounted(cls) -> Self:
        """For a body too small to matter, which must be let in when there is no room for others."""
        return cls(lambda _: None, lambda _: None)

    def hold(self, size: int) -> None:
        """Hold `size` bytes in all from now on. Raises QueueFull if there is no room for them."""
        if size > self._held:
            self._check(size - self._held)
        self.hold_answer(size)

    def hold_answer(self, size: int) -> None:
        """The same, never refused: the work is done, and it is for others to wait until the answer is sent."""
        self._change(size - self._held)
        self._held = size


class Admission:
    """Lets requests in by the size of their body, until the service drains. Used from the event loop only."""

    def __init__(self, settings: Settings, metrics: Metrics, slots: QueueSlots) -> None:
        self._settings = settings
        self._metrics = metrics
        self._slots = slots
        self._bytes = 0
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.draining = False

    @contextmanager
    def admit(self, content_length: int | None) -> Iterator[Room]:
        """Let one request in, from before its body is read until its answer is sent.

        What it holds is counted as it arrives (`Room.hold`), not as it is announced: a client that
        announces much and sends nothing must not keep others out.

        Args:
            content_length: bytes of the decoded body; None if not known beforehand (chunked or compressed).

        Raises:
            Unavailable: the service is draining.
            PayloadTooLarge: the body is over the limit.
            QueueFull: the body would find no room now, or the queue has none for even one more field.
        """
        limit, size = self._settings.max_body_bytes, content_length or 0
        self.refuse_if_draining()
        if size > limit:
            self._metrics.rejections.labels(reason="body_too_large").inc()
            raise PayloadTooLarge(
                f"the body has {size} bytes, the limit is {limit} ({env_name('max_body_bytes')}); "
                "send fewer fields in a request"
            )
        self._slots.check_room()
        self._check_room(size)
        self._requests += 1
        self._idle.clear()
        room = Room(self._check_room, self._change)
        try:
            yield room
        finally:
            room.hold_answer(0)
            self._requests -= 1
            if not self._requests:
                self._idle.set()

    def start_draining(self) -> None:
        """Refuse everything from now on; what was let in goes on."""
        self.draining = True

    def refuse_if_draining(self) -> None:
        """Raises Unavailable if the service is draining."""
        if self.draining:
            self._metrics.rejections.labels(reason="draining").inc()
            raise Unavailable(
                "the service is shutting down and takes no new work; retry, another instance may answer",
                retry_after=self._settings.drain_seconds,
            )

    async def wait_idle(self) -> None:
        """Return once no admitted request is left."""
        await self._idle.wait()

    def _check_room(self, size: int) -> None:
        most = self._settings.max_inflight_bytes
        if self._bytes + size > most:
            self._metrics.rejections.labels(reason="inflight_bytes").inc()
            raise QueueFull(
                f"requests being served hold {self._bytes} bytes and have no room for {size} more: "
                f"the limit is {most} ({env_name('max_inflight_bytes')}). "
                "Retry after the time in Retry-After.",
                retry_after=self._slots.drain_seconds,
            )

    def _change(self, size: int) -> None:
        self._bytes += size
        self._metrics.inflight_bytes.inc(size)
