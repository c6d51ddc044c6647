"""Speed-up of a surrogate over a solver that is coarsened until it is only as accurate as the surrogate.

1. On each grid, from the coarsest, find the largest time step (or tolerance) whose mean error is at most the
   surrogate's. Stop refining the step when the error no longer falls: then the grid limits it. Stop refining the grid
   when a finer grid does not allow a larger step.
2. Time all of these settings and the surrogate in turns, one field at a time and in batches, after a warm-up. A time
   is the median of the turns; on one CPU thread it is that thread's CPU time. The fastest setting is the solver at
   equal error, which is never less accurate than the surrogate.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

import torch

from turbofno.models.verify.solvers import CoarseSolver
from turbofno.models.verify.tasks import Surrogate, Task
from turbofno.models.zoo.pde.checks import SolverError
from turbofno.models.zoo.train import relative_l2

_FALLING = 0.9
_LARGEST_BATCH = 64
_FEWEST_ROUNDS, _MOST_ROUNDS, _SECONDS = 5, 50, 10.0


@dataclass(frozen=True, slots=True)
class Trial:
    """The solver with `grid` points per axis and an effort, and its mean error (infinite if it blew up)."""

    grid: int
    effort: float
    error: float
    seconds: float
    """Per field, in one batch of all fields, timed once."""


@dataclass(frozen=True, slots=True)
class Race:
    """Seconds per field in calls of `batch` fields, medians of `rounds` turns; `trial` is the fastest setting."""

    batch: int
    rounds: int
    surrogate_seconds: float
    solver_seconds: float
    trial: Trial

    @property
    def speed_up(self) -> float:
        return self.solver_seconds / self.surrogate_seconds


@dataclass(frozen=True, slots=True)
class EqualError:
    """All trials, and the races; no races if no trial is as accurate as the surrogate."""

    tried: tuple[Trial, ...]
    races: tuple[Race, ...]


def compare(task: Task, solver: CoarseSolver, surrogate: Surrogate, error: float) -> EqualError:
    """Find and time the solver at equal error; `error` is the surrogate's mean relative L2 on the task."""
    tried: list[Trial] = []
    good: list[Trial] = []
    for grid in solver.grids:
        found = _coarsest_effort(task, solver, grid, error, tried)
        if found is None:
            continue
        if good and solver.efforts.index(found.effort) >= solver.efforts.index(good[-1].effort):
            break
        good.append(found)
        if found.effort == solver.efforts[0]:
            break
    if not good:
        return EqualError(tuple(tried), ())
    batches = (1, min(len(task.inputs), _LARGEST_BATCH))
    races = tuple(_race(task, solver, surrogate, good, batch) for batch in batches)
    return EqualError(tuple(tried), races)


def _coarsest_effort(
    task: Task, solver: CoarseSolver, grid: int, error: float, tried: list[Trial]
) -> Trial | None:
    inputs = solver.begin(task, grid)
    errors: list[float] = []
    for effort in solver.efforts:
        trial = _try(task, solver, inputs, effort)
        tried.append(trial)
        if trial.error <= error:
            return trial
        errors.append(trial.error)
        # Two refinements did not help. After a blow-up (infinite error), go on.
        if len(errors) > 2 and errors[-3] < float("inf") and errors[-1] > _FALLING * errors[-3]:
            return None
    return None


def _try(task: Task, solver: CoarseSolver, inputs: torch.Tensor, effort: float) -> Trial:
    device, grid = inputs.device, inputs.shape[-1]
    try:
        solver.solve(inputs[:1], task, effort)
        seconds, answer = _timed(partial(solver.solve, inputs, task, effort), device)
    except SolverError:
        return Trial(grid, effort, float("inf"), float("inf"))
    error = relative_l2(answer, task.truth).mean().item()
    return Trial(grid, effort, error, seconds / len(inputs))


def _race(
    task: Task, solver: CoarseSolver, surrogate: Surrogate, trials: list[Trial], batch: int
) -> Race:
    device = task.inputs.device

    def predict(begin: int) -> torch.Tensor:
        field = task.some(begin, begin + batch)
        with torch.inference_mode():
            for _ in range(task.steps):
                field = surrogate(field)
        return field

    def solving(trial: Trial) -> Callable[[int], torch.Tensor]:
        inputs = solver.begin(task, trial.grid)

        def solve(begin: int) -> torch.Tensor:
            chosen = torch.arange(begin, begin + batch, device=device) % len(inputs)
            return solver.solve(inputs[chosen], task, trial.effort)

        return solve

    runners = [predict, *map(solving, trials)]
    for run in runners:
        run(0)
    seconds: list[list[float]] = [[] for _ in runners]
    until = time.perf_counter() + _SECONDS
    rounds = 0
    # In turns, so that other load on the machine affects all runners alike.
    while rounds < _FEWEST_ROUNDS or (rounds < _MOST_ROUNDS and time.perf_counter() < until):
        for run, spent in zip(runners, seconds, strict=True):
            spent.append(_timed(partial(run, rounds * batch), device)[0] / batch)
        rounds += 1
    surrogate_seconds, *solver_seconds = map(median, seconds)
    fastest = min(range(len(trials)), key=lambda number: solver_seconds[number])
    return Race(batch, rounds, surrogate_seconds, solver_seconds[fastest], trials[fastest])


def _timed(run: Callable[[], torch.Tensor], device: torch.device) -> tuple[float, torch.Tensor]:
    clock = time.process_time if timed_in_cpu_time(device) else time.perf_counter
    _synchronize(device)
    began = clock()
    result = run()
    _synchronize(device)
    return clock() - began, result


def timed_in_cpu_time(device: torch.device) -> bool:
    """True for one CPU thread, whose CPU time does not include other processes."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def _synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
