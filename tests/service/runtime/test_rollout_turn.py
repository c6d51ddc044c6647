"""Turns of rollouts against a plain loop over the module, and detection of blow-ups."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.service.tiny import rollable_config
from turbofno.models.core.fno import FNO
from turbofno.models.core.statistics import ChannelStatistics, Statistics
from turbofno.service.engine.runnable import Turn
from turbofno.service.runtime.judgement import Judged, unjudged
from turbofno.service.runtime.rollout_turn import Excess, run_turn

CPU = torch.device("cpu")

if TYPE_CHECKING:
    from turbofno.service.engine.runnable import State


def module() -> FNO:
    return FNO(rollable_config().architecture).eval()


def loop(model: FNO, fields: np.ndarray[Any, Any], steps: int) -> list[np.ndarray[Any, Any]]:
    x = torch.from_numpy(fields)
    frames = []
    with torch.no_grad():
        for _ in range(steps):
            x = model(x)
            frames.append(x.numpy())
    return frames


def turn(forward: Any, states: list[State], wanted: list[list[int]], **options: Any) -> Turn:
    options = {"excess": Excess(None, CPU), "device": CPU} | options
    with torch.inference_mode():
        return run_turn(forward, states, wanted, **options)


def test_a_turn_of_several_rollouts_equals_a_loop_for_each() -> None:
    model = module()
    fields = [torch.randn(n, 1, 17).numpy() for n in (1, 3, 2)]
    before = [one.copy() for one in fields]
    result = turn(model, fields, [[1, 2, 3, 4], [], [3]], steps=4)
    for given, kept, state in zip(fields, before, result.states, strict=True):
        np.testing.assert_allclose(state.numpy(), loop(model, given, 4)[-1], rtol=1e-4, atol=1e-6)
        np.testing.assert_array_equal(given, kept)
    assert [sorted(one) for one in result.frames] == [[1, 2, 3, 4], [], [3]]
    for step, frame in result.frames[0].items():
        np.testing.assert_allclose(frame, loop(model, fields[0], step)[-1], rtol=1e-4, atol=1e-6)
    third = loop(model, fields[2], 3)[-1]
    np.testing.assert_allclose(result.frames[2][3], third, rtol=1e-4, atol=1e-6)
    assert [one.shape for one in result.excess] == [(4, 1), (4, 3), (4, 2)]


def test_two_turns_equal_one_with_as_many_steps() -> None:
    model, fields = module(), torch.randn(2, 1, 16).numpy()
    whole = turn(model, [fields], [[]], steps=5).states
    first = turn(model, [fields], [[]], steps=2).states
    np.testing.assert_array_equal(turn(model, first, [[]], steps=3).states[0], whole[0])


def test_the_oldest_past_state_makes_room_for_the_output() -> None:
    """Three past states of two channels, oldest first, as the original scripts and PDEBench concatenate them."""
    weights = torch.randn(2, 6)

    def forward(x: torch.Tensor) -> torch.Tensor:
        return torch.einsum("oi,nip->nop", weights, x)

    fields = [torch.randn(n, 6, 9).numpy() for n in (1, 2)]
    seen: list[torch.Tensor] = []
    result = turn(
        forward, fields, [[1, 3, 4], [4]], steps=4, excess=lambda y: seen.append(y) or y.sum((1, 2))
    )
    for index, given in enumerate(fields):
        states = list(torch.from_numpy(given).split(2, dim=1))
        for _ in range(4):
            states.append(forward(torch.cat(states[-3:], dim=1)))
        for step, frame in result.frames[index].items():
            np.testing.assert_allclose(frame, states[2 + step].numpy(), rtol=1e-4, atol=1e-5)
        state = result.states[index].numpy()
        np.testing.assert_allclose(state, torch.cat(states[-3:], 1).numpy(), rtol=1e-4, atol=1e-5)
    assert [y.shape for y in seen] == [(3, 2, 9)] * 4
    first = turn(forward, fields[:1], [[]], steps=1).states
    again = turn(forward, first, [[3]], steps=3)
    np.testing.assert_allclose(again.frames[0][3], result.frames[0][4], rtol=1e-4, atol=1e-5)


def test_frames_and_states_keep_no_other_memory() -> None:
    result = turn(lambda x: x + 1, [np.zeros((1, 1, 8), "f4")] * 2, [[1], [1]], steps=1)
    memory = [one.untyped_storage().data_ptr() for one in result.states]
    assert memory[0] != memory[1]
    assert result.frames[0][1].ctypes.data not in memory
    assert all(one[1].flags.owndata for one in result.frames)


def statistics(*ranges: tuple[float, float, float]) -> Statistics:
    channels = tuple(ChannelStatistics(mean=m, std=1, minimum=a, maximum=b) for a, m, b in ranges)
    return Statistics(n_samples=1, inputs=channels, outputs=channels)


def test_excess_is_the_largest_relative_energy_of_the_channels() -> None:
    stated = statistics((-1.0, 0.5, 4.0), (10.0, 11.0, 12.0))
    fields = torch.randn(5, 2, 6, 7) + torch.tensor([0.5, 11.0])[:, None, None]
    away = fields.double() - torch.tensor([0.5, 11.0])[:, None, None]
    energy = away.square().mean((2, 3)) / torch.tensor([3.5**2, 1.0])
    expected = energy.max(dim=1).values
    torch.testing.assert_close(Excess(stated, CPU)(fields).double(), expected, rtol=1e-4, atol=1e-6)


def test_of_past_states_the_last_one_s_range_counts() -> None:
    past = statistics((0.0, 0.0, 1.0), (0.0, 0.0, 4.0))
    stated = past.model_copy(update={"outputs": past.outputs[:1]})
    assert Excess(stated, CPU)(torch.full((1, 1, 8), 4.0)).tolist() == [1.0]


def test_no_field_within_the_range_exceeds_it() -> None:
    stated = statistics((-1.0, 0.5, 4.0))
    fields = torch.rand(50, 1, 9) * 5 - 1
    fields[0], fields[1] = 4.0, -1.0
    assert (Excess(stated, CPU)(fields) <= 1).all()


@pytest.mark.parametrize("stated", [None, statistics((-1, 0, 1)), statistics((2, 2, 2))])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_fields_that_are_not_finite_exceed_the_range_and_others_do_not(
    stated: Statistics | None, value: float
) -> None:
    fields = torch.full((3, 1, 8), 2.0 if stated and stated.inputs[0].mean else 0.5)
    fields[1, 0, 3] = value
    assert (Excess(stated, CPU)(fields) <= 1).tolist() == [True, False, True]


def test_signals_of_each_step_are_dropped_if_one_step_failed() -> None:
    held = torch.zeros(2, 4)
    calls: list[int] = []

    def judge(x: torch.Tensor, y: torch.Tensor) -> Judged:
        # The same memory in every call, like a captured graph.
        held[1, :3] = (y - x).amax((1, 2)) * y.amax((1, 2))
        calls.append(len(x))
        return Judged(("residual",), held) if len(calls) != 5 else unjudged(x, y)

    fields = [np.zeros((n, 1, 8), "f4") for n in (1, 2)]
    result = turn(lambda x: x + 1, fields, [[], []], steps=3, judge=judge)
    np.testing.assert_array_equal(result.trust[0]["residual"], [[1], [2], [3]])
    np.testing.assert_array_equal(result.trust[1]["residual"], [[1, 1], [2, 2], [3, 3]])
    assert turn(lambda x: x + 1, fields, [[], []], steps=3, judge=judge).trust == [{}, {}]
