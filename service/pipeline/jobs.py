"""Work on the device other than batches, such as warm-ups and turns of rollouts, and its share of the device's time."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")

MOST_CHARGED_SECONDS = 1.0
"""Most of a job's seconds for which later jobs wait: a slow warm-up must not keep rollouts waiting as long."""


class Job(Generic[T]):
    """Work for the device thread and the future of its result, with the seconds that it took."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self.outcome: asyncio.Future[tuple[T, float]] = asyncio.get_running_loop().create_future()

    def start(self) -> Callable[[], T]:
        """Do everything; return a function that returns the result."""
        result = self._work()
        return lambda: result

    def end(self, result: T | BaseException, seconds: float) -> None:
        if self.outcome.done():
            return
        if isinstance(result, BaseException):
            self.outcome.set_exception(result)
        else:
            self.outcome.set_result((result, seconds))


class Jobs:
    """Jobs that wait, in order. They get no more device time than the batches that wait meanwhile."""

    def __init__(self) -> None:
        self._waiting: deque[Job[Any]] = deque()
        self._lead = 0.0
        """Device seconds that jobs had more than the batches that waited meanwhile."""

    def __bool__(self) -> bool:
        return bool(self._waiting)

    @property
    def may_run(self) -> bool:
        """False while batches are to catch up."""
        return self._lead <= 0.0

    def add(self, job: Job[Any]) -> None:
        self._waiting.append(job)

    def next(self) -> Job[Any] | None:
        """Take the next job that is still wanted; None if there is none or it may not run."""
        while self.may_run and self._waiting:
            job = self._waiting.popleft()
            if not job.outcome.done():
                return job
        return None

    def note_job(self, seconds: float) -> None:
        """Charge a job that took so long."""
        self._lead += min(seconds, MOST_CHARGED_SECONDS)

    def note_batch(self, seconds: float) -> float:
        """Let a batch that took so long catch up. Returns the seconds by which it did."""
        owed = min(self._lead, seconds)
        self._lead -= owed
        return owed

    def note_no_batch(self) -> None:
        """Forget the lead, since no batch waits."""
        self._lead = 0.0

    def fail_all(self, error: Callable[[], Exception]) -> None:
        """End each with an error of its own."""
        while self._waiting:
            self._waiting.popleft().end(error(), 0.0)
