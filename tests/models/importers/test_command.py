"""`turbofno import`: its output, its files, its refusals; a failure leaves nothing behind."""

from __future__ import annotations

import os
import zipfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from neuralop.data.transforms.normalizers import UnitGaussianNormalizer
from neuralop.models import FNO as TheirFNO
from neuralop.models import TFNO as TheirTFNO

from tests.models.importers.importing import left_over, run
from tests.models.importers.original_scripts import Script
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.registry import discover
from turbofno.models.importers import command as import_command
from turbofno.models.importers import neuraloperator
from turbofno.models.importers.parity import Parity

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:neuralop")


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    return tmp_path / "repository"


def neuraloperator_pair(folder: Path, name: str = "model") -> TheirFNO:
    network = TheirFNO(n_modes=(6, 5), in_channels=1, out_channels=2, hidden_channels=6, n_layers=2)
    folder.mkdir(exist_ok=True)
    network.save_checkpoint(folder, name)
    return network.eval()


@pytest.mark.parametrize("how", ["state dict", "trainer folder", "module", "in model", "in module"])
def test_an_import_is_compared_with_neuraloperator_itself(
    how: str, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = neuraloperator_pair(tmp_path / "saved")
    path = tmp_path / "saved" / "model_state_dict.pt"
    if how == "trainer folder":
        neuraloperator_pair(tmp_path / "saved", "other")
        path = tmp_path / "saved"
    elif how == "module":
        path = tmp_path / "module.pt"
        torch.save(network, path)
    elif how.startswith("in "):
        path = tmp_path / "wrapped.pt"
        torch.save({"epoch": 2, how.removeprefix("in "): network.state_dict()}, path)
    assert run(repository, path) == 0
    said = capsys.readouterr().out
    for part in ("neuraloperator 2.0.0 FNO", "modes: [6, 3]", "assumptions (--set KEY=VALUE", "odd size",
                 "compared with neuraloperator 2.0.0", "grid 17x17", "the model has no trust signals"):  # fmt: skip
        assert part in said, said
    loaded = load_model(repository / "model")
    for size in ((16, 16), (17, 13)):
        x = torch.randn(3, 1, *size)
        with torch.inference_mode():
            assert relative_l2(loaded.module(x), network(x)) < 1e-5


def test_the_card_is_the_report_without_the_paths(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neuraloperator_pair(tmp_path / "saved")
    values = {f"{side}_{name}": np.ones(1) for side in ("x", "y") for name in ("mean", "std")}
    np.savez(tmp_path / "scaling.npz", **values)
    scaled = ["--normalizer", str(tmp_path / "scaling.npz"), "--description", "Darcy, 2024"]
    assert run(repository, tmp_path / "saved" / "model_state_dict.pt", *scaled) == 0
    said = capsys.readouterr().out.splitlines()
    card = (repository / "model" / "card.md").read_text()
    assert card.startswith("# model\n\nDarcy, 2024\n")
    first, last = said.index("comparison:"), said.index(f"wrote {repository / 'model'}")
    for line in said[1:last]:
        assert f"    {line}\n" in card
    assert last - first > 1
    assert "input: scaling.npz: x" in card
    assert str(tmp_path) not in card


def test_what_was_not_read_and_each_assumption_are_told_once(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = neuraloperator_pair(tmp_path)
    weights = {k: t for k, t in network.state_dict().items() if torch.is_tensor(t)}
    torch.save({"epoch": 3, "model": weights, "ema": weights}, tmp_path / "last.pt")
    assert run(repository, tmp_path / "last.pt") == 0
    said = capsys.readouterr().out
    assert "last.pt, entry model (not read: epoch, ema)" in said
    assumptions = [line for line in said.splitlines() if line.startswith("  - ")]
    assert len(assumptions) == len(set(assumptions))


@pytest.mark.parametrize(
    ("arguments", "options", "boundary"),
    [
        ({}, [], "periodic"),
        ({"domain_padding": 0.25}, [], "nodes"),
        ({}, ["--set", "boundary=nodes"], "nodes"),
        ({"domain_padding": 0.25}, ["--set", "boundary=periodic"], "periodic"),
    ],
)
def test_the_boundary_is_reported_and_a_setting(
    arguments: dict[str, float],
    options: list[str],
    boundary: str,
    tmp_path: Path,
    repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Answers on other grids are interpolated, and a field that is not periodic rings as a Fourier series."""
    network = TheirFNO(
        n_modes=(6, 5), in_channels=1, out_channels=2, hidden_channels=6, **arguments
    )
    network.save_checkpoint(tmp_path, "model")
    assert run(repository, tmp_path / "model_state_dict.pt", *options) == 0
    said = capsys.readouterr().out
    assert "(boundary=periodic or nodes)" in said
    assert "compared with neuraloperator 2.0.0" in said
    assert load_model(repository / "model").config.grid.boundary == boundary


@pytest.mark.parametrize(("grid", "boundary"), [("none", "nodes"), ("periodic", "periodic")])
def test_coordinates_among_the_input_channels_are_not_periodic(
    grid: str, boundary: str, tmp_path: Path, repository: Path
) -> None:
    torch.save(Script("B", (4, 4), 6, 1, 1).state_dict(), tmp_path / "fno.pt")
    options = ["--set", "script=fourier_2d", "--set", f"grid={grid}", "--set", "padding=0"]
    assert run(repository, tmp_path / "fno.pt", *options) == 0
    assert load_model(repository / "model").config.grid.boundary == boundary


def test_layers_that_share_their_weights_are_imported(tmp_path: Path, repository: Path) -> None:
    network = neuraloperator_pair(tmp_path)
    first, second = network.fno_blocks.convs
    second.weight, second.bias = first.weight, first.bias
    network.save_checkpoint(tmp_path, "model")
    assert run(repository, tmp_path / "model_state_dict.pt") == 0
    loaded = load_model(repository / "model").module
    x = torch.randn(3, 1, 16, 16)
    with torch.inference_mode():
        assert relative_l2(loaded(x), network(x)) < 1e-5


def test_script_checkpoints_take_settings_and_are_reported_as_unproven(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = Script("B", (4, 4), 6, 1, 1, padding=(3, 3), activation=torch.tanh).eval()
    torch.save(network.state_dict(), tmp_path / "fno.pt")
    settings = ["--set", "script=fourier_2d", "--set", "padding=3", "--set", "activation=tanh"]
    channels = ["--inputs", "permeability", "--outputs", "pressure", "--grid", "21,20"]
    physical = ["--input-mean", "7", "--input-std", "3", "--output-mean", "1", "--output-std", "2"]
    assert run(repository, tmp_path / "fno.pt", *settings, *channels, *physical) == 0
    said = capsys.readouterr().out
    assert "input: --input-mean 7 --input-std 3\n" in said
    assert "activation is tanh, after every Fourier layer but the last (activation=" in said
    assert "the original library was not run: --set overrides" in said
    assert "does not show that the architecture was understood" in said
    loaded = load_model(repository / "model")
    assert [c.name for c in loaded.config.inputs] == ["permeability"]
    assert loaded.config.grid.training == (21, 20)
    x = 7 + 3 * torch.randn(2, 1, 21, 20)
    with torch.inference_mode():
        expected = network(((x - 7) / 3).movedim(1, -1)).movedim(-1, 1) * 2 + 1
        assert relative_l2(loaded.module(x), expected) < 1e-5


def test_the_eps_of_a_normaliser_is_a_setting(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = neuraloperator_pair(tmp_path)
    normalizer = UnitGaussianNormalizer(dim=[0, 2, 3], eps=1e-2)
    normalizer.fit(0.1 * torch.randn(20, 1, 8, 8) + 5)
    torch.save(normalizer.state_dict(), tmp_path / "x.pt")
    given = [tmp_path / "model_state_dict.pt", "--input-normalizer", str(tmp_path / "x.pt")]
    x = 5 + 0.1 * torch.randn(3, 1, 16, 16)
    with torch.inference_mode():
        expected = network(normalizer.transform(x))
    assert run(repository, *given) == 0
    assert "eps=1e-07 is added to std, as the file does not contain it" in capsys.readouterr().out
    with torch.inference_mode():
        assert relative_l2(load_model(repository / "model").module(x), expected) > 1e-3
    assert run(repository, *given, "--set", "eps=1e-2", "--force") == 0
    said = capsys.readouterr().out
    assert "(eps 0.01 added to std)" in said
    assert "compared with neuraloperator 2.0.0" in said
    with torch.inference_mode():
        assert relative_l2(load_model(repository / "model").module(x), expected) < 1e-5


def test_a_flattened_normaliser_needs_its_grid(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neuraloperator_pair(tmp_path)
    torch.save({"a": torch.rand(72) + 1, "b": torch.randn(72)}, tmp_path / "x.pt")
    given = [tmp_path / "model_state_dict.pt", "--input-normalizer", str(tmp_path / "x.pt")]
    assert run(repository, *given) == 1
    assert "give its grid with --grid" in capsys.readouterr().err
    assert run(repository, *given, "--grid", "8,9") == 0
    assert load_model(repository / "model").config.grid.training == (8, 9)
    np.savez(tmp_path / "y.npz", mean=np.ones((8, 9, 2)), std=np.ones((8, 9, 2)))
    other = ["--output-normalizer", str(tmp_path / "y.npz"), "--grid", "9,9", "--force"]
    assert run(repository, given[0], *other) == 1
    assert "--grid [9, 9] is not the grid of the normalisers, [8, 9]" in capsys.readouterr().err


@pytest.mark.parametrize("padding", ["1000000000", "-3"])
def test_absurd_padding_is_refused(
    padding: str, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Script("B", (4, 4), 6, 1, 1).state_dict(), tmp_path / "fno.pt")
    assert run(repository, tmp_path / "fno.pt", "--set", f"padding={padding}") == 1
    assert "padding" in capsys.readouterr().err
    assert left_over(repository) == []


def test_an_existing_model_is_replaced_only_by_force(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neuraloperator_pair(tmp_path / "one")
    second = neuraloperator_pair(tmp_path / "two")
    assert run(repository, tmp_path / "one") == 0
    before = (repository / "model" / "config.json").read_bytes()
    assert run(repository, tmp_path / "two") == 1
    assert "replace it with --force" in capsys.readouterr().err
    assert (repository / "model" / "config.json").read_bytes() == before
    assert run(repository, tmp_path / "two", "--force") == 0
    assert left_over(repository) == ["model"]
    x = torch.randn(1, 1, 16, 16)
    with torch.inference_mode():
        assert relative_l2(load_model(repository / "model").module(x), second(x)) < 1e-5


def test_a_folder_of_versions_is_not_replaced(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neuraloperator_pair(tmp_path / "one")
    (repository / "model" / "2").mkdir(parents=True)
    assert run(repository, tmp_path / "one", "--force") == 1
    assert "may hold several" in capsys.readouterr().err
    assert (repository / "model" / "2").is_dir()


def test_a_model_that_cannot_be_moved_into_place_leaves_the_old_one(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neuraloperator_pair(tmp_path / "one")
    assert run(repository, tmp_path / "one") == 0
    before = (repository / "model" / "model.safetensors").read_bytes()
    rename = Path.rename

    def full(self: Path, target: Path) -> Path:
        if self.name == "fresh":
            raise OSError("read-only file system")
        return rename(self, target)

    monkeypatch.setattr(Path, "rename", full)
    assert run(repository, tmp_path / "one", "--force") == 1
    assert left_over(repository) == ["model"]
    assert (repository / "model" / "model.safetensors").read_bytes() == before


def test_failure_while_writing_leaves_the_old_model_and_nothing_else(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    neuraloperator_pair(tmp_path / "one")
    assert run(repository, tmp_path / "one") == 0
    before = (repository / "model" / "model.safetensors").read_bytes()
    seen = []

    def full(path: Path, *_: object) -> None:
        path.mkdir()
        (path / "config.json").write_text("{}")
        seen.extend(location.name for location in discover(repository))
        raise OSError("no space left on device")

    monkeypatch.setattr(import_command, "save_model", full)
    assert run(repository, tmp_path / "one", "--force") == 1
    assert seen == ["model"]
    assert left_over(repository) == ["model"]
    assert (repository / "model" / "model.safetensors").read_bytes() == before


def test_a_network_that_differs_is_not_written(
    tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """The comparison finds an importer's mistake, here two swapped rows of a weight."""
    plain = neuraloperator.import_neuraloperator

    def mistaken(*given: object) -> object:
        imported = plain(*given)
        weight = imported.state["blocks.1.spectral_weight"]
        weight[:, :, [0, 1]] = weight[:, :, [1, 0]]
        return imported

    monkeypatch.setattr(neuraloperator, "import_neuraloperator", mistaken)
    neuraloperator_pair(tmp_path / "one")
    assert run(repository, tmp_path / "one") == 1
    assert "results differ from the original's by" in capsys.readouterr().err
    assert left_over(repository) == []
    assert Parity(("",), float("nan")).passed is False


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        (["gno_in.neighbor_search.weight"], "a graph neural operator (GINO, FNOGNO)"),
        (["fno_blocks.convs.0.sht.weights"], "spherical harmonics (SFNO)"),
        (["blocks.0.filter.w1", "patch_embed.proj.weight"], "an AFNO"),
        (["fno_blocks.0.convs.0.weight", "horizontal_skips.3.weight"], "a UNO"),
        (["unet3.conv.weight", "conv0.weights1", "fc0.weight"], "a U-FNO"),
        (["encoder.layer.0.weight"], "belong to no known network"),
    ],
)
def test_unsupported_networks_are_named(
    keys: list[str], says: str, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save({key: torch.zeros(2, 2) for key in keys}, tmp_path / "model.pt")
    assert run(repository, tmp_path / "model.pt") == 1
    said = capsys.readouterr().err
    assert says in said
    assert keys[0] in said or keys[1] in said
    assert "Supported are: neuraloperator FNO and TFNO" in said
    assert left_over(repository) == []


@pytest.mark.parametrize("points", [5, 6])
def test_normalisers_of_a_grid_without_the_modes_are_refused(
    points: int, tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Script("B", (4, 4), 6, 1, 1).state_dict(), tmp_path / "fno.pt")
    fields = {"mean": torch.zeros(points, points), "std": torch.ones(points, points)}
    torch.save(fields, tmp_path / "x.pt")
    options = [
        "--set",
        "script=fourier_2d",
        "--set",
        "padding=0",
        "--input-normalizer",
        str(tmp_path / "x.pt"),
    ]
    fits = points == 6
    assert run(repository, tmp_path / "fno.pt", *options) == int(not fits)
    if fits:
        load_model(repository / "model").module(torch.zeros(1, 1, points, points))
    else:
        said = capsys.readouterr().err
        assert "the grid [5, 5] of the normalisers is too small: the network needs at least" in said


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--set", "padding"], "--set expects KEY=VALUE"),
        (["--set", "colour=blue"], "colour"),
        (["--inputs", "a,b"], "--inputs names 2 channels, but the network has 1"),
        (["--grid", "64"], "--grid has 1 axes, but the network has 2"),
        (["--input-std", "0"], "std must be positive"),
        (["--set", "eps=1e-5"], "give --normalizer FILE"),
        (["--set", "boundary=open"], "boundary must be periodic or nodes, not 'open'"),
        (
            ["--normalizer", "n.json", "--set", "eps=nan"],
            "eps expects a number like 1e-5, not 'nan'",
        ),
    ],
)
def test_wrong_options_are_named(
    options: list[str], says: str, tmp_path: Path, repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    neuraloperator_pair(tmp_path / "one")
    assert run(repository, tmp_path / "one", *options) == 1
    assert says in capsys.readouterr().err
    assert left_over(repository) == []


@pytest.mark.parametrize(
    "second", [["--input-mean", "1"], ["--input-std", "2"], ["--normalizer", "both.npz"]]
)
def test_two_scalings_of_one_side_are_refused(
    second: list[str], tmp_path: Path, repository: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    neuraloperator_pair(tmp_path)
    np.savez("x.npz", mean=[5.0], std=[0.1])
    sides = ("input", "output")
    np.savez("both.npz", **{f"{side}_{name}": [1.0] for side in sides for name in ("mean", "std")})
    given = [tmp_path / "model_state_dict.pt", "--input-normalizer", "x.npz", *second]
    assert run(repository, *given) == 1
    assert "two options scale the input" in capsys.readouterr().err
    assert left_over(repository) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--name", "../model"], "'../model'"),
        (["--inputs", "a b"], "'a b'"),
        (["--grid", "10,x"], "whole numbers like 64,64"),
        (["--output-mean", "one"], "numbers like 0.5,-3"),
        (["--output-mean", "nan"], "numbers like 0.5,-3"),
        (["--input-std", "1,inf"], "numbers like 0.5,-3"),
        (["--precision", "fp16"], "bf16"),
    ],
)
def test_malformed_options_are_usage_errors(
    options: list[str], says: str, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        run(repository, Path("nowhere.pt"), *options)
    assert says in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "options", "says"),
    [
        (b"", [], "empty"),
        (b"hello", [], "not a file of torch.save"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", [], "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", [], "it is a web page"),
        (b"PK\x03\x04" + bytes(100), [], "truncated"),
        (None, ["--format", "physicsnemo"], "expects an .mdlus archive"),
        (None, ["--format", "the-well"], "expects config.json and model.safetensors"),
    ],
)
def test_files_of_another_kind_are_refused(
    content: bytes | None, options: list[str], says: str, tmp_path: Path, repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    neuraloperator_pair(tmp_path)
    path = tmp_path / "model_state_dict.pt"
    if content is not None:
        path.write_bytes(content)
    assert run(repository, path, *options) == 1
    assert says in capsys.readouterr().err
    assert left_over(repository) == []


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--time-step", "0"], "argument --time-step: expected a number above 0, not '0'"),
        (
            ["--past-steps", "1.5"],
            "argument --past-steps: expected a whole number above 0, not '1.5'",
        ),
        (
            ["--past-steps", "2"],
            "--past-steps is for autoregressive networks: give --time-step, too",
        ),
        (["--past-steps", "2", "--time-step", "1"], "the input's 1 channels are not 2 x 2\n"),
    ],
)
def test_past_steps_must_fit_the_network(
    options: list[str], says: str, tmp_path: Path, repository: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    neuraloperator_pair(tmp_path)
    with suppress(SystemExit):
        assert run(repository, tmp_path / "model_state_dict.pt", *options) == 1
    assert says in capsys.readouterr().err
    assert left_over(repository) == []


def test_versions_of_a_model_are_not_replaced(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    neuraloperator_pair(tmp_path)
    assert run(repository, tmp_path / "model_state_dict.pt") == 0
    (repository / "model" / "2").mkdir()
    (repository / "model" / "2" / "config.json").write_text("{}")
    assert run(repository, tmp_path / "model_state_dict.pt", "--force") == 1
    assert "--force does not replace them" in capsys.readouterr().err
    assert (repository / "model" / "2" / "config.json").exists()


def test_a_network_of_past_steps_is_told_to_say_how_many(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch.save(Script("B", (4,), 6, 10, 1).state_dict(), tmp_path / "fno.pt")
    steps = ["--set", "script=fourier_1d", "--time-step", "1"]
    assert run(repository, tmp_path / "fno.pt", *steps) == 1
    said = capsys.readouterr().err
    assert "10 channels are not 1 x 1; give --past-steps 10 if they are past states" in said
    assert "Static fields cannot be rolled out: leave --time-step out if some are" in said
    assert run(repository, tmp_path / "fno.pt", *steps, "--past-steps", "10") == 0
    assert load_model(repository / "model").config.states == 10


@pytest.mark.timeout(20)
def test_pipes_and_devices_are_not_read(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    neuraloperator_pair(tmp_path)
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        assert run(repository, path) == 1
        assert "is not a regular file" in capsys.readouterr().err
        normalised = run(repository, tmp_path / "model_state_dict.pt", "--normalizer", str(path))
        assert normalised == 1
        assert "is not a regular file" in capsys.readouterr().err
        example = ["--example", str(path), str(path)]
        assert run(repository, tmp_path / "model_state_dict.pt", *example) == 1
        assert "is no file" in capsys.readouterr().err
    assert left_over(repository) == []


def test_archives_of_another_format_than_asked_for_are_refused(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with zipfile.ZipFile(tmp_path / "model.mdlus", "w") as archive:
        archive.writestr("args.json", "{}")
    assert run(repository, tmp_path / "model.mdlus", "--format", "original") == 1
    assert "in the format physicsnemo, not original" in capsys.readouterr().err


def test_a_tfno_is_compared_with_its_library_and_keeps_its_precision(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    network = TheirTFNO(
        n_modes=(6, 5), in_channels=1, out_channels=2, hidden_channels=6, n_layers=2, rank=0.3
    )
    network.save_checkpoint(tmp_path, "model")
    path = tmp_path / "model_state_dict.pt"
    assert run(repository, path, "--precision", "bf16") == 0
    assert "compared with neuraloperator 2.0.0" in capsys.readouterr().out
    assert load_model(repository / "model").config.precision == "bf16"


def test_missing_and_native_checkpoints_are_reported(
    tmp_path: Path, repository: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(repository, tmp_path / "nowhere.pt") == 1
    assert "does not exist" in capsys.readouterr().err
    neuraloperator_pair(tmp_path / "one")
    assert run(repository, tmp_path / "one") == 0
    assert run(repository, repository / "model", name="again") == 1
    assert "is a native checkpoint" in capsys.readouterr().err
