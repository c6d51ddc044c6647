"""Admission control by request size, before the body is read; and the bytes that admitted requests hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

import msgspec

from turbofno.service.errors import PayloadTooLarge, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.settings import Settings, env_name
from turbofno.service.shared_sums import SharedSum, SharedSums


class Caller(NamedTuple):
    """An API key's name and limits on its work in progress. Without keys: no name, no limits."""

    name: str = ""
    max_fields: int = 0
    """0: no limit."""
    max_bytes: int = 0


ANYONE = Caller()


@dataclass(slots=True)
class _Bytes:
    """The bytes that requests hold: all of them, those of a model, or those of a caller."""

    reason: str
    """The metric's label of refusals."""
    whose: str
    limit: int
    setting: str = ""
    held: SharedSum = field(default_factory=SharedSum)


class Admitted(msgspec.Struct, eq=False):
    """An admitted request: the bytes that it holds, of its body, then of its answer; and a queue slot, until it is queued.

    For the event loop only.
    """

    _admission: Admission | None = None
    _counted: Sequence[_Bytes] = ()
    """What its bytes are part of."""
    _model: str = ""
    slot: tuple[str, str] | None = None
    """Model and version of the queue; None once it is released."""
    _held: int = 0

    def leave(self) -> None:
        """Release everything at the end of the request. Idempotent."""
        if self._admission is not None:
            self.hold_answer(0)
            self.leave_slot()
            self._admission.leave()
            self._admission = None

    def leave_slot(self) -> None:
        """Release the queue slot: a slow body must not occupy it. Idempotent."""
        if self.slot is not None:
            assert self._admission is not None
            self._admission.coming[self.slot] -= 1
            self.slot = None

    def hold(self, size: int) -> None:
        """Set the total to `size` bytes. Raises QueueFull if they do not fit now, PayloadTooLarge if they never do."""
        if size == self._held:
            return
        if size > self._held and self._admission is not None:
            self._admission.check_bytes(self._counted, self._model, size, held=self._held)
        self.hold_answer(size)

    def fits_easily(self, size: int) -> bool:
        """True if a total of `size` bytes leaves three quarters of every limit to others."""
        more = size - self._held
        return all(4 * (one.held.total + more) <= one.limit for one in self._counted)

    def hold_more(self, size: int) -> None:
        """Add `size` bytes to the total. Raises as `hold`."""
        self.hold(self._held + size)

    def hold_answer(self, size: int) -> None:
        """Set the total to `size` bytes without a check: a finished answer is never refused, later requests are."""
        more = size - self._held
        self._held = size
        for counted in self._counted:
            counted.held.add(more)


UNCOUNTED = Admitted()
"""Of requests without fields: their small bodies are read even when the limits are reached."""


class Admission:
    """Admits requests within the byte limits until the service drains. For the event loop only."""

    def __init__(
        self, settings: Settings, metrics: Metrics, capacity: QueueCapacity, sums: SharedSums
    ) -> None:
        self._settings = settings
        self._metrics = metrics
        self._capacity = capacity
        self._bytes = _Bytes(
            "inflight_bytes",
            "requests being served",
            settings.max_inflight_bytes,
            "max_inflight_bytes",
            sums.bytes,
        )
        self._all = (self._bytes,)
        self._bytes_of_models = {
            name: _Bytes(
                "model_bytes",
                f"requests of model {name!r}",
                settings.model_limits[name].bytes,
                "model_limits",
                held,
            )
            for name, held in sums.bytes_of_models.items()
        }
        """Of the models that have a limit."""
        self._bytes_of_callers: dict[str, _Bytes] = {}
        self.coming: Counter[tuple[str, str]] = Counter()
        """(model, version) -> admitted requests that have a slot of its queue and are not in it yet. Without slots, reserved
        before bodies are read, concurrent requests could all claim the last one."""
        self._entering: list[tuple[str, str]] = []
        """Slots to release at the end of this turn of the event loop."""
        self._requests = 0
        self._idle = asyncio.Event()
        """Set once no admitted request is left while the service drains."""
        self._reading: set[asyncio.Timeout] = set()
        self._ended = False
        self.draining = False
        metrics.inflight_bytes.set_function(lambda: self._bytes.held.part)

    def admit(
        self,
        content_length: int | None,
        *,
        model: str,
        version: str,
        caller: Caller = ANYONE,
        queued: bool = True,
        received: int = 0,
    ) -> Admitted:
        """Admit one request before its body is read. The caller must `leave` what is returned once the answer is sent.

        Bytes are counted as they arrive (`Admitted.hold`), not by Content-Length: a client that announces a large body and
        sends nothing must not block others. Only while most of the limits is free, a body that has begun is counted as whole.

        Args:
            content_length: bytes of the decoded body; None if unknown (chunked or compressed).
            caller: the client whose limits apply.
            queued: the request will wait in the model's queue, and gets a slot of it.
            received: bytes of the body that have come, which are counted at once.

        Raises:
            Unavailable: the service is draining.
            PayloadTooLarge: the body is over a limit.
            QueueFull: the body does not fit into the byte limits now, or the queue in which it will wait is full.
        """
        limit = self._settings.max_body_bytes
        size = received if content_length is None else content_length
        self.refuse_if_draining(model)
        if size > limit:
            self._metrics.reject("body_too_large", model)
            raise PayloadTooLarge(
                f"the body has {size} bytes, the limit is {limit} ({env_name('max_body_bytes')}); "
                "send fewer fields in a request"
            )
        slot = (model, version)
        if queued:
            self._capacity.check(model, version, 1, coming=self.coming[slot])
        counted = self._counted(caller, model)
        self.check_bytes(counted, model, size)
        self._requests += 1
        if queued:
            self.coming[slot] += 1
        admitted = Admitted(self, counted, model, slot if queued else None)
        admitted.hold_answer(received)
        return admitted

    def leave(self) -> None:
        """Note the end of an admitted request."""
        self._requests -= 1
        if self.draining and not self._requests:
            self._idle.set()

    def enter_queue(self, request: Admitted) -> None:
        """Release the slot of a request after this turn of the event loop: it has then entered the queue."""
        if request.slot is None:
            return
        if not self._entering:
            asyncio.get_running_loop().call_soon(self._leave_slots)
        self._entering.append(request.slot)
        request.slot = None

    def _leave_slots(self) -> None:
        for slot in self._entering:
            self.coming[slot] -= 1
        self._entering.clear()

    def start_draining(self) -> None:
        """Refuse new requests; admitted ones continue."""
        self.draining = True

    def refuse_if_draining(self, model: str = "") -> None:
        """Raises Unavailable if the service is draining."""
        if self.draining:
            self._metrics.reject("draining", model)
            raise Unavailable(
                "the service is shutting down and takes no new work; retry, another instance may answer",
                # Not the drain time: this instance closes the connection, and another one may answer the next.
                retry_after=1.0,
            )

    @contextmanager
    def reading(self, patience: asyncio.Timeout) -> Iterator[None]:
        """While a body is read under this timeout: `end` expires it."""
        self._reading.add(patience)
        try:
            yield
        finally:
            self._reading.discard(patience)

    def end(self) -> None:
        """End the drain time: requests whose body is still being read time out now."""
        self._ended = True
        for patience in self._reading:
            if not patience.expired():
                patience.reschedule(0.0)

    def refuse_if_ended(self) -> None:
        """Raises Unavailable if the drain time is over."""
        if self._ended:
            self._metrics.reject("draining")
            raise Unavailable(
                "the service stopped before the whole body had come; retry, another instance may answer",
                retry_after=1.0,
            )

    async def wait_idle(self) -> None:
        """Wait until no admitted request is left; call it after `start_draining`."""
        if self._requests:
            await self._idle.wait()

    def check_bytes(
        self, counted: Sequence[_Bytes], model: str, size: int, *, held: int = 0
    ) -> None:
        """Raise QueueFull if a request of `size` bytes, `held` of them counted, does not fit now, PayloadTooLarge if never."""
        more = size - held
        for one in counted:
            total = one.held.total
            if total + more <= one.limit:
                continue
            setting = f" ({env_name(one.setting)})" if one.setting else ""
            whose = "the" if one is self._bytes else "its"
            message = (
                f"{one.whose} hold {total} bytes and have no room for {more} more: "
                f"{whose} limit is {one.limit}{setting}."
            )
            raise self._capacity.over_limit(one.reason, model, message, never=size > one.limit)

    def _counted(self, caller: Caller, model: str) -> Sequence[_Bytes]:
        """The records that count the bytes of a request."""
        of_model = self._bytes_of_models.get(model)
        if of_model is None and not caller.max_bytes:
            return self._all
        counted = [self._bytes] if of_model is None else [self._bytes, of_model]
        if caller.max_bytes:
            fresh = _Bytes("caller_bytes", f"requests of API key {caller.name!r}", 0)
            counted.append(self._bytes_of_callers.setdefault(caller.name, fresh))
            counted[-1].limit = caller.max_bytes
        return counted
