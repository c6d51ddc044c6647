"""The solver process: reads jobs from standard input and writes a field or an error to standard output."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING

import numpy as np
import torch

from turbofno.models.core.config import PDE
from turbofno.models.zoo.pde.checks import SolverError
from turbofno.service.demo.messages import Job, Outcome, read, write
from turbofno.service.demo.solvers import NoSolver, solver_for

if TYPE_CHECKING:
    from torch import Tensor

_NICE = 10
"""Lower priority than the service."""


def main() -> None:
    # Send everything else that is printed to standard error, not between the outcomes.
    outcomes = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.nice(_NICE)
    torch.set_num_threads(1)
    write(outcomes, Outcome())
    while (received := read(sys.stdin.buffer, Job)) is not None:
        job, field = received
        # SIGALRM ends this process in the middle of any computation.
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        try:
            result = _run(job, field)
            outcome = Outcome(shape=tuple(result.shape))
        except NoSolver as error:
            result, outcome = None, Outcome(error=str(error), kind="none")
        except (ValueError, SolverError) as error:
            result, outcome = None, Outcome(error=str(error), kind="field")
        signal.setitimer(signal.ITIMER_REAL, 0)
        write(outcomes, outcome, None if result is None else result.contiguous().numpy())


def _run(job: Job, field: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None) -> Tensor:
    solver = solver_for(PDE.model_validate_json(job.pde))
    if field is not None:
        return solver.solve(torch.from_numpy(field), job.steps)
    if job.solve:
        return solver.solve_sample(job.seed, job.points, job.values, job.steps)
    return solver.sample(job.seed, job.points, job.values)


if __name__ == "__main__":
    main()
