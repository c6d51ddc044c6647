"""Samples and solutions for the service are the zoo's own at the defaults, and what the knobs say elsewhere."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest
import torch

from turbofno.models.zoo.pde import burgers, darcy, navier_stokes
from turbofno.models.zoo.problems import (
    BURGERS,
    DARCY,
    HELD_OUT_SEED,
    NAVIER_STOKES,
    PROBLEMS,
    TRAINING_SEED,
    Problem,
)
from turbofno.models.zoo.train import relative_l2
from turbofno.service.demo.sampling import complete, parameters_of
from turbofno.service.demo.solutions import STREAM, NoReference, _periodic_finer, reference_for

if TYPE_CHECKING:
    from turbofno.models.core.config import PDE


def defaults(pde: PDE | None, **given: float) -> dict[str, float]:
    knobs = parameters_of(pde)
    assert knobs is not None
    return complete(knobs, given)


def index() -> int:
    return int(torch.randint(1 << 20, ()))


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=list(PROBLEMS))
def test_every_problem_has_knobs_whose_defaults_their_sliders_reach(problem: Problem) -> None:
    knobs = parameters_of(problem.pde)
    assert knobs
    for knob in knobs:
        assert knob.minimum < knob.default < knob.maximum
        steps = (knob.default - knob.minimum) / knob.step
        assert steps == pytest.approx(round(steps), abs=1e-6)
        assert knob.description


def test_samples_at_the_defaults_are_the_zoos_but_of_another_stream() -> None:
    assert STREAM not in (TRAINING_SEED, HELD_OUT_SEED)
    one = index()
    drawn = reference_for(BURGERS.pde).sample(one, 256, defaults(BURGERS.pde))
    torch.testing.assert_close(drawn, burgers.sample_inputs([one], seed=STREAM, n=256).float())
    drawn = reference_for(DARCY.pde).sample(one, 85, defaults(DARCY.pde))
    expected = darcy.subsample(darcy.sample_inputs([one], seed=STREAM), 85)
    assert (drawn != expected).double().mean() < 1e-3  # a node may lie on the very interface
    flow = reference_for(NAVIER_STOKES.pde)
    w0 = navier_stokes.sample_inputs([one], seed=STREAM, n=64, dtype=torch.float32)
    torch.testing.assert_close(flow.sample(one, 64, defaults(NAVIER_STOKES.pde, time=0.0)), w0)
    three, four = navier_stokes.solve(w0, times=[3.0, 4.0]).unbind(1)
    values = defaults(NAVIER_STOKES.pde, time=3.0)
    assert relative_l2(flow.sample(one, 64, values), three) < 1e-4
    assert relative_l2(flow.solve_sample(one, 64, values), four) < 1e-4


def test_a_sample_is_solved_as_the_function_that_it_is_on_any_grid() -> None:
    one = index()
    reference, values = reference_for(BURGERS.pde), defaults(BURGERS.pde, amplitude=1.5)
    fine = reference.solve_sample(one, 2048, values)
    for n in (64, 256):
        coarse = reference.solve_sample(one, n, values)
        assert relative_l2(coarse, fine[:, :: 2048 // n]) < 1e-4
    reference, values = reference_for(DARCY.pde), defaults(DARCY.pde)
    fine = reference.solve_sample(one, 421, values)
    assert relative_l2(reference.solve_sample(one, 85, values), darcy.subsample(fine, 85)) < 1e-6


def test_a_field_is_solved_as_nearly_that() -> None:
    one = index()
    for pde, n, most, given in (
        (BURGERS.pde, 512, 1e-3, {}),
        (DARCY.pde, 85, 0.02, {}),
        (NAVIER_STOKES.pde, 48, 1e-3, {"time": 1.0}),
    ):
        reference, values = reference_for(pde), defaults(pde, **given)
        answer = reference.solve(reference.sample(one, n, values))
        assert answer.shape[1:] == (n,) * (answer.ndim - 1)
        assert relative_l2(answer, reference.solve_sample(one, n, values)) < most, pde.name
    two_steps = reference.solve(reference.solve(reference.sample(one, n, values)))
    assert relative_l2(reference.solve_sample(one, n, values, steps=2), two_steps) < 1e-3


@pytest.mark.parametrize(("old", "new"), [(16, 48), (15, 31), (16, 31), (15, 16), (9, 9)])
def test_interpolation_is_exact_for_waves_that_the_grid_holds(old: int, new: int) -> None:
    def field(n: int) -> torch.Tensor:
        x = 2 * math.pi * torch.arange(n, dtype=torch.float64) / n
        y = x[:, None] * 0 + x
        return (torch.sin(3 * x[:, None] + 1) * torch.cos(2 * y) + 0.5 + torch.cos(y))[None]

    torch.testing.assert_close(_periodic_finer(field(old), new), field(new), atol=1e-12, rtol=0)


def test_knobs_do_what_they_say() -> None:
    def spread(**given: float) -> float:
        reference, values = reference_for(BURGERS.pde), defaults(BURGERS.pde, **given)
        fields = torch.cat([reference.sample(one, 64, values) for one in range(60)])
        return float(fields.square().mean())

    usual = spread()
    assert spread(amplitude=2.0) == pytest.approx(4 * usual, rel=1e-4)
    # The same variance in other waves: 60 samples tell it to about a fifth.
    assert spread(tau=12.0, alpha=1.5) == pytest.approx(usual, rel=0.7)
    a = reference_for(DARCY.pde).sample(index(), 85, defaults(DARCY.pde, low=1.0, high=20.0))
    assert set(a.unique().tolist()) == {1.0, 20.0}
    with pytest.raises(ValueError, match=r"'tau' \(inverse length .*\) is 99, expected a number"):
        defaults(BURGERS.pde, tau=99.0)
    with pytest.raises(ValueError, match="no parameter 'low' here, expected some of amplitude"):
        defaults(BURGERS.pde, low=1.0)
    with pytest.raises(ValueError, match="is nan"):
        defaults(BURGERS.pde, tau=math.nan)


def test_other_problems_and_shapes_are_refused() -> None:
    nu = BURGERS.pde.parameters[0].model_copy(update={"minimum": 0.01, "maximum": 0.01})
    with pytest.raises(NoReference, match="no solver for 'burgers' in the form"):
        reference_for(BURGERS.pde.model_copy(update={"parameters": (nu,)}))
    with pytest.raises(ValueError, match=r"as many points along one axis .* got \[64, 48\]"):
        reference_for(NAVIER_STOKES.pde).solve(torch.zeros(1, 64, 48))
