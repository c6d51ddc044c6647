"""The coarse solvers represent the right function on their grid, and converge to the reference."""

from __future__ import annotations

import math
import random

import pytest
import torch

from turbofno.models.verify.arguments import SOLVERS
from turbofno.models.verify.solvers import COARSE_SOLVERS, band_limited
from turbofno.models.verify.tasks import Task, tasks_of
from turbofno.models.zoo.problems import PROBLEMS
from turbofno.models.zoo.train import relative_l2


def wave(size: tuple[int, ...], wavenumbers: list[list[int]], phases: list[float]) -> torch.Tensor:
    """A sum of cosines at the points of a periodic grid, from the definition, float64 [1, *size]."""
    axes = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) / n for n in size), indexing="ij")
    field = torch.zeros(size, dtype=torch.float64)
    for numbers, phase in zip(wavenumbers, phases, strict=True):
        turns = sum(k * x for k, x in zip(numbers, axes, strict=True))
        field += torch.cos(2 * math.pi * turns + phase)
    return field[None]


@pytest.mark.parametrize("n_dim", [1, 2])
@pytest.mark.parametrize("finer", [False, True])
def test_a_resolved_wave_is_the_same_on_both_grids(n_dim: int, finer: bool) -> None:
    small = tuple(random.randint(9, 14) for _ in range(n_dim))
    large = tuple(random.randint(15, 22) for _ in range(n_dim))
    waves = [[random.randint(-4, 4) for _ in small] for _ in range(6)]
    phases = [random.uniform(0, 6) for _ in waves]
    before, after = (small, large) if finer else (large, small)
    moved = band_limited(wave(before, waves, phases), after)
    torch.testing.assert_close(moved, wave(after, waves, phases), rtol=0, atol=1e-12)


def test_an_unresolved_wave_is_left_out() -> None:
    low, high = [[2, -1]], [[7, 3]]
    field = wave((20, 20), low, [0.3]) + wave((20, 20), high, [0.1])
    torch.testing.assert_close(
        band_limited(field, (12, 12)), wave((12, 12), low, [0.3]), rtol=0, atol=1e-12
    )


def test_every_problem_has_a_solver_and_the_options_name_them() -> None:
    assert tuple(PROBLEMS) == tuple(COARSE_SOLVERS) == SOLVERS


def small_task(key: str) -> Task:
    """One sample; of Navier-Stokes two steps from its initial state."""
    problem = PROBLEMS[key]
    seed = random.randint(3, 4095)
    if key != "navier-stokes":
        frames = problem.simulate(range(1), seed=seed, n=problem.grid.training[0])
        return tasks_of(problem, frames, seed=seed)[0]
    inputs = problem.simulate.__globals__["navier_stokes"].sample_inputs(
        range(1), seed=seed, n=64, dtype=torch.float32
    )
    solve = COARSE_SOLVERS[key].solve
    task = Task(problem, "", seed, inputs, torch.zeros(1, 2, 64, 64), (0.0,))
    return Task(problem, "", seed, inputs, solve(inputs, task, 50), (0.0,))


@pytest.mark.parametrize(
    ("key", "coarse", "fine", "bound"),
    [
        ("burgers", (16, 8), (128, 96), 1e-4),
        ("darcy", (22, 0.1), (141, 1e-4), 1e-2),
        ("navier-stokes", (16, 2), (48, 16), 1e-3),
        ("nagumo", (35, 5), (49, 10), 0.02),
    ],
)
def test_finer_settings_are_closer_to_the_reference(
    key: str, coarse: tuple[int, float], fine: tuple[int, float], bound: float
) -> None:
    task, solver = small_task(key), COARSE_SOLVERS[key]
    errors = []
    for grid, effort in (coarse, fine):
        answer = solver.solve(solver.begin(task, grid), task, effort)
        assert answer.shape == task.truth.shape
        errors.append(relative_l2(answer, task.truth).item())
    assert errors[1] < min(bound, errors[0] / 2)


@pytest.mark.parametrize("n", [32, 64])
def test_the_input_of_a_coarse_solver_does_not_alias(n: int) -> None:
    seed = random.randint(3, 4095)
    burgers, solver = PROBLEMS["burgers"], COARSE_SOLVERS["burgers"]
    (task,) = tasks_of(burgers, burgers.simulate(range(4), seed=seed, n=n), seed=seed)
    answer = solver.solve(solver.begin(task, 64), task, 96)
    assert relative_l2(answer, task.truth).max() < 1e-4
