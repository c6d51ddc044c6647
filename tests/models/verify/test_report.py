"""The verdict on a model's error, with and without an error on its card."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import ttest_1samp

from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.config import Metric
from turbofno.models.verify.report import chance, judge
from turbofno.models.verify.tasks import Task, tasks_of
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import BURGERS, PROBLEMS

CARD = 0.01


def task_on(n: int = 1024) -> Task:
    return tasks_of(BURGERS, torch.randn(3, 2, n), seed=5)[0]


def verdict_of(errors: list[float], *, at_most: float | None = None, n: int = 1024) -> bool:
    metric = Metric(name="one call", value=CARD, n_samples=200, grid=(1024,))
    config = load_model(TRAINED / BURGERS.name).config.model_copy(update={"evaluation": (metric,)})
    return judge(task_on(n), torch.tensor(errors), config, at_most).kept


@pytest.mark.parametrize(
    ("errors", "kept"),
    [
        ([0.009, 0.010, 0.011], True),
        ([0.013, 0.014, 0.015], True),  # worse, but not clearly
        ([0.019, 0.020, 0.021], True),  # three alike are not significant
        ([0.0195, 0.020, 0.0205], False),  # unless they are this much alike
        ([0.020, 0.020, 0.020], False),
        ([0.040], True),  # one sample shows no spread
        ([0.060], False),
        ([0.001, 0.002, 0.100], True),  # one outlier of three is not significant
        ([0.001, 0.002, 0.200], False),  # unless it is this large
        ([0.01] * 30 + [0.3, 0.2], True),
        ([0.02] * 31 + [0.03], False),
        ([0.01, float("nan"), 0.01], False),
        ([0.01, float("inf"), 0.01], False),
    ],
)
def test_a_model_fails_if_it_is_clearly_worse_than_its_card(
    errors: list[float], kept: bool
) -> None:
    assert verdict_of(errors) is kept


@pytest.mark.parametrize("freedom", [1, 2, 3, 8, 31, 63])
def test_the_chance_of_a_mean_is_student_s(freedom: int) -> None:
    errors = torch.linspace(1.0, 2.0, freedom + 1)
    for expected in (0.5, 1.0, 1.2, 1.5, 1.7):
        t, p = ttest_1samp(errors.double().numpy(), expected, alternative="greater")
        assert chance(errors, expected) == pytest.approx(p, rel=1e-4, abs=1e-12), t


def test_at_most_is_an_exact_bound() -> None:
    assert verdict_of([0.02, 0.02, 0.02], at_most=0.0201)
    assert not verdict_of([0.02, 0.02, 0.02], at_most=0.0199)
    assert not verdict_of([float("nan")] * 3, at_most=1.0)


def test_a_model_beyond_at_most_need_not_be_clearly_worse() -> None:
    config = load_model(TRAINED / BURGERS.name).config
    verdict = judge(task_on(), torch.tensor([0.02, 0.02, 0.02]), config, 0.0199)
    assert str(verdict) == "--at-most states 1.990%: FAILED, the model is worse"


def test_a_grid_without_a_bound_fails_only_if_not_finite() -> None:
    assert verdict_of([9.0, 9.0, 9.0], n=512)
    assert not verdict_of([9.0, float("nan"), 9.0], n=512)


@pytest.mark.parametrize("key", sorted(PROBLEMS))
def test_every_task_on_the_training_grid_is_on_the_card(key: str) -> None:
    problem = PROBLEMS[key]
    config = load_model(TRAINED / problem.name).config
    frames = torch.randn(3, 2 if problem.time_step is None else 51, *problem.grid.training)
    for task in tasks_of(problem, frames, seed=5):
        verdict = judge(task, torch.full((3,), 1e-9), config, None)
        assert verdict.stated is not None, task.name
