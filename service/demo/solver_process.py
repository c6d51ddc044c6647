"""The service's side of its solver process: one job at a time, few in line, bounded in time; started when first asked."""

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

IN_LINE = 4
"""Most jobs that wait for the one that runs."""
IDLE_SECONDS = 120.0
"""The process, some 300 MB, ends when it had nothing to do for so long."""
_START_SECONDS = 60.0


class SolverProcess:
    """Draws and solves in a child process that nothing else depends on: it can be killed at any moment, and is.

    For one event loop only.
    """

    def __init__(self, metrics: Metrics, *, seconds: float) -> None:
        self._metrics = metrics
        self._seconds = seconds
        self._turn = asyncio.Lock()
        self._jobs = 0
        self._child: asyncio.subprocess.Process | None = None
        self._idle: asyncio.TimerHandle | None = None

    async def run(self, job: Job, field: Fields | None = None) -> Fields:
        """The drawn or computed field, [1, *grid]. Cancelling ends the work at once.

        Raises:
            QueueFull: too many jobs are in line.
            DeadlineExceeded: it took longer than it may.
            InvalidField: the solver cannot solve this.
            NotFound: there is no solver for this PDE.
            Unavailable: the process did not start, or died.
        """
        if self._jobs > IN_LINE:
            self._metrics.reject("solver_busy")
            raise QueueFull(
                f"the solver is busy: one runs and {IN_LINE} wait; retry in a few seconds",
                retry_after=self._seconds / 2,
            )
        self._jobs += 1
        try:
            async with self._turn:
                return await self._alone(job, field)
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

    async def _alone(self, job: Job, field: Fields | None) -> Fields:
        if self._idle is not None:
            self._idle.cancel()
        try:
            if self._child is None or self._child.returncode is not None:
                await self._start()
            outcome, solution = await self._ask(packed(job, field))
        except (asyncio.IncompleteReadError, OSError):  # a TimeoutError is one too
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
            start_new_session=True,  # an interrupt at the terminal is the service's to handle
        )  # fmt: skip
        async with asyncio.timeout(_START_SECONDS):
            await self._answer()

    async def _ask(self, request: bytes) -> tuple[Outcome, Fields | None]:
        assert self._child is not None
        assert self._child.stdin is not None
        self._child.stdin.write(request)
        await self._child.stdin.drain()
        return await self._answer()

    async def _answer(self) -> tuple[Outcome, Fields | None]:
        assert self._child is not None
        assert self._child.stdout is not None
        stream = self._child.stdout
        text, payload = PREFIX.unpack(await stream.readexactly(PREFIX.size))
        return unpacked(await stream.readexactly(text), await stream.readexactly(payload), Outcome)

    async def _failure(self) -> DeadlineExceeded | Unavailable:
        child = self._child
        try:
            if child is not None:
                # Most likely it has ended by itself: killed before that is known, it would not tell what by.
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(1.0):
                        await child.wait()
        finally:
            # Also when the client leaves meanwhile: what the process still says would answer the next request.
            await self.close()
        if child is not None and child.returncode == -signal.SIGALRM:
            self._metrics.reject("solver_timeout")
            return DeadlineExceeded(
                f"the solver did not end within {self._seconds:g} s ({env_name('solver_seconds')}): "
                "ask for a coarser grid or fewer steps"
            )
        logger.error("the solver process ended with %s", child and child.returncode)
        return Unavailable(
            "the solver process failed, the next request starts another", retry_after=2.0
        )

    def _end_idle(self) -> None:
        if self._child is not None and self._child.stdin is not None:
            self._child.stdin.close()
            self._child = None
