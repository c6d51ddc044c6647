"""One call and rollout on frames with known errors."""

from __future__ import annotations

import pytest
import torch

from turbofno.models.verify.tasks import outcome, tasks_of
from turbofno.models.zoo.problems import BURGERS, NAVIER_STOKES


def test_a_model_without_a_time_step_has_one_task() -> None:
    frames = torch.randn(4, 2, 1024)
    (task,) = tasks_of(BURGERS, frames, seed=5)
    assert (task.name, task.steps, task.began, task.times) == ("one call", 1, None, (1.0,))
    torch.testing.assert_close(task.inputs, frames[:, 0])
    result = outcome(task, lambda _: 1.1 * frames[:, 1:], at_once=4)
    torch.testing.assert_close(result.errors, torch.full((4,), 0.1))


def test_calls_of_a_rollout_model_start_at_spread_times() -> None:
    frames = torch.randn(4, 1, 64, 64).expand(-1, 51, -1, -1) + torch.arange(51.0)[:, None, None]
    one, rolled = tasks_of(NAVIER_STOKES, frames, seed=5)
    assert (one.name, rolled.name) == ("one call", "rollout from t = 10 to t = 50")
    assert one.began == (10.0, 20.0, 30.0, 40.0)
    for sample, start in enumerate((10, 20, 30, 40)):
        torch.testing.assert_close(one.inputs[sample], frames[sample, start])
        torch.testing.assert_close(one.truth[sample, 0], frames[sample, start + 1])
    assert rolled.began == (10.0,) * 4
    assert rolled.times[-1] == 40.0
    torch.testing.assert_close(rolled.inputs, frames[:, 10])
    torch.testing.assert_close(rolled.truth, frames[:, 11:])
    exact = outcome(rolled, lambda x: x + 1)
    assert exact.errors.max() < 1e-5
    example = exact.example(rolled, 3)
    assert example.times == (10.0, 50.0)


def test_the_error_of_a_rollout_grows_with_each_step() -> None:
    frames = torch.randn(3, 1, 64, 64).expand(-1, 51, -1, -1)
    rolled = tasks_of(NAVIER_STOKES, frames, seed=5)[1]
    result = outcome(rolled, lambda x: 1.01 * x)
    expected = torch.tensor([1.01**k - 1 for k in range(1, 41)])
    torch.testing.assert_close(result.by_step, expected.expand(3, 40), rtol=1e-3, atol=1e-5)
    total = expected.square().mean().sqrt()
    torch.testing.assert_close(result.errors, total.expand(3), rtol=1e-3, atol=0)


def test_examples_are_ranked_by_error() -> None:
    frames = torch.randn(3, 2, 1024)
    (task,) = tasks_of(BURGERS, frames, seed=5)
    factors = torch.tensor([1.3, 1.1, 1.2])[:, None, None]
    result = outcome(task, lambda _: factors * frames[:, 1:])
    for rank, sample in enumerate((1, 2, 0)):
        torch.testing.assert_close(result.example(task, rank).input, frames[sample, 0])


def test_another_grid_has_another_name_on_the_card() -> None:
    (task,) = tasks_of(BURGERS, torch.randn(3, 2, 256), seed=5)
    assert task.name == "one call, grid not trained on"


def test_batches_wrap_around() -> None:
    (task,) = tasks_of(BURGERS, torch.randn(3, 2, 1024), seed=5)
    torch.testing.assert_close(task.some(2, 5), task.inputs[[2, 0, 1]].unsqueeze(1))


@pytest.mark.parametrize("n", [100, 1000])
def test_a_grid_that_no_solver_grid_contains_is_refused(n: int) -> None:
    with pytest.raises(ValueError, match=f"cannot take {n} of 1024 points"):
        BURGERS.simulate(range(1), seed=3, n=n)
