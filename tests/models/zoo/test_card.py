"""The card has the measured errors, and its picture the named fields."""

from __future__ import annotations

from pathlib import Path

import matplotlib.figure
import numpy as np
import pytest
import torch

from turbofno.models.core.config import Metric, ModelConfig, Parameter, Training
from turbofno.models.core.statistics import (
    ChannelStatistics,
    FeatureStatistics,
    InputDistribution,
    Statistics,
)
from turbofno.models.zoo.card import write_card
from turbofno.models.zoo.evaluate import Example
from turbofno.models.zoo.problems import BURGERS, DARCY, NAGUMO, NAVIER_STOKES, Problem

MOMENTS = ChannelStatistics(mean=0.25, std=1.5, minimum=-3.0, maximum=4.0)


def config_of(problem: Problem) -> ModelConfig:
    return ModelConfig(
        name=problem.name,
        description=problem.description,
        architecture=problem.architecture,
        inputs=problem.inputs,
        outputs=problem.outputs,
        grid=problem.grid,
        time_step=problem.time_step,
        pde=problem.pde,
        statistics=Statistics(n_samples=7, inputs=(MOMENTS,), outputs=(MOMENTS,)),
        training=Training(
            recipe="python -m turbofno.models.zoo.train it",
            seed=3,
            n_samples=7,
            epochs=5,
            device="a device",
            torch="2.0",
            seconds=12.3,
        ),
        evaluation=(Metric(name="one call", value=0.01234, n_samples=9, grid=(10, 20)),),
        sha256="0" * 64,
    )


def example(*size: int, times: tuple[float, float] | None = None) -> Example:
    field = torch.arange(float(np.prod(size))).view(size)
    return Example(field, field + 1, field + 3, times)


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[matplotlib.figure.Figure]:
    """The saved figures."""
    figures: list[matplotlib.figure.Figure] = []
    save = matplotlib.figure.Figure.savefig

    def keep(figure: matplotlib.figure.Figure, file: Path, *, dpi: float) -> None:
        figures.append(figure)
        save(figure, file, dpi=dpi)

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", keep)
    return figures


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture is drawn, which takes most of the time of a card."""
    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", lambda *_, **__: None)


@pytest.mark.usefixtures("undrawn")
def test_the_text_has_every_value(tmp_path: Path) -> None:
    write_card(tmp_path, config_of(NAVIER_STOKES), "A title", example(8, 8), device="a GPU")
    text = (tmp_path / "card.md").read_text()
    for expected in (
        "# navier-stokes-2d: A title",
        "| one call | 10 x 20 | 9 | 1.234% |",
        "Measured on a GPU by `python -m turbofno.models.zoo.evaluate navier-stokes-2d --write`",
        "`python -m turbofno.models.zoo.train it`: 7 samples of our solver, 5 epochs, seed 3",
        "12 s on a device, torch 2.0",
        "one call advances the time by 1",
        "Parameter nu: 0.001 (viscosity)",
        "| input vorticity | 0.25 | 1.5 | -3 | 4 |",
        "| output vorticity | 0.25 | 1.5 | -3 | 4 |",
        "(card.png)",
    ):
        assert expected in text


@pytest.mark.usefixtures("undrawn")
def test_the_card_of_a_rollout_says_where_its_calls_start(tmp_path: Path) -> None:
    config = config_of(NAVIER_STOKES)
    said = "One call: from the solver's states that the rollout passes, not from earlier ones."
    write_card(tmp_path, config, "", example(8, 8), device="cpu")
    assert said not in (tmp_path / "card.md").read_text()
    rolled = Metric(name="rollout", value=0.1, n_samples=9, grid=(10, 20), steps=3)
    config = config.model_copy(update={"evaluation": (*config.evaluation, rolled)})
    write_card(tmp_path, config, "", example(8, 8), device="cpu")
    assert said in (tmp_path / "card.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_a_parameter_with_a_range_is_given_as_one(tmp_path: Path) -> None:
    config = config_of(BURGERS)
    assert config.pde is not None
    wide = Parameter(name="nu", minimum=0.1, maximum=0.5, description="viscosity")
    pde = config.pde.model_copy(update={"parameters": (wide,)})
    write_card(tmp_path, config.model_copy(update={"pde": pde}), "", example(8), device="cpu")
    assert "Parameter nu: 0.1 to 0.5 (viscosity)" in (tmp_path / "card.md").read_text()


@pytest.mark.usefixtures("undrawn")
def test_parts_missing_from_the_config_are_missing_from_the_card(tmp_path: Path) -> None:
    bare = {"pde": None, "training": None, "statistics": None, "evaluation": ()}
    config = config_of(BURGERS).model_copy(update=bare)
    write_card(tmp_path, config, "", example(8), device="cpu")
    text = (tmp_path / "card.md").read_text()
    assert "None" not in text
    assert "## Training" not in text


def test_a_one_dimensional_picture(tmp_path: Path, drawn: list[matplotlib.figure.Figure]) -> None:
    write_card(tmp_path, config_of(BURGERS), "", example(8), device="cpu")
    before, after, difference = drawn[0].axes
    assert [axis.get_title() for axis in drawn[0].axes] == [
        "input u0",
        "truth and prediction",
        "prediction - truth",
    ]
    periodic = np.arange(8) / 8
    assert np.array_equal(np.asarray(before.lines[0].get_xdata()), periodic)
    np.testing.assert_array_equal(after.lines[1].get_ydata(), np.arange(8) + 3)
    np.testing.assert_array_equal(difference.lines[0].get_ydata(), np.full(8, 2))
    assert (tmp_path / "card.png").read_bytes().startswith(b"\x89PNG")


def test_a_two_dimensional_picture(tmp_path: Path, drawn: list[matplotlib.figure.Figure]) -> None:
    write_card(tmp_path, config_of(DARCY), "", example(6, 9), device="cpu")
    panels = [axis for axis in drawn[0].axes if axis.images]
    assert [axis.get_title() for axis in panels] == [
        "input a",
        "truth u",
        "prediction",
        "prediction - truth",
    ]
    image, truth, prediction, error = (axis.images[0] for axis in panels)
    shown = np.asarray(image.get_array())
    assert shown[2, 5] == 5 * 9 + 2, "x goes to the right, y up"
    assert prediction.get_clim() == truth.get_clim()
    assert error.get_clim() == (-2.0, 2.0)


def test_a_picture_of_two_planes_in_three_dimensions(
    tmp_path: Path, drawn: list[matplotlib.figure.Figure]
) -> None:
    write_card(tmp_path, config_of(NAGUMO), "", example(5, 6, 9), device="cpu")
    panels = [axis for axis in drawn[0].axes if axis.images]
    titles = ["input k", "truth T", "prediction", "prediction - truth"]
    assert [axis.get_title() for axis in panels] == [
        f"{title}, {plane}" for plane in ("z = 10 mm", "y = 12 mm") for title in titles
    ]
    horizontal, vertical = (np.asarray(panels[i].images[0].get_array()) for i in (0, 4))
    assert horizontal[1, 2] == (2 * 6 + 1) * 9 + 4, "x goes to the right, y up"
    assert vertical[1, 2] == (2 * 6 + 3) * 9 + 1, "x goes to the right, z up"
    # the range of the whole truth, 1 to 270
    limits = {axis.images[0].get_clim() for axis in (*panels[1:3], *panels[5:7])}
    assert limits == {(1.0, 270.0)}
    assert panels[7].images[0].get_clim() == (-2.0, 2.0)


@pytest.mark.usefixtures("undrawn")
def test_a_card_without_a_residual_says_so(tmp_path: Path) -> None:
    config = config_of(NAGUMO)
    assert config.statistics is not None
    features = FeatureStatistics(mean=(0.0, 1.0), std=(1.0, 1.0))
    distribution = InputDistribution(n_fields=3, edge=1.0, inputs=(features,))
    statistics = config.statistics.model_copy(update={"distribution": distribution})
    config = config.model_copy(update={"statistics": statistics})
    write_card(tmp_path, config, "", example(4, 4, 4), device="cpu")
    assert "its PDE has no residual here" in (tmp_path / "card.md").read_text()


def test_a_rollout_picture_names_its_times(
    tmp_path: Path, drawn: list[matplotlib.figure.Figure]
) -> None:
    rolled = example(8, 8, times=(10.0, 50.0))
    write_card(tmp_path, config_of(NAVIER_STOKES), "", rolled, device="cpu")
    titles = [axis.get_title() for axis in drawn[0].axes if axis.images]
    assert titles == [
        "input vorticity, t = 10",
        "truth vorticity, t = 50",
        "prediction, t = 50",
        "prediction - truth, t = 50",
    ]
