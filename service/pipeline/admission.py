"""Who may come in: body bytes before a body is read, queue slots before work is queued."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING

from service.errors import PayloadTooLarge, QueueFull, Unavailable
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Iterator

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
    def admit(self, content_length: int | None) -> Iterator[None]:
        """Hold room for one request's body from before it is read until its answer is made.

        Args:
            content_length: bytes of the decoded body; None if not known beforehand (chunked or compressed),
                which counts as the largest body allowed.

        Raises:
            Unavailable: the service is draining.
            PayloadTooLarge: the body is over the limit.
            QueueFull: too many bytes are in flight, or the queue has no room for even one more field.
        """
        limit = self._settings.max_body_bytes
        size = limit if content_length is None else content_length
        if self.draining:
            self._metrics.rejections.labels(reason="draining").inc()
            raise Unavailable(
                "the service is shutting down and takes no new work; retry, another instance may answer",
                retry_after=self._settings.drain_seconds,
            )
        if size > limit:
            self._metrics.rejections.labels(reason="body_too_large").inc()
            raise PayloadTooLarge(
                f"the body has {size} bytes, the limit is {limit} ({env_name('max_body_bytes')}); "
                "send fewer fields in a request"
            )
        self._slots.check_room()
        most = self._settings.max_inflight_bytes
        if self._bytes + size > most:
            self._metrics.rejections.labels(reason="inflight_bytes").inc()
            raise QueueFull(
                f"requests being served hold {self._bytes} body bytes and have no room for {size} more: "
                f"the limit is {most} ({env_name('max_inflight_bytes')}). "
                "Retry after the time in Retry-After.",
                retry_after=self._slots.drain_seconds,
            )
        self._hold(size, 1)
        try:
            yield
        finally:
            self._hold(-size, -1)

    def start_draining(self) -> None:
        """Refuse everything from now on; what was let in goes on."""
        self.draining = True

    async def wait_idle(self) -> None:
        """Return once no admitted request is left."""
        await self._idle.wait()

    def _hold(self, size: int, requests: int) -> None:
        self._bytes += size
        self._requests += requests
        self._metrics.inflight_bytes.inc(size)
        if self._requests:
            self._idle.clear()
        else:
            self._idle.set()
