"""Who may come in, decided on the headers, before a body is read; and the bytes that requests then hold."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Self

from turbofno.service.errors import PayloadTooLarge, QueueFull, Unavailable
from turbofno.service.model_limits import UNLIMITED
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.queue_capacity import QueueCapacity
    from turbofno.service.settings import Settings


class Caller(NamedTuple):
    """Who asks: the name of an API key, and what it may have in work at once. Nameless and unlimited without keys."""

    name: str = ""
    max_fields: int = 0
    """0: no limit."""
    max_bytes: int = 0


ANYONE = Caller()


class ByteBudget:
    """The bytes that one admitted request holds: of its body, then of its answer. Used from the event loop only."""

    def __init__(
        self,
        check: Callable[[int], None] = lambda _: None,
        change: Callable[[int], None] = lambda _: None,
        leave: Callable[[], None] = lambda: None,
    ) -> None:
        """Without arguments it counts nothing: for a body too small to matter, which must be let in when there is no
        room for others.
        """
        self._check = check
        self._change = change
        self._leave = leave
        self._held = 0
        self._left = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Hold nothing any more: the request is over. Repeatable."""
        if not self._left:
            self._left = True
            self.hold_answer(0)
            self._leave()

    def hold(self, size: int) -> None:
        """Hold `size` bytes in all from now on. Raises QueueFull, PayloadTooLarge if there is no room, or never is."""
        if size > self._held:
            self._check(size - self._held)
        self.hold_answer(size)

    def hold_more(self, size: int) -> None:
        """Hold `size` bytes beside the others. Raises QueueFull if there is no room for them."""
        self.hold(self._held + size)

    def hold_answer(self, size: int) -> None:
        """The same, never refused: the work is done, and it is for others to wait until the answer is sent."""
        if size != self._held:
            self._change(size - self._held)
            self._held = size


class Admission:
    """Lets requests in by the size of their body, until the service drains. Used from the event loop only."""

    def __init__(self, settings: Settings, metrics: Metrics, capacity: QueueCapacity) -> None:
        self._settings = settings
        self._metrics = metrics
        self._capacity = capacity
        self._bytes = 0
        self._bytes_of: Counter[tuple[str, str]] = Counter()
        """By ("caller" or "model", its name)."""
        self._requests = 0
        self._idle = asyncio.Event()
        self._idle.set()
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
        coming: int = 0,
    ) -> ByteBudget:
        """Let one request in, from before its body is read until its answer is sent, when it is to leave its room.

        What it holds is counted as it arrives (`Room.hold`), not as it is announced: a client that
        announces much and sends nothing must not keep others out.

        Args:
            content_length: bytes of the decoded body; None if not known beforehand (chunked or compressed).
            model, version: what the request is for.
            caller: whose room it takes.
            coming: requests of the model that were let in and are not in its queue yet.

        Raises:
            Unavailable: the service is draining.
            PayloadTooLarge: the body is over a limit.
            QueueFull: the body would find no room now, or the model's queue has none for even one more field.
        """
        limit, size = self._settings.max_body_bytes, content_length or 0
        self.refuse_if_draining(model)
        if size > limit:
            self._metrics.reject("body_too_large", model)
            raise PayloadTooLarge(
                f"the body has {size} bytes, the limit is {limit} ({env_name('max_body_bytes')}); "
                "send fewer fields in a request"
            )
        self._capacity.check_capacity(model, version, coming=coming)
        self._check_room(caller, model, size)
        self._requests += 1
        self._idle.clear()
        return ByteBudget(
            partial(self._check_room, caller, model),
            partial(self._change, caller, model),
            self._leave,
        )

    def _leave(self) -> None:
        self._requests -= 1
        if not self._requests:
            self._idle.set()

    def start_draining(self) -> None:
        """Refuse everything from now on; what was let in goes on."""
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
        """While a body is read within this time limit: it is cut short when the drain time ends."""
        self._reading.add(patience)
        try:
            yield
        finally:
            self._reading.discard(patience)

    def end(self) -> None:
        """The drain time is over: what still sends its body times out now."""
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
        """Return once no admitted request is left."""
        await self._idle.wait()

    def _check_room(self, caller: Caller, model: str, size: int) -> None:
        most = self._settings.max_inflight_bytes
        if self._bytes + size > most:
            raise self._no_room(
                "inflight_bytes",
                model,
                f"requests being served hold {self._bytes} bytes and have no room for {size} more: "
                f"the limit is {most} ({env_name('max_inflight_bytes')}).",
            )
        most = self._settings.model_limits.get(model, UNLIMITED).bytes
        held = self._bytes_of["model", model]
        if most and held + size > most:
            message = (
                f"requests of model {model!r} hold {held} bytes and have no room for {size} more: "
                f"its limit is {most} ({env_name('model_limits')})."
            )
            if size > most:
                self._metrics.reject("model_bytes", model)
                raise PayloadTooLarge(f"{message} Send fewer fields in a request.")
            raise self._no_room("model_bytes", model, message)
        mine = self._bytes_of["caller", caller.name]
        if caller.max_bytes and mine + size > caller.max_bytes:
            raise self._no_room(
                "caller_bytes",
                model,
                f"requests of API key {caller.name!r} hold {mine} bytes and have no room for {size} more: "
                f"its limit is {caller.max_bytes}.",
            )

    def _no_room(self, reason: str, model: str, message: str) -> QueueFull:
        self._metrics.reject(reason, model)
        return QueueFull(
            f"{message} Retry after the time in Retry-After.",
            retry_after=self._capacity.drain_seconds,
        )

    def _change(self, caller: Caller, model: str, size: int) -> None:
        self._bytes += size
        self._bytes_of["caller", caller.name] += size
        self._bytes_of["model", model] += size
