"""`turbofno predict`, in this process and through a server; user errors are one line."""

from __future__ import annotations

import io
import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import load_model, save_model
from turbofno.models.core.fno import FNO
from turbofno.models.zoo import TRAINED
from turbofno.service import cli


def test_predict_local_writes_the_answer_of_the_checkpoint(
    repository: Path, field: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.npy"
    assert cli.main(["predict", "tiny-1d", str(field), "-o", str(out), "--local"]) == 0
    module = load_model(repository / "tiny-1d").module
    truth = module(torch.from_numpy(np.load(field)[None]))[0].numpy()
    np.testing.assert_allclose(np.load(out), truth, rtol=1e-6, atol=1e-6)


def test_predict_local_converts_every_dtype_that_the_client_does(
    repository: Path, field: Path, tmp_path: Path
) -> None:
    given, out = tmp_path / "given.npy", tmp_path / "out.npy"
    module = load_model(repository / "tiny-1d").module
    values = np.load(field)
    for array in (values.astype(np.longdouble), values.astype(">f4"), (4 * values).astype("i4")):
        np.save(given, array)
        assert cli.main(["predict", "tiny-1d", str(given), "-o", str(out), "--local"]) == 0
        truth = module(torch.from_numpy(array.astype("f4")[None]))[0].numpy()
        np.testing.assert_allclose(np.load(out), truth, rtol=1e-6, atol=1e-6)


def test_predict_local_follows_links_within_the_repository_and_no_others(
    repository: Path, field: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["predict", "tiny-1d", str(field), "-o", str(tmp_path / "o.npy"), "--local"]
    weights = repository / "tiny-1d" / "model.safetensors"
    blob = weights.rename(repository / "blob")
    weights.symlink_to(blob)
    assert cli.main(arguments) == 0
    weights.unlink()
    weights.symlink_to(blob.rename(tmp_path / "elsewhere"))
    assert cli.main(arguments) == 1
    assert "leads out" in capsys.readouterr().err


def test_predict_local_refuses_an_answer_that_is_not_finite_as_a_server_does(
    repository: Path, field: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module = load_model(repository / "tiny-1d").module
    for parameter in module.parameters():
        parameter.data.mul_(1e6)
    save_model(repository / "tiny-1d", tiny_config(), module)
    large, out = tmp_path / "large.npy", tmp_path / "o.npy"
    np.save(large, 1e38 * np.load(field))
    assert cli.main(["predict", "tiny-1d", str(large), "-o", str(out), "--local"]) == 1
    assert "gave NaN or infinity for field 0 of 1" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.parametrize("grid", ["", "12x12", "a,b", "8,"])
def test_predict_refuses_an_invalid_output_grid(
    field: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], grid: str
) -> None:
    arguments = ["predict", "tiny-1d", str(field), "-o", str(tmp_path / "o.npy"), "--local"]
    with pytest.raises(SystemExit) as ended:
        cli.main([*arguments, "--output-grid", grid])
    assert ended.value.code == 2
    assert "for example 128,128" in capsys.readouterr().err


def test_predict_through_a_server_writes_the_answer(url: str, field: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    assert cli.main(["predict", "tiny-1d", str(field), "-o", str(out), "--url", url]) == 0
    sent = np.load(field)
    np.testing.assert_array_equal(np.load(out), np.concatenate([2 * sent, 3 * sent]))


@pytest.mark.timeout(20)
def test_predict_reads_and_writes_pipes(url: str, field: Path, tmp_path: Path) -> None:
    given, out = tmp_path / "given", tmp_path / "out"
    for pipe in (given, out):
        os.mkfifo(pipe)
    with ThreadPoolExecutor(2) as threads:
        threads.submit(given.write_bytes, field.read_bytes())
        answer = threads.submit(out.read_bytes)
        assert cli.main(["predict", "tiny-1d", str(given), "-o", str(out), "--url", url]) == 0
        sent = np.load(field)
        found = np.load(io.BytesIO(answer.result()))
    np.testing.assert_array_equal(found, np.concatenate([2 * sent, 3 * sent]))


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("n_dim", [1, 2])
@pytest.mark.parametrize("leading", [(), (1,), (1, 1)])
def test_predict_plot_draws_a_picture(tmp_path: Path, n_dim: int, leading: tuple[int, ...]) -> None:
    field, picture = tmp_path / "in.npy", tmp_path / "picture.png"
    array = np.random.default_rng(0).normal(size=leading + (16,) * n_dim)
    np.save(field, array)
    arguments = ["predict", f"tiny-{n_dim}d", str(field), "-o", str(tmp_path / "o.npy"), "--local"]
    assert cli.main([*arguments, "--plot", str(picture)]) == 0
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size > 5000


def test_predict_plot_draws_a_picture_of_a_served_model(
    url: str, field: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.svg"
    arguments = ["predict", "tiny-1d", str(field), "-o", str(tmp_path / "o.npy"), "--url", url]
    assert cli.main([*arguments, "--plot", str(picture)]) == 0
    text = picture.read_text()
    assert text.count('<g id="axes_') >= 3
    assert "u0" in text


def test_predict_plot_names_the_channels_of_the_version(
    url: str, field: Path, tmp_path: Path
) -> None:
    picture = tmp_path / "picture.svg"
    arguments = ["predict", "tiny-1d", str(field), "-o", str(tmp_path / "o.npy"), "--url", url]
    assert cli.main([*arguments, "--plot", str(picture), "--version", "7"]) == 0
    text = picture.read_text()
    assert "heat" in text
    assert "u0" not in text


@pytest.mark.usefixtures("repository")
def test_predict_plot_without_matplotlib_fails_before_any_work(
    field: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    out = tmp_path / "out.npy"
    arguments = ["predict", "tiny-1d", str(field), "-o", str(out), "--local", "--plot", "p.png"]
    assert cli.main(arguments) == 2
    assert "--plot needs matplotlib: pip install matplotlib" in capsys.readouterr().err
    assert not out.exists()


def test_predict_local_warns_of_an_input_beyond_its_bounds_once_interpolated(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, given = tiny_config("bounded"), tmp_path / "jump.npy"
    (u0,) = config.inputs
    config = config.model_copy(update={"inputs": (u0.model_copy(update={"minimum": 0.0}),)})
    save_model(repository / "bounded", config, FNO(config.architecture).eval())
    np.save(given, np.repeat(np.float32([0.0, 1.0]), 16)[None])
    asked = ["--output-grid", "16", "-o", str(tmp_path / "out.npy"), "--local"]
    assert cli.main(["predict", "bounded", str(given), *asked]) == 0
    assert "warning: the input, interpolated to the training grid: " in capsys.readouterr().err


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("array", "code", "expected"),
    [
        (np.zeros((2, 16), np.float32), 1, "1 (u0)"),
        (np.zeros((1, 4), np.float32), 1, "4 points, allowed are 8 to 64"),
        (np.full((1, 16), np.nan, np.float32), 1, "must be finite"),
        (np.zeros((), np.float32), 1, "rank 0"),
        (np.array([["a"]]), 2, "real numbers"),
        (np.array([[1j]]), 2, "real numbers"),
    ],
)
def test_predict_local_refuses_unusable_arrays_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    array: np.ndarray,
    code: int,
    expected: str,
) -> None:
    path, out = tmp_path / "in.npy", tmp_path / "out.npy"
    np.save(path, array)
    assert cli.main(["predict", "tiny-1d", str(path), "-o", str(out), "--local"]) == code
    error = capsys.readouterr().err
    assert expected in error
    assert error.startswith("turbofno: ")
    assert error.count("\n") == 1
    assert not out.exists()


_ABOUT_HUGE = b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,)}\n" % (1 << 50)
_HUGE = b"\x93NUMPY\x01\x00%b%b" % (len(_ABOUT_HUGE).to_bytes(2, "little"), _ABOUT_HUGE)
"""Claims far more values than it has, for which numpy allocates memory first."""


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    "content", [b"", b"not numpy", b"\x93NUMPY\x01\x00", b"PK\x03\x04", _HUGE], ids=repr
)
def test_predict_refuses_files_that_are_not_npy(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes
) -> None:
    path = tmp_path / "in.npy"
    path.write_bytes(content)
    arguments = ["predict", "tiny-1d", str(path), "-o", str(tmp_path / "out.npy"), "--local"]
    assert cli.main(arguments) == 2
    assert f"{path} " in capsys.readouterr().err


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("model", "version", "expected"),
    [
        ("other", [], "no model other in"),
        ("tiny-1d", ["--version", "7"], "no model tiny-1d version 7 in"),
    ],
)
def test_predict_local_of_an_unknown_model_lists_the_known_ones(
    field: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    model: str,
    version: list[str],
    expected: str,
) -> None:
    arguments = ["predict", model, str(field), "-o", str(tmp_path / "o.npy"), "--local", *version]
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert expected in error
    assert "tiny-1d (version 1), tiny-2d (version 1)" in error


def test_predict_local_with_a_damaged_checkpoint_names_it(
    repository: Path, field: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository / "tiny-1d" / "model.safetensors").write_bytes(b"x")
    arguments = ["predict", "tiny-1d", str(field), "-o", str(tmp_path / "o.npy"), "--local"]
    assert cli.main(arguments) == 1
    assert "SHA-256" in capsys.readouterr().err


def test_predict_prints_the_servers_error(
    url: str, field: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.npy"
    assert cli.main(["predict", "other", str(field), "-o", str(out), "--url", url]) == 1
    assert capsys.readouterr().err == "turbofno: there is no model 'other'\n"
    assert not out.exists()


@pytest.mark.usefixtures("repository")
def test_predict_local_without_memory_fails_in_one_line(
    field: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(FNO, "forward", lambda *_: torch.empty(1 << 50))
    arguments = ["predict", "tiny-1d", str(field), "-o", str(tmp_path / "o.npy"), "--local"]
    assert cli.main(arguments) == 1
    error = capsys.readouterr().err
    assert "not enough free memory" in error
    assert error.count("\n") == 1


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["-o", "missing/o.npy"], "missing, the folder of o.npy, does not exist"),
        (["-o", "o.npy", "--plot", "o.foo"], "--plot o.foo: the suffix must be one of"),
    ],
)
def test_outputs_that_cannot_be_written_are_refused_before_the_prediction(
    options: list[str],
    expected: str,
    field: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(["predict", "tiny-1d", str(field), "--local", *options]) == 2
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "o.npy").exists()


def test_predict_prints_a_line_for_each_warning_and_refuses_impossible_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURBOFNO_MODEL_REPOSITORY", str(TRAINED))
    path, out = tmp_path / "in.npy", tmp_path / "out.npy"
    wave = np.sin(4 * np.pi * np.arange(1024) / 1024, dtype=np.float32)
    np.save(path, wave[None])
    assert cli.main(["predict", "burgers-1d", str(path), "-o", str(out), "--local"]) == 0
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" is above ")[0].rpartition(" ")[0] for line in lines[:-1]] == [
        "turbofno: warning: input_distance",
        "turbofno: warning: residual",
    ]
    x = np.linspace(0, 1, 65)
    np.save(path, np.sin(2 * np.pi * (x[:, None] + 2 * x)))
    assert cli.main(["predict", "navier-stokes-2d", str(path), "-o", str(out), "--local"]) == 0
    assert "warning: the last points on grid axis 0 and 1 repeat" in capsys.readouterr().err
    np.save(path, np.zeros((1, 85, 85), np.float32))
    assert cli.main(["predict", "darcy-2d", str(path), "-o", str(out), "--local"]) == 1
    assert "channel 'a', grid point [0, 0] is 0, expected above 0" in capsys.readouterr().err
