"""How much faster than the solver a surrogate is, when the solver is made as inaccurate as the surrogate is.

1. For each grid of the ladder, from the coarsest, the coarsest step whose mean error is at most the
   surrogate's; finer steps are not tried once they no longer lower the error, which then is the grid's. The walk
   over grids ends where a finer grid allows no coarser step.
2. All of these are timed against the surrogate, in turns, one field at a time and in batches, after a
   warm-up; a time is the median of its turns, on one CPU thread in that thread's own time. The fastest of each is the
   solver at equal error. So it is a little more accurate than the surrogate, never less.
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
    """The solver on a grid of `grid` points an axis with an effort: its mean error (infinite where it blew up)."""

    grid: int
    effort: float
    error: float
    seconds: float
    """For one field, in one batch of all, timed once."""


@dataclass(frozen=True, slots=True)
class Race:
    """Seconds for one field in calls of `batch` fields, medians of `rounds` turns, and the fastest trial."""

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
    """All that was tried, and the races; none where nothing tried is as accurate as the surrogate."""

    tried: tuple[Trial, ...]
    races: tuple[Race, ...]


def compare(task: Task, solver: CoarseSolver, surrogate: Surrogate, error: float) -> EqualError:
    """Find the solver at equal error and race it; `error` is the surrogate's mean relative L2 on the task."""
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
        # two steps finer and no better; where it blew up, the next may not
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
    # every runner has the same fields in the same round, and what disturbs the machine disturbs all
    while rounds < _FEWEST_ROUNDS or (rounds < _MOST_ROUNDS and time.perf_counter() < until):
        for run, spent in zip(runners, seconds, strict=True):
            spent.append(_timed(partial(run, rounds * batch), device)[0] / batch)
        rounds += 1
    surrogate_seconds, *solver_seconds = map(median, seconds)
    fastest = min(range(len(trials)), key=lambda number: solver_seconds[number])
    return Race(batch, rounds, surrogate_seconds, solver_seconds[fastest], trials[fastest])


def _timed(run: Callable[[], torch.Tensor], device: torch.device) -> tuple[float, torch.Tensor]:
    clock = time.process_time if timed_in_cpu_time(device) else time.perf_counter
    _wait_for(device)
    began = clock()
    result = run()
    _wait_for(device)
    return clock() - began, result


def timed_in_cpu_time(device: torch.device) -> bool:
    """One thread of a CPU is timed by its own clock: others at work there add to the time of day, not to that."""
    return device.type == "cpu" and torch.get_num_threads() == 1


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
