"""Training end to end on a handful of samples: seeded, resumable, and recorded in the checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import train
from turbofno.models.zoo.evaluate import rollout
from turbofno.models.zoo.problems import BURGERS, PROBLEMS, TRAINING_SEED, Phase


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("data")


def run_burgers(data: Path, runs: Path, *, epochs: int = 3) -> dict[str, torch.Tensor]:
    """Train with the command line; return the weights."""
    options = ["--samples", "4", "--epochs", str(epochs), "--device", "cpu"]
    train.main(["burgers", *options, "--data", str(data), "--runs", str(runs)])
    return load_file(runs / "burgers-1d" / "checkpoint" / "model.safetensors")


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[k], right[k]) for k in left)


def test_the_same_command_gives_the_same_weights(data: Path, tmp_path: Path) -> None:
    first = run_burgers(data, tmp_path / "first")
    assert same(first, run_burgers(data, tmp_path / "second"))
    assert not same(first, run_burgers(data, tmp_path / "longer", epochs=4))


def test_a_resumed_run_gives_the_weights_of_an_uninterrupted_one(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_one_go = run_burgers(data, tmp_path / "whole")
    said: list[str] = []

    def stop_in_the_second_epoch(text: str) -> None:
        said.append(text)
        if "epoch 2/3" in text:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train, "_log", stop_in_the_second_epoch)
        with pytest.raises(KeyboardInterrupt):
            run_burgers(data, tmp_path / "stopped")
    assert not (tmp_path / "stopped" / "burgers-1d" / "checkpoint").exists()
    said.clear()
    monkeypatch.setattr(train, "_log", said.append)
    assert same(run_burgers(data, tmp_path / "stopped"), in_one_go)
    assert said[0].startswith("resuming at phase 1, epoch ")
    assert not any("epoch 1/3" in line for line in said)


def test_a_finished_run_is_not_trained_again(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    weights = run_burgers(data, tmp_path)
    said: list[str] = []
    monkeypatch.setattr(train, "_log", said.append)
    assert same(run_burgers(data, tmp_path), weights)
    assert not any("relative L2" in line for line in said)


def test_the_state_of_another_recipe_is_refused(data: Path, tmp_path: Path) -> None:
    run_burgers(data, tmp_path)
    with pytest.raises(ValueError, match="another recipe or architecture"):
        run_burgers(data, tmp_path, epochs=4)


def test_the_checkpoint_records_its_training(data: Path, tmp_path: Path) -> None:
    run_burgers(data, tmp_path)
    config = load_model(tmp_path / "burgers-1d" / "checkpoint").config
    assert config.training is not None
    assert (
        config.training.recipe
        == "python -m turbofno.models.zoo.train burgers --samples 4 --epochs 3"
    )
    assert (config.training.n_samples, config.training.epochs) == (4, 3)
    assert (config.training.device, config.training.seed) == ("cpu", BURGERS.recipe.seed)
    assert config.statistics is not None
    assert config.statistics.n_samples == 4
    [file] = data.glob("burgers-1d-*.safetensors")
    initial = load_file(file)["frames"][:, 0]
    assert config.statistics.inputs[0].std == pytest.approx(initial.double().std().item())
    assert config.normalization is not None
    assert config.normalization.input_std == (config.statistics.inputs[0].std,)


def test_what_to_run_next_measures_the_model_that_was_trained(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    monkeypatch.setattr(train, "_log", said.append)
    run_burgers(data, tmp_path)
    assert said[-1].endswith(f"now: turbofno verify {tmp_path}/burgers-1d/checkpoint")
    monkeypatch.setattr(train, "TRAINED", tmp_path / "zoo")
    options = ["--samples", "4", "--epochs", "3", "--device", "cpu", "--data", str(data)]
    out = tmp_path / "zoo" / "burgers-1d"
    train.main(["burgers", *options, "--runs", str(tmp_path), "--out", str(out)])
    assert said[-1].endswith("now: python -m turbofno.models.zoo.evaluate burgers-1d")


@pytest.mark.parametrize("option", ["--samples", "--epochs"])
def test_counts_below_one_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        train.main(["burgers", option, "0"])
    assert stopped.value.code == 2
    assert "must be at least 1" in capsys.readouterr().err


def test_training_data_is_simulated_once_in_chunks_with_the_training_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(train, "_SIMULATED_AT_ONCE", 2)
    asked: list[tuple[list[int], int]] = []

    def simulate(indices: range, *, seed: int, device: str) -> torch.Tensor:
        asked.append((list(indices), seed))
        return torch.tensor([[[float(i)], [-float(i)]] for i in indices], device=device)

    problem = replace(BURGERS, simulate=simulate)
    first = train.training_frames(problem, 3, tmp_path, "cpu")
    assert asked == [([0, 1], TRAINING_SEED), ([2], TRAINING_SEED)]
    assert first[:, 0, 0].tolist() == [0.0, 1.0, 2.0]
    assert torch.equal(train.training_frames(problem, 3, tmp_path, "cpu"), first)
    assert len(asked) == 2


def test_the_loss_of_a_window_is_that_of_a_rollout(tmp_path: Path) -> None:
    """One batch of all windows at the schedule's first rate, zero, so that the weights do not change."""
    phase = Phase(epochs=1, batch=12, learning_rate=1e-3, unroll=3)
    problem = replace(BURGERS, recipe=replace(BURGERS.recipe, samples=4, phases=(phase,)))
    frames = torch.randn(4, 6, 64, generator=torch.Generator().manual_seed(0))
    reported: list[str] = []
    run = train.Run(problem, frames, tmp_path, "cpu")
    run.train(reported.append)
    errors = []
    for start in range(3):
        rolled = rollout(run.module, frames[:, start].unsqueeze(1), 3)[:, :, 0]
        truth = frames[:, start + 1 : start + 4]
        errors += [train.relative_l2(rolled[:, i], truth[:, i]).mean().item() for i in range(3)]
    assert f"relative L2 {sum(errors) / 9:.5f}" in reported[0]


def test_every_batch_sees_input_and_truth_under_one_symmetry(tmp_path: Path) -> None:
    seen: list[tuple[str, torch.Tensor]] = []

    def recorded(name: str, sign: float) -> Callable[[torch.Tensor], torch.Tensor]:
        def change(field: torch.Tensor) -> torch.Tensor:
            seen.append((name, field))
            return sign * field.flip(-1)

        return change

    phase = Phase(epochs=2, batch=2, learning_rate=1e-3)
    problem = replace(BURGERS, recipe=replace(BURGERS.recipe, samples=12, phases=(phase,)))
    frames = torch.randn(12, 2, 64, generator=torch.Generator().manual_seed(0))
    mirrored = replace(problem, symmetries=(recorded("odd", -1.0), recorded("even", 1.0)))
    train.Run(mirrored, frames, tmp_path / "mirrored", "cpu").train(lambda _: None)
    names = [name for name, _ in seen]
    assert set(names) == {"odd", "even"}
    assert names[::2] == names[1::2], "the same map for the input and the truth of a batch"
    inputs = torch.cat([field for _, field in seen[:12:2]])
    truths = torch.cat([field for _, field in seen[1:12:2]])
    order = [int((frames[:, 0] == field).all(-1).nonzero()) for field in inputs]
    assert sorted(order) == list(range(12))
    assert torch.equal(truths, frames[order, 1])


def test_training_lowers_the_loss(data: Path, tmp_path: Path) -> None:
    frames = train.training_frames(BURGERS, 4, data, "cpu")
    phase = Phase(epochs=40, batch=4, learning_rate=5e-3)
    problem = replace(BURGERS, recipe=replace(BURGERS.recipe, samples=4, phases=(phase,)))
    losses: list[float] = []
    run = train.Run(problem, frames[..., ::16], tmp_path, "cpu")
    run.train(lambda line: losses.append(float(line.split("relative L2 ")[1].split(",")[0])))
    assert len(losses) == 40
    assert losses[-1] < 0.5 * losses[0]


def test_the_rate_rises_then_falls_to_zero() -> None:
    assert train.one_cycle(0.0) == 0.0
    assert train.one_cycle(0.1) == pytest.approx(1.0)
    assert train.one_cycle(0.55) == pytest.approx(0.5)
    assert train.one_cycle(1.0) == pytest.approx(0.0)


def test_every_recipe_fits_its_problem() -> None:
    for problem in PROBLEMS.values():
        assert problem.architecture.n_dim == len(problem.grid.training)
        for phase in problem.recipe.phases:
            assert problem.time_step is not None or phase.unroll == 1
