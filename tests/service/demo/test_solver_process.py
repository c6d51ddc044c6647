"""The solver process after late, cancelled and failed jobs."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np
import pytest

from turbofno.models.zoo.problems import BURGERS, NAVIER_STOKES
from turbofno.service.demo import solver_process
from turbofno.service.demo.messages import Job
from turbofno.service.demo.sample_parameters import complete, parameters_of
from turbofno.service.demo.solver_process import MAX_WAITING, SolverProcess
from turbofno.service.errors import DeadlineExceeded, InvalidField, QueueFull, Unavailable
from turbofno.service.metrics import Metrics

if TYPE_CHECKING:
    from turbofno.models.zoo.problems import Problem

pytestmark = pytest.mark.timeout(150)


def job(problem: Problem, seconds: float, *, steps: int = 0, points: int = 64) -> Job:
    values = complete(parameters_of(problem.pde) or (), {"time": 0.0} if problem is NAVIER_STOKES else {})  # fmt: skip
    text = problem.pde.model_dump_json()
    return Job(text, seconds, solve=steps > 0, seed=5, points=points, values=values, steps=steps)


QUICK = job(BURGERS, 60.0)
ENDLESS = job(NAVIER_STOKES, 60.0, steps=1000, points=512)


def test_a_late_cancelled_or_unsolvable_job_does_not_harm_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    metrics = Metrics()

    def rejected(reason: str) -> float:
        return metrics.registry.get_sample_value("turbofno_rejections_total", {"reason": reason, "model": ""}) or 0.0  # fmt: skip

    async def main() -> None:
        solver = SolverProcess(metrics, seconds=0.5)
        drawn = await solver.run(QUICK)
        assert drawn.shape == (1, 64)
        assert drawn.dtype == np.float32

        broken = Job(QUICK.pde, 60.0, solve=True, shape=(1, 4))
        with pytest.raises(InvalidField, match="the solver cannot solve this"):
            await solver.run(broken, np.full((1, 4), np.nan, "f4"))
        assert solver._child is not None
        first = solver._child.pid
        np.testing.assert_array_equal(await solver.run(QUICK), drawn)
        assert solver._child.pid == first

        late = job(NAVIER_STOKES, 0.5, steps=1000, points=512)
        with pytest.raises(DeadlineExceeded, match=r"0\.5 s \(TURBOFNO_SOLVER_SECONDS\)"):
            await solver.run(late)
        assert rejected("solver_timeout") == 1

        running = [asyncio.ensure_future(solver.run(ENDLESS)) for _ in range(1 + MAX_WAITING)]
        await asyncio.sleep(0.1)
        with pytest.raises(QueueFull, match=f"one job runs and {MAX_WAITING} wait"):
            await solver.run(QUICK)
        assert rejected("solver_busy") == 1
        for one in running:
            one.cancel()
        await asyncio.wait(running)

        monkeypatch.setattr(solver_process, "IDLE_SECONDS", 0.2)
        np.testing.assert_array_equal(await solver.run(QUICK), drawn)
        child = solver._child
        assert await asyncio.wait_for(child.wait(), 20.0) == 0
        assert solver._child is None
        await solver.close()

    asyncio.run(main())


def test_a_dead_process_is_reported_and_replaced() -> None:
    async def main() -> None:
        solver = SolverProcess(Metrics(), seconds=60.0)
        await solver.run(QUICK)
        assert solver._child is not None
        work = asyncio.ensure_future(solver.run(ENDLESS))
        await asyncio.sleep(0.2)
        solver._child.kill()
        with pytest.raises(Unavailable, match="the next request starts another"):
            await work
        assert (await solver.run(QUICK)).shape == (1, 64)
        child = solver._child
        await solver.close()
        assert child.returncode is not None

    asyncio.run(main())


def test_a_cancellation_during_the_start_leaves_no_process(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def main() -> None:
        solver = SolverProcess(Metrics(), seconds=60.0)
        with monkeypatch.context() as patched:
            patched.setattr(solver_process, "_START_SECONDS", 0.01)
            work = asyncio.ensure_future(solver.run(QUICK))
            await asyncio.sleep(0.3)  # the start has timed out, and the process is awaited
            work.cancel()
            await asyncio.wait([work])
        assert solver._child is None
        assert (await solver.run(QUICK)).shape == (1, 64)
        await solver.close()

    asyncio.run(main())
