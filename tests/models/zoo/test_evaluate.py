"""Measured errors are right, and held-out data is not training data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from turbofno.models.core.checkpoint import WEIGHTS_FILE, LoadedModel, load_model, save_model
from turbofno.models.core.config import ModelConfig
from turbofno.models.core.fno import FNO
from turbofno.models.zoo import TRAINED, train
from turbofno.models.zoo.evaluate import evaluate, held_out_frames, main, one_step_errors, rollout
from turbofno.models.zoo.pde import burgers
from turbofno.models.zoo.problems import (
    BURGERS,
    HELD_OUT_SEED,
    NAVIER_STOKES,
    PROBLEMS,
    TRAINING_SEED,
    Problem,
    problem_named,
)


class Scale(torch.nn.Module):
    """Multiplies by a number."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.factor * x


class ScaledSolver(torch.nn.Module):
    """The reference solution of Burgers' equation, one per cent too large."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return 1.01 * burgers.solve(x[:, 0])[:, None]


def loaded(problem: Problem, module: torch.nn.Module) -> LoadedModel:
    return LoadedModel(config_of(problem), cast(FNO, module))


def config_of(problem: Problem) -> ModelConfig:
    return ModelConfig(
        name=problem.name,
        description=problem.description,
        architecture=problem.architecture,
        inputs=problem.inputs,
        outputs=problem.outputs,
        grid=problem.grid,
        time_step=problem.time_step,
        sha256="0" * 64,
    )


def test_one_call_error_of_a_scaled_solver() -> None:
    problem = replace(BURGERS, other_grids=(256,))
    result = evaluate(loaded(problem, ScaledSolver()), problem, samples=3, device="cpu")
    assert [(m.name, m.grid, m.n_samples) for m in result.metrics] == [
        ("one call", (1024,), 3),
        ("one call, grid not trained on", (256,), 3),
    ]
    for metric in result.metrics:
        assert metric.value == pytest.approx(0.01, rel=1e-2)
    assert result.example.times is None
    torch.testing.assert_close(
        result.example.prediction, 1.01 * result.example.truth, rtol=1e-3, atol=1e-6
    )


def still(indices: Sequence[int], *, seed: int, n: int, device: str) -> torch.Tensor:
    """Trajectories of six equal frames."""
    generator = torch.Generator().manual_seed(seed)
    start = torch.randn(len(indices), 1, n, n, generator=generator)
    return start.expand(-1, 6, -1, -1).to(device)


def test_rollout_error_of_a_model_that_grows_by_one_per_cent_per_step() -> None:
    problem = replace(NAVIER_STOKES, simulate=still, other_grids=(), first_frame=2, time_step=0.5)
    result = evaluate(loaded(problem, Scale(1.01)), problem, samples=4, device="cpu")
    one_call, rolled, last = result.metrics
    assert one_call.value == pytest.approx(0.01, rel=1e-3)
    squares = [(1.01**k - 1) ** 2 for k in (1, 2, 3)]
    assert rolled.value == pytest.approx(math.sqrt(sum(squares) / 3), rel=1e-3)
    assert rolled.name == "rollout from t = 1 to t = 2.5"
    assert last.value == pytest.approx(1.01**3 - 1, rel=1e-3)
    assert last.name == "last frame of the rollout, t = 2.5"
    assert result.example.times == (1.0, 2.5)
    torch.testing.assert_close(result.example.truth, result.example.input)
    torch.testing.assert_close(result.example.prediction, 1.01**3 * result.example.input)


def test_rollout_feeds_the_model_its_own_output() -> None:
    field = torch.randn(2, 1, 8)
    frames = rollout(Scale(2.0), field, 3)
    torch.testing.assert_close(frames, torch.stack([2 * field, 4 * field, 8 * field], dim=1))


def test_one_call_errors_start_from_the_true_frames() -> None:
    frames = torch.tensor([1.0, 2.0, 8.0]).view(1, 3, 1).expand(1, 3, 16)
    errors = one_step_errors(loaded(BURGERS, Scale(2.0)), frames)
    torch.testing.assert_close(errors, torch.tensor([[0.0, 0.5]]))


def test_held_out_data_comes_from_another_seed() -> None:
    asked: list[tuple[list[int], int]] = []

    def simulate(indices: Sequence[int], *, seed: int, n: int, device: str) -> torch.Tensor:
        asked.append((list(indices), seed))
        return torch.zeros(len(indices), 2, n, device=device)

    frames = held_out_frames(replace(BURGERS, simulate=simulate), 120, n=4, device="cpu")
    assert frames.shape == (120, 2, 4)
    assert [i for indices, _ in asked for i in indices] == list(range(120))
    assert {seed for _, seed in asked} == {HELD_OUT_SEED}
    assert HELD_OUT_SEED != TRAINING_SEED


def test_no_held_out_field_is_a_training_field() -> None:
    held_out = burgers.sample_inputs(range(16), seed=HELD_OUT_SEED, n=32)
    training = burgers.sample_inputs(range(256), seed=TRAINING_SEED, n=32)
    distances = torch.cdist(held_out, training) / held_out.norm(dim=1, keepdim=True)
    assert distances.min() > 0.05


def tiny_zoo(folder: Path) -> Path:
    """A zoo of one untrained model under the name of a real one."""
    problem = problem_named("burgers")
    torch.manual_seed(0)
    save_model(folder / problem.name, config_of(problem), FNO(problem.architecture))
    return folder / problem.name


def test_the_command_fails_on_a_missed_target_and_writes_only_with_write(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_zoo(tmp_path)
    before = {file.name: file.read_bytes() for file in folder.iterdir()}
    with pytest.raises(SystemExit) as stopped:
        main(["burgers-1d", "--n", "1", "--device", "cpu", "--zoo", str(tmp_path)])
    assert stopped.value.code == 1
    assert "one call <= 1.6%: MISSED" in capsys.readouterr().out
    assert {file.name: file.read_bytes() for file in folder.iterdir()} == before


def test_the_command_writes_the_measured_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tiny_zoo(tmp_path)
    with pytest.raises(SystemExit):
        main(["burgers", "--n", "1", "--device", "cpu", "--zoo", str(tmp_path), "--write"])
    metrics = load_model(folder).config.evaluation
    assert [metric.grid for metric in metrics] == [(1024,), (256,), (8192,)]
    assert f"{metrics[0].value:.3%}" in capsys.readouterr().out
    assert f"{metrics[0].value:.3%}" in (folder / "card.md").read_text()
    assert (folder / "card.png").is_file()


def test_the_command_names_the_problems_it_knows(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["poisson"])
    assert stopped.value.code == 2
    assert "unknown problem 'poisson'; the problems are burgers, darcy" in capsys.readouterr().err


@pytest.mark.parametrize("key", sorted(PROBLEMS))
def test_the_zoo_matches_the_recipes(key: str) -> None:
    problem = PROBLEMS[key]
    config = load_model(TRAINED / problem.name).config
    assert (TRAINED / problem.name / WEIGHTS_FILE).stat().st_size <= 12e6
    assert (config.architecture, config.grid) == (problem.architecture, problem.grid)
    assert config.training is not None
    assert config.training.recipe == f"python -m turbofno.models.zoo.train {key}"
    assert config.training.n_samples == problem.recipe.samples
    assert config.training.epochs == sum(phase.epochs for phase in problem.recipe.phases)
    judged = config.evaluation[0 if problem.time_step is None else 1]
    assert judged.n_samples == 200
    assert judged.value <= problem.target_error


def test_a_zoo_model_has_its_recorded_error() -> None:
    model = load_model(TRAINED / BURGERS.name)
    frames = held_out_frames(BURGERS, 8, n=1024, device="cpu")
    error = train.relative_l2(model.module(frames[:, :1]), frames[:, 1:]).mean().item()
    assert error < 3 * model.config.evaluation[0].value
