"""The thread that uses the device, and the one that waits for it: work starts on one, ends on the other, in order."""

from __future__ import annotations

import os
import queue
import threading
import time
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

THREAD_NAME = "turbofno-device"


def arithmetic_threads(*, on_cpu: bool) -> int:
    """How many threads torch should use where the settings leave it open.

    Its threads wait for each other without sleeping, so one that shares its core with the event loop
    stalls all of them, and they the event loop. All that a GPU leaves to the CPU are copies.
    """
    if not on_cpu:
        return 1
    return max(1, min(torch.get_num_threads(), cores() - 1))


def cores() -> int:
    """On which this process may run."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


class Worker:
    """Starts pieces of work one after another on one thread and finishes them, in that order, on another.

    So the next piece starts while the device still works on the last. Without `overlap` a piece is finished on
    the thread that started it, before the next one starts.
    """

    def __init__(
        self, *, overlap: bool = False, prepare_thread: Callable[[], None] = lambda: None
    ) -> None:
        """`prepare_thread` is called once on each thread: torch keeps the current device and so on by thread."""
        self._prepare_thread = prepare_thread
        self._starts: queue.SimpleQueue[Callable[[], Callable[[], None]] | None] = (
            queue.SimpleQueue()
        )
        self._finishes: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        # Daemons: a batch that never ends must not keep the process from exiting after its drain time.
        self._threads = [threading.Thread(target=self._start_loop, name=THREAD_NAME, daemon=True)]
        if overlap:
            self._threads.append(
                threading.Thread(target=self._finish_loop, name=f"{THREAD_NAME}-out", daemon=True)
            )

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def submit(
        self, work: Callable[[], Callable[[], T]], done: Callable[[T | BaseException], None]
    ) -> None:
        """Run `work`, then what it returned; then call `done` with what that returned, or what either raised."""

        def start() -> Callable[[], None]:
            try:
                finish = work()
            except BaseException as error:
                return partial(done, error)
            return partial(_finish, finish, done)

        self._starts.put(start)

    def stop(self, *, timeout: float) -> bool:
        """Finish what was submitted, then end. False if that took longer than `timeout` seconds."""
        self._starts.put(None)
        until = time.monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start_loop(self) -> None:
        self._prepare_thread()
        overlap = len(self._threads) > 1
        while (start := self._starts.get()) is not None:
            finish = start()
            if overlap:
                self._finishes.put(finish)
            else:
                finish()
            del (
                start,
                finish,
            )  # else the arrays of a batch would stay in memory until the next one comes
        self._finishes.put(None)

    def _finish_loop(self) -> None:
        self._prepare_thread()
        while (finish := self._finishes.get()) is not None:
            finish()
            del finish


def _finish(finish: Callable[[], T], done: Callable[[T | BaseException], None]) -> None:
    result: T | BaseException
    try:
        result = finish()
    except BaseException as error:
        result = error
    done(result)
