"""The device threads: one starts work, another waits for its end, in order.

The event loop's thread may start work in place of the first, never at the same time: then it is the device thread.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from contextvars import Context
from functools import partial
from typing import TypeAlias, TypeVar

import torch

from turbofno.service.system import cores

T = TypeVar("T")

Start: TypeAlias = Callable[[], Callable[[], T]]
"""Starts work and returns a function that waits for its result."""
Done: TypeAlias = Callable[[T | BaseException], None]
"""Receives the result of work, or its error."""
_Tasks = queue.SimpleQueue[Callable[[], None] | None]
"""Ends with None."""

THREAD_NAME = "turbofno-device"

CATCH_UP_SECONDS = 0.002
"""Longest wait of the event loop for the first thread to start short work. If both start work at once, each waits for the
interpreter lock at every call into torch, and the thread, once behind, stays behind."""


def arithmetic_threads(*, on_cpu: bool) -> int:
    """Number of threads for torch if the settings name none.

    Torch's threads wait for each other without sleeping, so one core is left to the event loop: sharing it would stall
    both. With a GPU the CPU only copies.
    """
    if not on_cpu:
        return 1
    return max(1, min(torch.get_num_threads(), cores() - 1))


class Worker:
    """Starts work on one thread and finishes it, in the same order, on another.

    So the next batch starts while the device still runs the last. Without `overlap`, work is finished on the thread
    that started it, before the next starts. All methods but `stop` are for one thread, that of the event loop.
    """

    def __init__(
        self, *, overlap: bool = False, prepare_thread: Callable[[], None] = lambda: None
    ) -> None:
        """`prepare_thread` is called once on each thread that may start or finish work, for torch's per-thread settings such as the device."""
        self._prepare_thread = prepare_thread
        self._starts: _Tasks = queue.SimpleQueue()
        self._last_started, self._long_started = threading.Event(), threading.Event()
        """Set once the first thread has started the last work that it was given, and the last that may take long to start."""
        self._last_started.set()
        self._long_started.set()
        self._finishes: _Tasks | None = queue.SimpleQueue() if overlap else None
        # Daemons: a batch that never ends must not keep the process from exiting.
        self._threads = [
            threading.Thread(target=self._run, args=(tasks,), name=name, daemon=True)
            for name, tasks in ((THREAD_NAME, self._starts), (f"{THREAD_NAME}-out", self._finishes))
            if tasks is not None
        ]

    def start(self) -> None:
        if self._finishes is not None:
            # Here, too, work may be started.
            self._prepare_thread()
        for thread in self._threads:
            thread.start()

    def submit(
        self,
        work: Start[T],
        done: Done[T],
        attempt: Callable[[], Callable[[], T] | None] | None = None,
    ) -> None:
        """Run `work`, then the function that it returns; call `done` with that one's result, or the error of either.

        With overlap, `attempt` starts the work here and now, in place of `work`: it must not take long. If it returns None, or the
        first thread has other work to start that takes more than `CATCH_UP_SECONDS`, `work` goes on there.
        """
        if (
            attempt is not None
            and self._long_started.is_set()
            and self._last_started.wait(CATCH_UP_SECONDS)
        ):
            # As on that thread: what is logged does not belong to the request that is served here.
            finish = Context().run(attempt)
            if finish is not None:
                self._go_on(partial(_finish, finish, done))
                return
            attempt = None
        self._last_started = threading.Event()
        if attempt is None:
            self._long_started = self._last_started
        self._starts.put(partial(self._start, work, done, self._last_started))

    def stop(self, *, timeout: float) -> bool:
        """End the threads after all submitted work. False if that takes longer than `timeout` seconds."""
        if self._finishes is not None:
            self._starts.put(partial(self._finishes.put, None))
        self._starts.put(None)
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self, work: Start[T], done: Done[T], started: threading.Event) -> None:
        try:
            finish = partial(_finish, work(), done)
        except BaseException as error:
            # Without a name: the error's traceback refers to this frame, and a cycle would keep the work's arrays.
            self._go_on(partial(done, error))
        else:
            self._go_on(finish)
        # Behind it, so that work started elsewhere is finished after this.
        started.set()

    def _go_on(self, finish: Callable[[], None]) -> None:
        if self._finishes is None:
            finish()
        else:
            self._finishes.put(finish)

    def _run(self, tasks: _Tasks) -> None:
        self._prepare_thread()
        while (task := tasks.get()) is not None:
            task()
            # Else the arrays of a batch would stay in memory until the next one arrives.
            del task


def _finish(finish: Callable[[], T], done: Done[T]) -> None:
    result: T | BaseException
    try:
        result = finish()
    except BaseException as error:
        result = error
    done(result)
