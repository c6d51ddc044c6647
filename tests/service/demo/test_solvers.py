"""Samples and solutions: with default parameters those of the zoo; parameters change them as described."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from turbofno.models.trust import residuals
from turbofno.models.zoo.pde import burgers, darcy, nagumo, navier_stokes
from turbofno.models.zoo.problems import (
    BURGERS,
    DARCY,
    HELD_OUT_SEED,
    NAGUMO,
    NAVIER_STOKES,
    PROBLEMS,
    TRAINING_SEED,
    Problem,
)
from turbofno.models.zoo.train import relative_l2
from turbofno.service.demo.sample_parameters import complete, parameters_of
from turbofno.service.demo.solvers import (
    STREAM,
    NoSolver,
    _nearest_finer,
    _periodic_finer,
    solver_for,
)

if TYPE_CHECKING:
    from turbofno.models.core.config import PDE


def defaults(pde: PDE | None, **given: float) -> dict[str, float]:
    parameters = parameters_of(pde)
    assert parameters is not None
    return complete(parameters, given)


def random_seed() -> int:
    return int(torch.randint(1 << 20, ()))


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
def test_the_default_of_every_sampler_parameter_is_a_step_of_its_slider(problem: Problem) -> None:
    parameters = parameters_of(problem.pde)
    assert parameters
    for parameter in parameters:
        assert parameter.minimum < parameter.default < parameter.maximum
        steps = (parameter.default - parameter.minimum) / parameter.step
        assert steps == pytest.approx(round(steps), abs=1e-6)
        assert parameter.description


def test_samples_with_default_parameters_equal_the_zoos_with_another_seed() -> None:
    assert STREAM not in (TRAINING_SEED, HELD_OUT_SEED)
    seed = random_seed()
    drawn = solver_for(BURGERS.pde).sample(seed, 256, defaults(BURGERS.pde))
    torch.testing.assert_close(drawn, burgers.sample_inputs([seed], seed=STREAM, n=256).float())
    drawn = solver_for(DARCY.pde).sample(seed, 85, defaults(DARCY.pde))
    expected = darcy.subsample(darcy.sample_inputs([seed], seed=STREAM), 85)
    assert (drawn != expected).double().mean() < 1e-3  # a node may lie on the interface
    drawn = solver_for(NAGUMO.pde).sample(seed, 21, defaults(NAGUMO.pde))
    torch.testing.assert_close(drawn, nagumo.sample_inputs([seed], seed=STREAM, n=21).float())
    flow = solver_for(NAVIER_STOKES.pde)
    w0 = navier_stokes.sample_inputs([seed], seed=STREAM, n=64, dtype=torch.float32)
    torch.testing.assert_close(flow.sample(seed, 64, defaults(NAVIER_STOKES.pde, time=0.0)), w0)
    three, four = navier_stokes.solve(w0, times=[3.0, 4.0]).unbind(1)
    values = defaults(NAVIER_STOKES.pde, time=3.0)
    assert relative_l2(flow.sample(seed, 64, values), three) < 1e-4
    assert relative_l2(flow.solve_sample(seed, 64, values), four) < 1e-4


def test_the_solution_of_a_sample_is_the_same_on_every_grid() -> None:
    seed = random_seed()
    solver, values = solver_for(BURGERS.pde), defaults(BURGERS.pde, amplitude=1.5)
    fine = solver.solve_sample(seed, 2048, values)
    for n in (64, 256):
        coarse = solver.solve_sample(seed, n, values)
        assert relative_l2(coarse, fine[:, :: 2048 // n]) < 1e-4
    solver, values = solver_for(DARCY.pde), defaults(DARCY.pde)
    fine = solver.solve_sample(seed, 421, values)
    assert relative_l2(solver.solve_sample(seed, 85, values), darcy.subsample(fine, 85)) < 1e-6


def test_activation_times_are_as_accurate_as_the_zoos() -> None:
    solver, values = solver_for(NAGUMO.pde), defaults(NAGUMO.pde, rate=4.5, factor=2.0)
    solved = solver.solve_sample(7, 11, values)
    finer = solver.draw(7, 61, values).float()
    assert relative_l2(solved, nagumo.subsample(nagumo.activation_times(finer, dt=0.1), 11)) < 0.015
    # 21 nodes resolve the field, 11 do not
    given = solver.solve(solver.sample(7, 21, values))
    assert relative_l2(nagumo.subsample(given, 11), solved) < 0.02


def test_the_solution_of_a_field_is_close_to_that_of_its_sample() -> None:
    seed = random_seed()
    for pde, n, most, given in (
        (BURGERS.pde, 512, 1e-3, {}),
        (DARCY.pde, 85, 0.02, {}),
        (NAVIER_STOKES.pde, 48, 1e-3, {"time": 1.0}),
    ):
        solver, values = solver_for(pde), defaults(pde, **given)
        answer = solver.solve(solver.sample(seed, n, values))
        assert answer.shape[1:] == (n,) * (answer.ndim - 1)
        assert relative_l2(answer, solver.solve_sample(seed, n, values)) < most, pde.name
    two_steps = solver.solve(solver.solve(solver.sample(seed, n, values)))
    assert relative_l2(solver.solve_sample(seed, n, values, steps=2), two_steps) < 1e-3


@pytest.mark.parametrize(("old", "new"), [(16, 48), (15, 31), (16, 31), (15, 16), (9, 9)])
def test_interpolation_is_exact_for_resolved_waves(old: int, new: int) -> None:
    def field(n: int) -> torch.Tensor:
        x = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
        y = x[:, None] * 0 + x
        return (torch.sin(3 * x[:, None] + 1) * torch.cos(2 * y) + 0.5 + torch.cos(y))[None]

    torch.testing.assert_close(_periodic_finer(field(old), new), field(new), atol=1e-12, rtol=0)


@pytest.mark.parametrize("waves", [1, 2])
def test_fast_states_of_burgers_equation_are_solved_with_shorter_steps(waves: int) -> None:
    """Against the Cole-Hopf solution: with the usual step one wave of 22 blew up, two of 22 were wrong by 1.4 %."""
    u0 = 22 * torch.sin(2 * math.pi * waves * torch.arange(1024) / 1024)[None]
    solution = solver_for(BURGERS.pde).solve(u0)
    assert residuals.burgers(u0, solution, nu=0.1, time=1.0).item() < 1e-5


def test_sampler_parameters_have_their_effect() -> None:
    def spread(**given: float) -> float:
        solver, values = solver_for(BURGERS.pde), defaults(BURGERS.pde, **given)
        fields = torch.cat([solver.sample(seed, 64, values) for seed in range(60)])
        return float(fields.square().mean())

    usual = spread()
    assert spread(amplitude=2.0) == pytest.approx(4 * usual, rel=1e-4)
    # The same variance with another spectrum; 60 samples estimate it to about 20 %.
    assert spread(tau=12.0, alpha=1.5) == pytest.approx(usual, rel=0.7)
    a = solver_for(DARCY.pde).sample(random_seed(), 85, defaults(DARCY.pde, low=1.0, high=20.0))
    assert set(a.unique().tolist()) == {1.0, 20.0}
    with pytest.raises(ValueError, match=r"'tau' \(inverse length .*\) is 99, expected a number"):
        defaults(BURGERS.pde, tau=99.0)
    with pytest.raises(ValueError, match="is nan"):
        defaults(BURGERS.pde, tau=math.nan)


def test_other_problems_and_shapes_are_refused() -> None:
    nu = BURGERS.pde.parameters[0].model_copy(update={"minimum": 0.01, "maximum": 0.01})
    with pytest.raises(NoSolver, match="no solver for 'burgers' in the form"):
        solver_for(BURGERS.pde.model_copy(update={"parameters": (nu,)}))
    with pytest.raises(ValueError, match=r"same number of points on each axis, got \[64, 48\]"):
        solver_for(NAVIER_STOKES.pde).solve(torch.zeros(1, 64, 48))


def test_a_smooth_permeability_is_solved_in_its_place() -> None:
    """With six of the solver's intervals for one of the field's, a node is midway between two of the field's."""

    def permeability(points: int) -> torch.Tensor:
        x = torch.linspace(0, 1, points, dtype=torch.float64)
        return (1 + 11 * x)[None, :, None].expand(1, points, points)

    solved = solver_for(DARCY.pde).solve(permeability(71))
    assert relative_l2(solved, darcy.subsample(darcy.solve(permeability(421)), 71)) < 1e-3


def test_a_permeability_of_two_values_keeps_them() -> None:
    a = torch.where(torch.rand(1, 85, 85) > 0.5, 12.0, 3.0).double()
    assert set(_nearest_finer(a, 421).unique().tolist()) == {3.0, 12.0}
