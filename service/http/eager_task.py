"""A coroutine that starts at once, as tasks can from Python 3.12 on, and costs less than a task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import copy_context
from typing import Any


class EagerTask:
    """Runs a coroutine up to its first wait in the constructor, then on whenever the awaited future is done.

    `asyncio.current_task` is None in it, so it must not use `asyncio.timeout`.
    """

    __slots__ = ("_cancelled", "_context", "_coroutine", "_on_end", "_waits_for")

    def __init__(
        self, coroutine: Coroutine[Any, None, None], on_end: Callable[[EagerTask], None]
    ) -> None:
        """`on_end` is called at its end, which may be before this returns."""
        self._coroutine, self._on_end = coroutine, on_end
        self._cancelled = False
        self._waits_for: asyncio.Future[Any] | None = None
        self._context = copy_context()
        self._context.run(self._step)

    @property
    def ended(self) -> bool:
        return self._waits_for is None

    def cancel(self, msg: object = None) -> None:
        """Raise CancelledError where the coroutine waits."""
        if self._waits_for is not None and not self._waits_for.cancel(msg):
            self._cancelled = True

    def _step(self, awaited: object = None) -> None:
        # An error of the future refers to the frames that it passed, and they to this one: do not close the cycle.
        del awaited
        self._waits_for, coroutine = None, self._coroutine
        try:
            if self._cancelled:
                self._cancelled = False
                future = coroutine.throw(asyncio.CancelledError())
            else:
                future = coroutine.send(None)
        except BaseException as end:
            self._on_end(self)
            if not isinstance(end, StopIteration):
                raise
            return
        if future is None:
            # A bare yield, as of asyncio.sleep(0).
            future = asyncio.get_running_loop().create_future()
            future.set_result(None)
        future._asyncio_future_blocking = False
        self._waits_for = future
        future.add_done_callback(self._step, context=self._context)
