"""The signals of a configuration by grid; all values are finite; the zoo's signals are calibrated."""

from __future__ import annotations

import pytest
import torch

from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.config import (
    PDE,
    BurgersResidual,
    Channel,
    DarcyResidual,
    ModelConfig,
    read_config,
)
from turbofno.models.core.statistics import FeatureStatistics, InputDistribution
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import BURGERS, HELD_OUT_SEED


def test_without_statistics_and_pde_there_are_no_signals() -> None:
    assert Signals(tiny_config())(torch.randn(2, 1, 16), torch.randn(2, 2, 16)) == {}


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("burgers-1d", {"input_distance", "residual"}),
        ("darcy-2d", {"input_distance", "residual"}),
        ("navier-stokes-2d", {"input_distance", "residual"}),
        ("nagumo-3d", {"input_distance"}),
    ],
)
def test_the_zoos_signals_are_finite_for_any_field(name: str, expected: set[str]) -> None:
    config = read_config(TRAINED / name / "config.json")
    signals, grid = Signals(config), config.grid.training
    shape = (1, 1, *grid)
    for inputs in (
        torch.zeros(shape),
        torch.ones(shape),
        torch.full(shape, 1e30),
        torch.randn(shape),
    ):
        for outputs in (torch.zeros(shape), torch.full(shape, 1e30), torch.full(shape, torch.nan)):
            found = signals(inputs, outputs)
            assert set(found) == expected
            for value in found.values():
                assert value.shape == (1,)
                assert value.dtype == torch.float32
                assert value.item() >= 0
                assert value.isfinite()


def test_on_unsupported_grids_only_the_residual_is_missing() -> None:
    flow = Signals(read_config(TRAINED / "navier-stokes-2d" / "config.json"))
    darcy = Signals(read_config(TRAINED / "darcy-2d" / "config.json"))
    burgers = Signals(read_config(TRAINED / "burgers-1d" / "config.json"))
    for signals, grid in ((flow, (20, 64)), (darcy, (2, 61)), (burgers, (2,)), (burgers, (1,))):
        x = torch.randn(2, 1, *grid)
        assert set(signals(x, x)) == {"input_distance"}
    # The network may answer on another grid.
    other = burgers(torch.randn(2, 1, 16), torch.randn(2, 1, 32))
    assert set(other) == {"input_distance"}
    assert set(burgers(torch.randn(2, 1, 3), torch.randn(2, 1, 3))) == {
        "input_distance",
        "residual",
    }
    rectangle = torch.rand(2, 1, 43, 61)
    assert set(darcy(rectangle, rectangle)) == {"input_distance", "residual"}


def test_burgers_signals_follow_distance_and_error() -> None:
    model = load_model(TRAINED / BURGERS.name)
    signals = Signals(model.config)
    frames = BURGERS.simulate(range(20), seed=HELD_OUT_SEED)
    inputs, truth = frames[:, :1], frames[:, 1:]
    with torch.inference_mode():
        outputs = model.module(inputs)
        far = signals(8 * inputs, model.module(8 * inputs))
    own = signals(inputs, outputs)
    assert own["input_distance"].median() < 1
    error = (outputs - truth).norm(dim=2)[:, 0] / truth.norm(dim=2)[:, 0]
    torch.testing.assert_close(own["residual"], error, rtol=0.05, atol=2e-5)
    assert far["input_distance"].min() > 2
    assert far["residual"].min() > 0.02


def changed(**update: object) -> ModelConfig:
    config = tiny_config()
    return ModelConfig.model_validate(config.model_dump() | update)


def test_inconsistent_statistics_are_refused_by_name() -> None:
    pde = PDE(
        name="burgers", equation="", domain="", input_distribution="",
        residual=BurgersResidual(nu=0.1, time=1.0),
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"pde.residual 'burgers' needs one input channel"):
        changed(pde=pde.model_dump())
    single = {
        "architecture": tiny_config().architecture.model_copy(update={"out_channels": 1}),
        "outputs": tiny_config().outputs[:1],
        "pde": pde,
    }
    assert changed(**single).pde == pde
    grid = tiny_config().grid
    for update in ({"extent": (2.0,)}, {"boundary": "nodes"}):
        with pytest.raises(ValueError, match="needs extents of 1 and boundary='periodic'"):
            changed(**single, grid=grid.model_copy(update=update))
    darcy = pde.model_copy(update={"residual": DarcyResidual(source=1.0)})
    with pytest.raises(ValueError, match="one input channel, one output channel and 2 axes"):
        changed(**single | {"pde": darcy})
    with pytest.raises(ValueError, match="mean has 2 entries, but std has 1"):
        FeatureStatistics(mean=(0.0, 1.0), std=(1.0,))
    one = FeatureStatistics(mean=(0.0, 1.0), std=(1.0, 1.0))
    moments = {"mean": 0.0, "std": 1.0, "minimum": 0.0, "maximum": 1.0}
    statistics = {
        "n_samples": 1, "inputs": [moments], "outputs": [moments, moments],
        "distribution": InputDistribution(n_fields=1, edge=1.0, inputs=(one, one)).model_dump(),
    }  # fmt: skip
    with pytest.raises(ValueError, match=r"distribution.inputs has 2 entries, expected 1"):
        changed(statistics=statistics)
    longer = FeatureStatistics(mean=(0.0, 1.0, 2.0), std=(1.0, 1.0, 1.0))
    uneven = InputDistribution(n_fields=1, edge=1.0, inputs=(one, longer))
    with pytest.raises(ValueError, match="differ in their number of features"):
        changed(
            architecture=tiny_config().architecture.model_copy(update={"in_channels": 2}),
            inputs=(Channel(name="a"), Channel(name="b")),
            statistics=statistics | {"inputs": [moments] * 2, "distribution": uneven},
        )
    assert changed(statistics=statistics | {"distribution": None}).statistics
    for side, entries in (("inputs", [moments] * 3), ("outputs", [moments])):
        few = statistics | {"distribution": None, side: entries}
        with pytest.raises(ValueError, match=rf"statistics.{side} has {len(entries)} entries"):
            changed(statistics=few)
    assert tiny_config().states == 1
    with pytest.raises(ValueError, match="past_steps is for autoregressive models"):
        changed(past_steps=2)
    with pytest.raises(ValueError, match=r"past_steps=2 states of 2 channels are not .* 1 input"):
        changed(past_steps=2, time_step=1.0)
