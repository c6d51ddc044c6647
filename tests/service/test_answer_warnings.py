"""Texts of warnings: one for each reason, without semicolons, with the field and the number of fields."""

from __future__ import annotations

import math

import numpy as np
import pytest

from tests.draws import generator
from tests.service.tiny import tiny_config
from turbofno.models.core.config import Channel, ModelConfig, read_config
from turbofno.models.core.statistics import LARGEST
from turbofno.models.zoo import TRAINED
from turbofno.service.answer_warnings import (
    BOUNDS,
    HORIZON,
    REASONS,
    AnswerWarnings,
    FrameWarnings,
    of_horizon,
)
from turbofno.service.engine.interface import Frame

FLOWS = np.zeros((2, 1, 64, 64), np.float32)


@pytest.fixture(scope="module")
def flow() -> ModelConfig:
    return read_config(TRAINED / "navier-stokes-2d" / "config.json")


def test_every_reason_of_a_prediction_has_its_text(flow: ModelConfig) -> None:
    trust = {"input_distance": (0.5, 9.0), "residual": (0.5, 0.6)}
    found = AnswerWarnings(flow, (32, 32)).of_prediction(trust, FLOWS)
    assert [one.reason for one in found] == ["grid", "input_distance", "residual"]
    assert set(REASONS) == {*(one.reason for one in found), HORIZON, BOUNDS}
    _, distance, residual = (one.text for one in found)
    assert distance.startswith(
        "input_distance 9 of field 1 is above 1.06, which only 1 in 1000 fields"
    )
    assert residual.startswith(
        "residual 0.6 of field 1 is above 0.00508 (2 of 2 fields are above the limit), which only 1 in 1000 fields like "
        "those of the model's evaluation exceeds: "
    )
    assert not [one for one in found if ";" in one.text or not one.text.isascii()]


def test_one_field_is_not_numbered_and_a_value_at_the_threshold_does_not_warn(
    flow: ModelConfig,
) -> None:
    assert flow.statistics is not None
    assert flow.statistics.thresholds is not None
    limit = flow.statistics.thresholds.on((64, 64))["residual"]
    assert AnswerWarnings(flow, (64, 64)).of_trust({"residual": (limit,)}) == []
    (one,) = AnswerWarnings(flow, (64, 64)).of_trust({"residual": (2 * limit,)})
    assert " of field" not in one.text


def test_a_signal_that_is_no_number_warns(flow: ModelConfig) -> None:
    (one,) = AnswerWarnings(flow, (64, 64)).of_trust({"residual": (0.0, math.nan, 0.01)})
    assert one.text.startswith("residual nan of field 1 is above")


@pytest.mark.parametrize(("others", "place"), [((), ""), ((0.0,), " of field 0")])
def test_the_largest_value_stands_for_larger_and_unknown_ones(
    others: tuple[float, ...], place: str, flow: ModelConfig
) -> None:
    (one,) = AnswerWarnings(flow, (64, 64)).of_trust({"residual": (LARGEST, *others)})
    assert one.text.startswith(f"residual 1e+06 (or more, or unknown){place} is above")


def test_a_residual_that_is_absent_beside_the_distance_warns(flow: ModelConfig) -> None:
    (one,) = AnswerWarnings(flow, (64, 64)).of_prediction({"input_distance": (0.5, 0.6)}, FLOWS)
    assert one.reason == "residual"
    assert one.text.startswith("no residual on this grid: ")
    nagumo = read_config(TRAINED / "nagumo-3d" / "config.json")
    assert AnswerWarnings(nagumo, (21, 21, 21)).of_trust({"input_distance": (0.5,)}) == []


def test_without_thresholds_or_signals_there_are_no_warnings(flow: ModelConfig) -> None:
    assert AnswerWarnings(flow, (64, 64)).of_prediction({}, FLOWS) == ()
    assert flow.statistics is not None
    older = flow.statistics.model_copy(update={"thresholds": None})
    for config in (tiny_config(n_dim=2), flow.model_copy(update={"statistics": older})):
        assert AnswerWarnings(config, (64, 64)).of_trust({"residual": (1e6,)}) == []


@pytest.mark.parametrize(
    ("closed", "told"),
    [((False, False), ""), ((True, False), "0"), ((False, True), "1"), ((True, True), "0 and 1")],
)
def test_the_repeated_end_of_an_axis_warns(
    flow: ModelConfig, closed: tuple[bool, bool], told: str
) -> None:
    x, y = (np.linspace(0, 1, 64 + end, endpoint=end) for end in closed)
    waves = np.sin(2 * np.pi * x)[:, None] * np.cos(4 * np.pi * y) + np.cos(2 * np.pi * y)
    fields = waves[None, None].astype(np.float32)
    found = AnswerWarnings(flow, fields.shape[2:]).of_input(fields)
    start = [f"the last points on grid axis {told} repeat the first: "] if told else []
    assert [one.text[: len(text)] for one, text in zip(found, start, strict=True)] == start
    assert {one.reason for one in found} <= {"grid"}


def test_ends_that_are_alike_for_other_reasons_do_not_warn(flow: ModelConfig) -> None:
    drawn = generator().standard_normal((1, 1, 64, 64)).astype(np.float32)
    corner, inside = drawn.copy(), np.zeros_like(drawn)
    corner[..., -1, 0] = corner[..., 0, -1] = corner[..., 0, 0]
    inside[..., 1:-1, 1:-1] = drawn[..., 1:-1, 1:-1]
    for fields in (drawn, corner, inside, np.zeros_like(drawn), np.ones_like(drawn)):
        assert AnswerWarnings(flow, (64, 64)).of_input(fields) == ()
    closed = np.pad(drawn, ((0, 0), (0, 0), (0, 1), (0, 1)), mode="wrap")
    assert AnswerWarnings(flow, (65, 65)).of_input(closed)
    assert AnswerWarnings(flow, (1, 65)).of_input(closed[..., :1, :]) == ()
    (three,) = AnswerWarnings(flow, (3, 65)).of_input(closed[..., [0, 1, 0], :])
    assert "grid axis 0 and 1 repeat" in three.text
    # their differences overflow float32
    huge = np.sign(closed) * np.finfo(np.float32).max
    assert AnswerWarnings(flow, (65, 65)).of_input(huge)
    # The first is of nodes, where it is usual, the other was not evaluated: only the import says that its grid is periodic.
    for config in (read_config(TRAINED / "darcy-2d" / "config.json"), tiny_config(n_dim=2)):
        assert AnswerWarnings(config, (65, 65)).of_input(closed) == ()


def test_neighbours_that_are_alike_anywhere_leave_the_end_unjudged(flow: ModelConfig) -> None:
    x = (np.arange(64) + 0.5) / 64
    shear = np.broadcast_to(np.sin(2 * np.pi * x), (64, 64))
    even = np.cos(2 * np.pi * x)[:, None] * np.cos(4 * np.pi * x)
    patch = np.ones((64, 64))
    patch[1:9, 20:30] = patch[[0, -1], 25] = -1
    for field in (shear, shear.T, even, patch):
        fields = field[None, None].astype(np.float32)
        assert AnswerWarnings(flow, (64, 64)).of_input(fields) == ()


@pytest.mark.parametrize(("last", "warned"), [(1, False), (40, False), (41, True)])
def test_a_rollout_warns_beyond_the_steps_of_its_evaluation(
    flow: ModelConfig, last: int, warned: bool
) -> None:
    assert bool(of_horizon(flow, last)) == warned
    assert of_horizon(tiny_config(), last) == ()


def test_a_reason_is_reported_with_its_first_frame(flow: ModelConfig) -> None:
    some = FrameWarnings(flow, (64, 64))
    assert some.of(Frame(1, None, {"residual": (0.001,)})) == ()
    (first,) = some.of(Frame(2, None, {"residual": (0.5,)}))
    assert first.text.startswith("step 2: residual 0.5 is above")
    (second,) = some.of(Frame(3, None, {"residual": (0.6,), "input_distance": (3.0,)}))
    assert second.reason == "input_distance"
    assert some.of(Frame(4)) == ()


def test_an_answer_beyond_the_bounds_of_its_channel_warns() -> None:
    """A network is not bound by them: a concentration that should stay above 0 may come out below."""
    u, v = tiny_config().outputs
    bounded = v.model_copy(update={"minimum": 0.0, "exclusive_maximum": 1.0})
    config = tiny_config().model_copy(update={"outputs": (u, bounded)})
    known = AnswerWarnings(config, (16,))
    fields = np.zeros((3, 2, 16), np.float32)
    fields[:, 0] = -5.0
    assert known.reads_fields
    assert known.of_prediction({}, fields) == ()
    for value, words in ((-0.25, "at least 0"), (1.0, "below 1")):
        fields[2, 1, 7] = value
        (one,) = known.of_prediction({}, fields)
        assert one.reason == BOUNDS
        place = f"field 2, channel 'v', grid point [7] is {value:g}"
        assert one.text == f"{place}, expected {words}, the physical bound"
    assert not AnswerWarnings(tiny_config(), (16,)).reads_fields


def test_a_state_beyond_the_bounds_of_the_input_warns_with_its_first_frame() -> None:
    """:predict refuses such an input; in a rollout the network is given it at the next step."""
    config = tiny_config()
    density = Channel(name="rho", units="kg/m\u00b3", exclusive_minimum=0.0)
    some = FrameWarnings(config.model_copy(update={"inputs": (density,)}), (16,))
    state = np.ones((2, 1, 16), np.float32)
    assert some.of(Frame(1, state)) == ()
    state[1, 0, 3] = -2.0
    assert some.of(Frame(2)) == ()
    (one,) = some.of(Frame(3, state))
    assert one.reason == BOUNDS
    assert one.text == (
        "step 3: field 1, channel 'rho', grid point [3] is -2, expected above 0, the physical bound"
    )
    assert some.of(Frame(4, state)) == ()


def test_a_state_has_the_bounds_of_the_last_past_state() -> None:
    free, bounded = (Channel(name=name, maximum=most) for name, most in (("u0", None), ("u1", 1.5)))
    config = tiny_config().model_copy(
        update={"inputs": (free, bounded), "outputs": (Channel(name="u"),), "past_steps": 2}
    )
    some = FrameWarnings(config, (16,))
    state = np.ones((1, 1, 16), np.float32)
    assert some.of(Frame(1, state)) == ()
    (one,) = some.of(Frame(2, 2 * state))
    assert one.text.startswith(
        "step 2: field 0, channel 'u1', grid point [0] is 2, expected at most"
    )


def test_a_state_beyond_the_bounds_of_the_output_alone_warns_too() -> None:
    """:predict warns of it; the input may have no bounds, or wider ones."""
    free = Channel(name="rho")
    bounded = free.model_copy(update={"maximum": 1.5})
    config = tiny_config().model_copy(update={"inputs": (free,), "outputs": (bounded,)})
    some = FrameWarnings(config, (16,))
    state = np.ones((1, 1, 16), np.float32)
    assert some.of(Frame(1, state)) == ()
    (one,) = some.of(Frame(2, 2 * state))
    assert one.reason == BOUNDS
    assert one.text.startswith(
        "step 2: field 0, channel 'rho', grid point [0] is 2, expected at most 1.5"
    )
