"""The solver process: one job after another from standard input, its field or what was wrong to standard output."""

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
from turbofno.service.demo.solutions import NoReference, reference_for

if TYPE_CHECKING:
    from torch import Tensor

_NICE = 10
"""Serving comes first."""


def main() -> None:
    # What anything else prints must not end up between the answers.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.nice(_NICE)
    torch.set_num_threads(1)
    write(answers, Outcome())
    while (received := read(sys.stdin.buffer, Job)) is not None:
        job, field = received
        # The end of this process, whatever it is in the middle of, and whether or not anybody still waits for it.
        signal.setitimer(signal.ITIMER_REAL, job.seconds)
        try:
            solution = _work(job, field)
            outcome = Outcome(shape=tuple(solution.shape))
        except NoReference as error:
            solution, outcome = None, Outcome(error=str(error), kind="none")
        except (ValueError, SolverError) as error:
            solution, outcome = None, Outcome(error=str(error), kind="field")
        signal.setitimer(signal.ITIMER_REAL, 0)
        write(answers, outcome, None if solution is None else solution.contiguous().numpy())


def _work(job: Job, field: np.ndarray[tuple[int, ...], np.dtype[np.float32]] | None) -> Tensor:
    reference = reference_for(PDE.model_validate_json(job.pde))
    if field is not None:
        return reference.solve(torch.from_numpy(field), job.steps)
    if job.solve:
        return reference.solve_sample(job.seed, job.points, job.values, job.steps)
    return reference.sample(job.seed, job.points, job.values)


if __name__ == "__main__":
    main()
