"""The service's side of the solver process: starts it at the first job, sends one job at a time, enforces limits."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from typing import TYPE_CHECKING

from turbofno.service.demo.messages import PREFIX, Outcome, packed, unpacked
from turbofno.service.errors import DeadlineExceeded, InvalidField, NotFound, QueueFull, Unavailable
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from turbofno.service.demo.messages import Job
    from turbofno.service.engine.interface import Fields
    from turbofno.service.metrics import Metrics

logger = logging.getLogger(__name__)

MAX_WAITING = 4
"""Maximum number of jobs that wait while one runs."""
IDLE_SECONDS = 120.0
"""The process takes about 300 MB, so it ends after this long without a job."""
_START_SECONDS = 60.0


class SolverProcess:
    """A child process that draws samples and solves PDEs. To cancel a job, it is killed. For one event loop."""

    def __init__(self, metrics: Metrics, *, seconds: float) -> None:
        self._metrics = metrics
        self._seconds = seconds
        self._lock = asyncio.Lock()
        self._jobs = 0
        self._child: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def run(self, job: Job, field: Fields | None = None) -> Fields:
        """The sample or solution, [1, *grid]. Cancelling ends the job at once.

        Raises:
            QueueFull: too many jobs are waiting.
            DeadlineExceeded: the job ran out of time.
            InvalidField: the solver cannot solve this field.
            NotFound: there is no solver for this PDE.
            Unavailable: the process did not start, or died.
        """
        if self._jobs > MAX_WAITING:
            self._metrics.reject("solver_busy")
            raise QueueFull(
                f"the solver is busy: one job runs and {MAX_WAITING} wait; retry in a few seconds",
                retry_after=self._seconds / 2,
            )
        self._jobs += 1
        try:
            async with self._lock:
                return await self._run(job, field)
        finally:
            self._jobs -= 1

    async def close(self) -> None:
        """End the process. Repeatable."""
        if self._idle is not None:
            self._idle.cancel()
        child, self._child = self._child, None
        if child is not None:
            with contextlib.suppress(ProcessLookupError):
                child.kill()
            await child.wait()

    async def _run(self, job: Job, field: Fields | None) -> Fields:
        if self._idle is not None:
            self._idle.cancel()
        try:
            if self._child is None or self._child.returncode is not None:
                await self._start()
            outcome, solution = await self._send(packed(job, field))
        except (asyncio.IncompleteReadError, OSError):  # OSError includes TimeoutError
            raise await self._failure() from None
        except asyncio.CancelledError:
            await self.close()
            raise
        self._idle = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._end_idle)
        if outcome.kind == "none":
            raise NotFound(outcome.error)
        if outcome.kind == "field" or solution is None:
            raise InvalidField(f"the solver cannot solve this: {outcome.error}")
        return solution

    async def _start(self) -> None:
        self._child = await asyncio.create_subprocess_exec(
            sys.executable, "-P", "-m", "turbofno.service.demo",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "CUDA_VISIBLE_DEVICES": ""},
            start_new_session=True,  # Ctrl-C reaches only the service, which then ends this process
        )  # fmt: skip
        async with asyncio.timeout(_START_SECONDS):
            await self._outcome()

    async def _send(self, request: bytes) -> tuple[Outcome, Fields | None]:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(request)
        await self._child.stdin.drain()
        return await self._outcome()

    async def _outcome(self) -> tuple[Outcome, Fields | None]:
        assert self._child is not None
        assert self._child.stdout is not None
        stream = self._child.stdout
        text, payload = PREFIX.unpack(await stream.readexactly(PREFIX.size))
        return unpacked(await stream.readexactly(text), await stream.readexactly(payload), Outcome)

    async def _failure(self) -> DeadlineExceeded | Unavailable:
        child = self._child
        try:
            if child is not None:
                # Let it end by itself, so that its exit status shows whether SIGALRM ended it.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await child.wait()
        finally:
            # Also on cancellation: an outcome left in the pipe would answer the next job.
            await self.close()
        if child is not None and child.returncode == -signal.SIGALRM:
            self._metrics.reject("solver_timeout")
            return DeadlineExceeded(
                f"the solver did not finish within {self._seconds:g} s ({env_name('solver_seconds')}): "
                "ask for a coarser grid or fewer steps"
            )
        logger.error("the solver process ended with %s", child and child.returncode)
        return Unavailable(
            "the solver process failed: retry, the next request starts another", retry_after=2.0
        )

    def _end_idle(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            self._child = None
