"""Admission control by request size, before the body is read; and the bytes that admitted requests hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple, Self

from turbofno.service.errors import PayloadTooLarge, Unavailable
from turbofno.service.model_limits import UNLIMITED
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.queue_capacity import QueueCapacity
    from turbofno.service.settings import Settings


class Caller(NamedTuple):
    """An API key's name and limits on its work in progress. Without keys: no name, no limits."""

    name: str = ""
    max_fields: int = 0
    """0: no limit."""
    max_bytes: int = 0


ANYONE = Caller()


class Admitted:
    """An admitted request: the bytes that it holds, of its body, then of its answer; and a queue slot, until it is queued.

    For the event loop only.
    """

    __slots__ = ("_admission", "_caller", "_held", "_left", "_model", "_slot")

    def __init__(
        self,
        admission: Admission | None = None,
        caller: Caller = ANYONE,
        model: str = "",
        slot: tuple[str, str] | None = None,
    ) -> None:
        """`slot` is model and version of the queue.

        Without arguments nothing is counted: for small bodies that are read even when the limits are reached.
        """
        self._admission = admission
        self._caller = caller
        self._model = model
        self._slot = slot
        self._held = 0
        self._left = admission is None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Release everything at the end of the request. Idempotent."""
        if not self._left:
            self._left = True
            self.hold_answer(0)
            self.leave_slot()
            assert self._admission is not None
            self._admission.leave()

    def leave_slot(self) -> None:
        """Release the queue slot: a slow body must not occupy it. Idempotent."""
        if self._slot is not None:
            assert self._admission is not None
            self._admission.coming[self._slot] -= 1
            self._slot = None

    def hold(self, size: int) -> None:
        """Set the total to `size` bytes. Raises QueueFull if they do not fit now, PayloadTooLarge if they never do."""
        if size > self._held and self._admission is not None:
            self._admission.check_bytes(self._caller, self._model, size - self._held)
        self.hold_answer(size)

    def hold_more(self, size: int) -> None:
        """Add `size` bytes to the total. Raises as `hold`."""
        self.hold(self._held + size)

    def hold_answer(self, size: int) -> None:
        """Set the total to `size` bytes without a check: a finished answer is never refused, later requests are."""
        if size != self._held:
            if self._admission is not None:
                self._admission.change_bytes(self._caller, self._model, size - self._held)
            self._held = size


class Admission:
    """Admits requests within the byte limits until the service drains. For the event loop only."""

    def __init__(self, settings: Settings, metrics: Metrics, capacity: QueueCapacity) -> None:
        self._settings = settings
        self._metrics = metrics
        self._capacity = capacity
        self._bytes = 0
        self._bytes_of: Counter[tuple[str, str]] = Counter()
        """("caller" or "model", its name) -> bytes held."""
        self.coming: Counter[tuple[str, str]] = Counter()
        """(model, version) -> admitted requests that have a slot of its queue and are not in it yet. Without slots, reserved
        before bodies are read, concurrent requests could all claim the last one."""
        self._entering: list[Admitted] = []
        self._requests = 0
        self._idle = asyncio.Event()
        """Set once no admitted request is left while the service drains."""
        self._reading: set[asyncio.Timeout] = set()
        self._ended = False
        self.draining = False
        metrics.inflight_bytes.set_function(lambda: self._bytes)

    def admit(
        self,
        content_length: int | None,
        *,
        model: str,
        version: str,
        caller: Caller = ANYONE,
        queued: bool = True,
    ) -> Admitted:
        """Admit one request before its body is read. The caller must `leave` what is returned once the answer is sent.

        Bytes are counted as they arrive (`Admitted.hold`), not by Content-Length: a client that announces a large
        body and sends nothing must not block others.

        Args:
            content_length: bytes of the decoded body; None if unknown (chunked or compressed).
            caller: the client whose limits apply.
            queued: the request will wait in the model's queue, and gets a slot of it.

        Raises:
            Unavailable: the service is draining.
            PayloadTooLarge: the body is over a limit.
            QueueFull: the body does not fit into the byte limits now, or the model's queue is full.
        """
        limit, size = self._settings.max_body_bytes, content_length or 0
        self.refuse_if_draining(model)
        if size > limit:
            self._metrics.reject("body_too_large", model)
            raise PayloadTooLarge(
                f"the body has {size} bytes, the limit is {limit} ({env_name('max_body_bytes')}); "
                "send fewer fields in a request"
            )
        slot = (model, version)
        self._capacity.check(model, version, self.coming[slot] + 1)
        self.check_bytes(caller, model, size)
        self._requests += 1
        if not queued:
            return Admitted(self, caller, model)
        self.coming[slot] += 1
        return Admitted(self, caller, model, slot)

    def leave(self) -> None:
        """Note the end of an admitted request."""
        self._requests -= 1
        if self.draining and not self._requests:
            self._idle.set()

    def enter_queue(self, request: Admitted) -> None:
        """Release the slot of a request after this turn of the event loop: it has then entered the queue."""
        if not self._entering:
            asyncio.get_running_loop().call_soon(self._leave_slots)
        self._entering.append(request)

    def _leave_slots(self) -> None:
        for request in self._entering:
            request.leave_slot()
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
                retry_after=self._settings.drain_seconds,
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

    def check_bytes(self, caller: Caller, model: str, size: int) -> None:
        """Raise QueueFull if so many more bytes do not fit now, PayloadTooLarge if they never do."""
        limit = self._settings.max_inflight_bytes
        if self._bytes + size > limit:
            raise self._capacity.queue_full(
                "inflight_bytes",
                model,
                f"requests being served hold {self._bytes} bytes and have no room for {size} more: "
                f"the limit is {limit} ({env_name('max_inflight_bytes')}).",
            )
        if not caller.max_bytes and model not in self._settings.model_limits:
            return
        limit = self._settings.model_limits.get(model, UNLIMITED).bytes
        held = self._bytes_of["model", model]
        if limit and held + size > limit:
            message = (
                f"requests of model {model!r} hold {held} bytes and have no room for {size} more: "
                f"its limit is {limit} ({env_name('model_limits')})."
            )
            error = self._capacity.queue_full("model_bytes", model, message)
            if size > limit:
                raise PayloadTooLarge(f"{message} Send fewer fields in a request.")
            raise error
        held = self._bytes_of["caller", caller.name]
        if caller.max_bytes and held + size > caller.max_bytes:
            raise self._capacity.queue_full(
                "caller_bytes",
                model,
                f"requests of API key {caller.name!r} hold {held} bytes and have no room for {size} more: "
                f"its limit is {caller.max_bytes}.",
            )

    def change_bytes(self, caller: Caller, model: str, size: int) -> None:
        """Count `size` more bytes, or fewer."""
        self._bytes += size
        if caller.max_bytes:
            self._bytes_of["caller", caller.name] += size
        if model in self._settings.model_limits:
            self._bytes_of["model", model] += size
