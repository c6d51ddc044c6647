"""The solver at equal error is as accurate as the surrogate, and speed-ups are ratios of measured times."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
import torch

from turbofno.models.verify import equal_error
from turbofno.models.verify.equal_error import compare
from turbofno.models.verify.solvers import COARSE_SOLVERS, CoarseSolver
from turbofno.models.verify.tasks import Task, tasks_of
from turbofno.models.zoo.pde import burgers
from turbofno.models.zoo.pde.checks import SolverError
from turbofno.models.zoo.problems import BURGERS


def burgers_task(samples: int = 3) -> Task:
    seed = int(torch.randint(3, 4096, ()))
    frames = BURGERS.simulate(range(samples), seed=seed, n=1024)
    return tasks_of(BURGERS, frames, seed=seed)[0]


def scaled_solver(x: torch.Tensor) -> torch.Tensor:
    """A surrogate whose error is one per cent."""
    return 1.01 * burgers.solve(x[:, 0])[:, None]


def test_the_chosen_setting_is_the_coarsest_accurate_one_on_its_grid() -> None:
    task, solver = burgers_task(), COARSE_SOLVERS["burgers"]
    found = compare(task, solver, scaled_solver, 0.01)
    assert [race.batch for race in found.races] == [1, 3]
    for race in found.races:
        chosen = race.trial
        assert chosen.error <= 0.01
        inputs = solver.begin(task, chosen.grid)
        place = solver.efforts.index(chosen.effort)
        for effort, enough in ((chosen.effort, True), (solver.efforts[place - 1], False)):
            answer = solver.solve(inputs, task, effort)
            error = (answer - task.truth).norm(dim=-1) / task.truth.norm(dim=-1)
            assert (error.mean().item() <= 0.01) == enough
        # the surrogate is the solver with 1024 points and 256 steps, so the coarse one must win
        assert race.speed_up < 0.5


def sleeping(efforts: tuple[float, ...], errors: dict[float, float]) -> CoarseSolver:
    """A solver that takes `effort` milliseconds per sample and has the given errors."""

    def solve(inputs: torch.Tensor, task: Task, effort: float) -> torch.Tensor:
        time.sleep(1e-3 * effort * len(inputs))
        if errors[effort] == float("inf"):
            raise SolverError("blew up")
        return (1 + errors[effort]) * task.truth[: len(inputs)]

    def begin(task: Task, n: int) -> torch.Tensor:
        return task.inputs[:, :n]

    return CoarseSolver("effort", (8, 16), efforts, begin, solve, "")


def test_the_speed_up_is_the_ratio_of_the_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(equal_error, "timed_in_cpu_time", lambda _: False)
    task = burgers_task()
    solver = sleeping((2.0, 40.0, 80.0), {2.0: 0.5, 40.0: 0.009, 80.0: 0.001})

    def surrogate(x: torch.Tensor) -> torch.Tensor:
        time.sleep(4e-3 * len(x))
        return x

    found = compare(task, solver, surrogate, 0.01)
    for race in found.races:
        assert race.trial.effort == 40.0
        assert race.solver_seconds == pytest.approx(0.040, rel=0.3)
        assert race.speed_up == pytest.approx(10, rel=0.4)


def test_settings_that_blow_up_or_do_not_improve_are_skipped() -> None:
    task = burgers_task()
    blown = sleeping((1.0, 2.0, 3.0), {1.0: float("inf"), 2.0: float("inf"), 3.0: 0.001})
    assert [race.trial.effort for race in compare(task, blown, torch.clone, 0.01).races] == [3, 3]
    stuck = sleeping((1.0, 2.0, 3.0, 4.0), dict.fromkeys((1.0, 2.0, 3.0, 4.0), 0.5))
    found = compare(task, stuck, torch.clone, 0.01)
    assert not found.races
    assert [(trial.grid, trial.effort) for trial in found.tried] == [
        (8, 1), (8, 2), (8, 3), (16, 1), (16, 2), (16, 3),
    ]  # fmt: skip


def test_the_search_ends_when_a_finer_grid_allows_no_larger_step() -> None:
    task = burgers_task()
    solver = replace(sleeping((1.0, 2.0), {1.0: 0.5, 2.0: 0.001}), grids=(8, 16, 32, 64))
    found = compare(task, solver, torch.clone, 0.01)
    assert {trial.grid for trial in found.tried} == {8, 16}


def test_one_thread_is_timed_in_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    slept, _ = equal_error._timed(lambda: time.sleep(0.2) or torch.ones(1), torch.device("cpu"))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    waited, _ = equal_error._timed(lambda: time.sleep(0.2) or torch.ones(1), torch.device("cpu"))
    assert slept < 0.1 < 0.2 <= waited
