"""`turbofno verify` as a user runs it: on the zoo, on a folder, on what it has no solver for."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
import torch

from tests.service.tiny import save_tiny
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.core.checkpoint import load_model, save_model, write_config
from turbofno.models.core.config import Metric, ModelConfig
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import BURGERS
from turbofno.service import cli

QUICK = ["--n", "3", "--device", "cpu"]


def copy_of_burgers(folder: Path, **changes: object) -> Path:
    loaded = load_model(TRAINED / BURGERS.name)
    save_model(folder, loaded.config.model_copy(update=changes), loaded.module)
    return folder


def stated(value: float) -> tuple[Metric, ...]:
    return (Metric(name="one call", value=value, n_samples=200, grid=(1024,)),)


def test_a_zoo_model_keeps_its_card(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "burgers-1d", *QUICK, "--out", str(tmp_path), "--json"]) == 0
    said = capsys.readouterr()
    report = json.loads(said.out)
    assert json.loads((tmp_path / "report.json").read_text()) == report
    (task,) = report["tasks"]
    assert len(task["errors"]) == 3
    assert task["mean"] == pytest.approx(sum(task["errors"]) / 3)
    assert report["kept"]
    assert (
        task["verdict"]["stated"] == load_model(TRAINED / BURGERS.name).config.evaluation[0].value
    )
    assert [race["batch"] for race in task["solver_at_equal_error"]] == [1, 3]
    for race in task["solver_at_equal_error"]:
        assert race["trial"]["error"] <= task["mean"]
        ratio = race["solver_seconds"] / race["surrogate_seconds"]
        assert race["speed_up"] == pytest.approx(ratio)
    text = (tmp_path / "report.md").read_text()
    assert f"{task['mean']:.3%}" in text
    assert f"{report['clock']} for one sample" in text
    for picture in ("samples.png", "errors.png"):
        assert f"({picture})" in text
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert f"seed {report['seed']}" in said.err
    assert report["seed"] > 2, "neither the training's nor the card's samples"
    assert report["command"] == f"turbofno verify burgers-1d --n 3 --seed {report['seed']}"


@needs_kernels
@pytest.mark.parametrize("name", ["burgers-1d", "darcy-2d"])
def test_on_a_gpu_the_model_runs_on_the_kernels(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["verify", name, "--n", "8", "--device", "cuda", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["backend"] == "cuda"
    assert report["device"] != "cpu"


def test_a_seed_repeats_the_samples(capsys: pytest.CaptureFixture[str]) -> None:
    errors = []
    for seed in ("7", "7", "8"):
        assert cli.main(["verify", "burgers-1d", *QUICK, "--seed", seed, "--json"]) == 0
        errors.append(json.loads(capsys.readouterr().out)["tasks"][0]["errors"])
    # replayed or not, as the machine had time: not to the bit
    assert errors[0] == pytest.approx(errors[1], rel=1e-3)
    assert errors[0] != pytest.approx(errors[2], rel=1e-3)


def test_a_folder_that_is_worse_than_its_card_ends_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = copy_of_burgers(tmp_path / "mine", evaluation=stated(1e-5))
    assert cli.main(["verify", str(folder), *QUICK]) == 1
    assert "FAILED, the model is clearly worse" in capsys.readouterr().out


def test_answers_that_are_not_finite_end_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loaded = load_model(TRAINED / BURGERS.name)
    with torch.no_grad():
        for parameter in loaded.module.parameters():
            parameter *= 1e15
    save_model(tmp_path / "wild", loaded.config, loaded.module)
    out = tmp_path / "out"
    assert cli.main(["verify", str(tmp_path / "wild"), *QUICK, "--out", str(out)]) == 1
    assert "not finite" in capsys.readouterr().out
    (task,) = json.loads((out / "report.json").read_text())["tasks"]
    assert task["mean"] is None
    assert not task["verdict"]["kept"]


def test_an_imported_model_says_its_pde_and_bound_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = {"pde": None, "statistics": None, "training": None, "evaluation": ()}
    folder = copy_of_burgers(tmp_path / "imported", **bare)
    assert cli.main(["verify", str(folder), *QUICK]) == 1
    assert "name it with --pde" in capsys.readouterr().err
    known = ["verify", str(folder), *QUICK, "--pde", "burgers"]
    assert cli.main(known) == 0
    assert "the card states no error for this task" in capsys.readouterr().out
    assert cli.main([*known, "--at-most", "0.01"]) == 0
    assert cli.main([*known, "--at-most", "0.00001"]) == 1


def test_the_command_of_the_report_names_the_repository(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy_of_burgers(tmp_path / BURGERS.name)
    given = ["verify", BURGERS.name, "--n", "3", "--seed", "7", "--model-repository", str(tmp_path)]
    assert cli.main([*given, "--device", "cpu", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["command"] == shlex.join(["turbofno", *given])


def test_a_coarser_grid(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["verify", "burgers-1d", *QUICK, "--grid", "256", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["grid"] == [256]
    assert report["tasks"][0]["verdict"]["stated"] == 0.0005501, "the card's for this grid"


def with_other_viscosity(config: ModelConfig) -> object:
    assert config.pde is not None
    (nu,) = config.pde.parameters
    other = nu.model_copy(update={"minimum": 0.01, "maximum": 0.01})
    return config.pde.model_copy(update={"parameters": (other,)})


def test_a_place_that_cannot_be_written_to_is_said_before_the_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("")
    assert cli.main(["verify", "burgers-1d", *QUICK, "--out", str(taken)]) == 1
    said = capsys.readouterr().err
    assert str(taken) in said
    assert "solving" not in said


def test_what_cannot_be_verified_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused(*arguments: str) -> str:
        assert cli.main(["verify", *arguments, *QUICK]) != 0
        text = capsys.readouterr().err
        assert "Traceback" not in text
        return text

    assert "there is no model poisson" in refused("poisson", "--model-repository", str(TRAINED))
    assert "is not the folder of a checkpoint" in refused(str(tmp_path / "nothing"))
    assert "supports 32 to 16384 points" in refused("burgers-1d", "--grid", "31")
    assert "--grid 100: cannot take 100 of 1024" in refused("burgers-1d", "--grid", "100")
    said = refused("darcy-2d", "--grid", "64")
    assert "--grid 64: cannot take 64 of 421" in said
    assert "the nearest is 61" in said
    save_tiny(tmp_path)
    assert "name it with --pde" in refused(str(tmp_path / "tiny-1d"))
    assert "(1, 2, 1)" in refused(str(tmp_path / "tiny-1d"), "--pde", "burgers")
    folder = copy_of_burgers(tmp_path / "mine")
    config = load_model(folder).config
    write_config(folder, config.model_copy(update={"pde": with_other_viscosity(config)}))
    assert "(0.01, 0.01)" in refused(str(folder))
    assert config.pde is not None
    unknown = config.pde.model_copy(update={"name": "poisson"})
    write_config(folder, config.model_copy(update={"pde": unknown}))
    assert "there are solvers for burgers, darcy" in refused(str(folder))


@pytest.mark.parametrize(
    "option", [("--n", "2"), ("--seed", "1"), ("--seed", "4096"), ("--at-most", "0")]
)
def test_options_out_of_range_are_named(
    option: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        cli.main(["verify", "burgers-1d", *option])
    assert stopped.value.code == 2
    assert option[0] in capsys.readouterr().err
