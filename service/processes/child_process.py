"""A child process, whichever way this process got it."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TypeVar

T = TypeVar("T")


class ChildProcess:
    """As asyncio.subprocess.Process, which only asyncio can start."""

    def __init__(self, pid: int, wait: Callable[[], int] | None = None) -> None:
        """`wait` waits for its end and returns the exit status, negative after a signal: `ended` has it then.

        Raises:
            OSError: no thread can wait for it; it is killed.
        """
        self.pid = pid
        wait = wait or partial(_status, pid)
        try:
            self.ended = in_thread(wait)
        except RuntimeError as error:
            os.kill(pid, signal.SIGKILL)
            wait()
            raise OSError(errno.EAGAIN, str(error)) from None

    @property
    def returncode(self) -> int | None:
        return self.ended.result() if self.ended.done() else None

    async def wait(self) -> int:
        return await asyncio.wrap_future(self.ended)

    def send_signal(self, number: signal.Signals) -> None:
        if self.returncode is None:
            # It may have ended since.
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def in_thread(call: Callable[[], T]) -> Future[T]:
    """Call in a thread for which nothing waits at the end of the process."""
    future: Future[T] = Future()
    # One who waits and is cancelled does not cancel it for the others.
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(call())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def _status(pid: int) -> int:
    try:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    except ChildProcessError:
        # Somebody else has waited for it.
        return 255
