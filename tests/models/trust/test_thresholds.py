"""Thresholds of the trust signals: by grid, on held-out fields, and for fields unlike the training data."""

from __future__ import annotations

import math
from unittest.mock import Mock

import pytest
import torch
from pydantic import ValidationError

from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.config import ModelConfig, read_config
from turbofno.models.core.regrid import at_points
from turbofno.models.core.statistics import GridThresholds, Thresholds
from turbofno.models.trust import calibrate
from turbofno.models.trust.calibrate import evaluated, sampled, signals_of
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.pde import navier_stokes
from turbofno.models.zoo.problems import HELD_OUT_SEED, problem_named

NAMES = ["burgers-1d", "darcy-2d", "navier-stokes-2d", "nagumo-3d"]


def thresholds(*rows: tuple[int, float | None, float | None]) -> Thresholds:
    grids = [
        GridThresholds(grid=(points,), n_fields=1, input_distance=distance, residual=residual)
        for points, distance, residual in rows
    ]
    return Thresholds(exceeded_by=0.001, grids=tuple(grids))


@pytest.mark.parametrize(
    ("points", "expected"),
    [(8, 0.3), (16, 0.3), (20, 0.3), (64, 0.1), (100, 0.2), (256, 0.2), (999, 0.2)],
)
def test_between_two_grids_the_larger_threshold_counts(points: int, expected: float) -> None:
    known = thresholds((64, 1.0, 0.1), (16, 1.0, 0.3), (256, 1.0, 0.2))
    assert known.on((points,)) == {"input_distance": 1.0, "residual": expected}


def test_a_grid_of_as_many_points_stands_for_one_that_is_not_listed() -> None:
    grids = (((4, 4), 5.0), ((8, 32), 0.2), ((16, 16), 0.1), ((64, 64), 7.0))
    known = Thresholds(
        exceeded_by=0.001,
        grids=tuple(GridThresholds(grid=grid, n_fields=1, residual=limit) for grid, limit in grids),
    )
    assert known.on((16, 16)) == {"residual": 0.1}
    assert known.on((32, 8)) == {"residual": 0.2}


def test_a_signal_without_a_threshold_never_warns() -> None:
    assert thresholds((16, 1.0, None)).on((16,)) == {"input_distance": 1.0}
    assert thresholds((16, None, 0.1), (32, 2.0, 0.1)).on((24,)) == {
        "input_distance": 2.0,
        "residual": 0.1,
    }


def test_a_threshold_on_a_grid_of_other_axes_is_refused() -> None:
    given = tiny_config(n_dim=2).model_dump()
    channel = {"mean": 0.0, "std": 1.0, "minimum": -1.0, "maximum": 1.0}
    given["statistics"] = {
        "n_samples": 1,
        "inputs": [channel],
        "outputs": [channel] * 2,
        "thresholds": thresholds((16, 1.0, 0.1)).model_dump(),
    }
    with pytest.raises(ValidationError, match=r"grid \[16\], but the architecture has 2 axes"):
        ModelConfig.model_validate(given)


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_has_thresholds_on_every_evaluated_grid(name: str) -> None:
    config = read_config(TRAINED / name / "config.json")
    assert config.statistics is not None
    known = config.statistics.thresholds
    assert known is not None
    assert known.exceeded_by == 0.001
    assert {one.grid for one in known.grids} == {one.grid for one in config.evaluation}
    assert config.pde is not None
    signals = {"input_distance"} | ({"residual"} if config.pde.residual else set())
    least = known.on(config.grid.training)
    for one in known.grids:
        limits = known.on(one.grid)
        assert set(limits) == signals
        assert all(limits[name] >= least[name] for name in signals)


@pytest.mark.parametrize("name", ["burgers-1d", "darcy-2d", "nagumo-3d"])
def test_held_out_fields_of_the_zoo_seldom_warn(name: str) -> None:
    model, problem = load_model(TRAINED / name), problem_named(name)
    assert model.config.statistics is not None
    assert model.config.statistics.thresholds is not None
    found = signals_of(model, sampled(problem, 64, seed=HELD_OUT_SEED, n=problem.grid.training[0]))
    for signal, limit in model.config.statistics.thresholds.on(problem.grid.training).items():
        # With a rate of 1 in 1000, two of 64 fields exceed it by chance in 1 of 500 draws.
        assert (found[signal] > limit).sum() <= 1, (signal, limit)


def beyond(name: str, fields: torch.Tensor) -> list[bool]:
    """For each of the fields [n, *grid], whether its distance is above the threshold of the zoo model's grid."""
    config = read_config(TRAINED / name / "config.json")
    assert config.statistics is not None
    assert config.statistics.thresholds is not None
    limit = config.statistics.thresholds.on(tuple(fields.shape[1:]))["input_distance"]
    return (Signals(config).of_inputs(fields.unsqueeze(1))["input_distance"] > limit).tolist()


@pytest.mark.parametrize("change", ["rows", "others"])
def test_points_that_a_coarser_grid_leaves_out_count_on_darcy(change: str) -> None:
    fine = problem_named("darcy").sample(range(4), seed=HELD_OUT_SEED, n=421)
    for fields in (fine[:, ::3, ::3], fine[:, ::2, ::5], fine):
        assert not any(beyond("darcy-2d", fields))
        changed = fields.clone()
        if change == "rows":
            changed[:, 1::2] *= 100
        else:
            changed = torch.full_like(fields, 7.5)
            changed[:, ::2, ::2] = fields[:, ::2, ::2]
        assert all(beyond("darcy-2d", changed))


@pytest.mark.parametrize("n", [31, 41, 61])
def test_points_that_a_coarser_grid_leaves_out_count_on_nagumo(n: int) -> None:
    fields = problem_named("nagumo").sample(range(4), seed=HELD_OUT_SEED, n=n)
    changed = 0.5 * fields
    changed[:, ::2, ::2, ::2] = fields[:, ::2, ::2, ::2]
    assert beyond("nagumo-3d", torch.cat([fields, changed])) == [False] * 4 + [True] * 4


@pytest.mark.parametrize(("n", "wave"), [(64, 32), (128, 40), (128, 64), (256, 100)])
def test_waves_that_the_training_grid_does_not_resolve_count_on_flows(n: int, wave: int) -> None:
    start = navier_stokes.sample_inputs(range(3), seed=HELD_OUT_SEED, n=64)
    flows = navier_stokes.solve(start, times=[2.0]).float()
    fields = torch.from_numpy(at_points(flows.numpy(), (n, n), "periodic"))[:, 0]
    rough = fields + 0.1 * torch.cos(2 * math.pi * wave * torch.arange(n) / n)
    assert beyond("navier-stokes-2d", torch.cat([fields, rough])) == [False] * 3 + [True] * 3


def test_the_residual_is_calibrated_on_frames_from_which_the_model_is_evaluated() -> None:
    flows, first = problem_named("navier-stokes"), 10
    assert evaluated(flows, torch.arange(100), 2).tolist() == [
        *range(first, 50),
        *range(50 + first, 100),
    ]
    assert evaluated(problem_named("burgers"), torch.arange(3), 3).tolist() == [0, 1, 2]


def test_no_grid_has_a_threshold_below_that_of_the_training_grid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem, seen = problem_named("darcy"), []

    def found(_: object, __: object, points: int, samples: int) -> GridThresholds:
        seen.append((points, samples))
        distance, residual = float(len(seen)), 1 / len(seen)
        return GridThresholds(
            grid=(points,) * 2, n_fields=samples, input_distance=distance, residual=residual
        )

    monkeypatch.setattr(calibrate, "_thresholds_on", found)
    first, *others = calibrate.thresholds_of(Mock(), problem).grids
    many, few = calibrate.CALIBRATION_SAMPLES["darcy"]
    assert seen == [(problem.grid.training[0], many), *((n, few) for n in problem.other_grids)]
    assert (first.input_distance, first.residual) == (1.0, 1.0)
    assert [one.input_distance for one in others] == [*range(2, 2 + len(problem.other_grids))]
    assert {one.residual for one in others} == {1.0}
    without = first.model_copy(update={"residual": None})
    assert calibrate._at_least(without, others[0]).residual is None


def test_one_in_a_thousand_fields_is_above_its_threshold(monkeypatch: pytest.MonkeyPatch) -> None:
    values = torch.arange(1001.0)
    signals = {"input_distance": values, "residual": values / 1000}
    for left in (signals, {"input_distance": values}):
        monkeypatch.setattr(calibrate, "signals_of", lambda *_, found=left: dict(found))
        found = calibrate._thresholds_on(Mock(), problem_named("burgers"), 32, 1001)
        assert (found.grid, found.n_fields, found.input_distance) == ((32,), 1001, 999.0)
        assert found.residual == (0.999 if "residual" in left else None)
    flows = problem_named("navier-stokes")
    values = torch.full((20, 50), 7.0)
    values[:, : flows.first_frame] = 1e9
    signals = {"input_distance": values.flatten(), "residual": values.flatten()}
    monkeypatch.setattr(calibrate, "signals_of", lambda *_: signals)
    found = calibrate._thresholds_on(Mock(), flows, 64, 20)
    assert (found.n_fields, found.input_distance, found.residual) == (1000, 1e9, 7.0)


def test_flows_with_errors_far_above_the_cards_are_above_the_threshold_of_the_residual() -> None:
    model = load_model(TRAINED / "navier-stokes-2d")
    assert model.config.statistics is not None
    assert model.config.statistics.thresholds is not None
    limit = model.config.statistics.thresholds.on((64, 64))["residual"]
    young = navier_stokes.sample_inputs(range(3), seed=HELD_OUT_SEED, n=64).float()
    flows = navier_stokes.solve(young, times=[10.0])[:, 0]
    turned = flows.flip(1, 2)
    for fields, bad in ((flows, False), (young, True), (turned, True)):
        found = signals_of(model, iter([fields.unsqueeze(1)]))
        assert (found["residual"] > limit).tolist() == [bad] * 3


@pytest.mark.parametrize("waves", [2, 3])
def test_a_sine_without_the_longest_wave_is_above_a_threshold(waves: int) -> None:
    model = load_model(TRAINED / "burgers-1d")
    assert model.config.statistics is not None
    assert model.config.statistics.thresholds is not None
    limits = model.config.statistics.thresholds.on((1024,))
    field = torch.sin(2 * math.pi * waves * torch.arange(1024) / 1024)
    found = signals_of(model, iter([field[None, None]]))
    assert found["residual"] > 1000 * limits["residual"]
    assert found["input_distance"] > limits["input_distance"]
