"""The command line: output, files and exit status; user errors are one line."""

from __future__ import annotations

import io
import socket
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING

import numpy as np
import orjson
import pytest
import torch

from tests.service.tiny import save_tiny, tiny_config
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.fno import FNO
from turbofno.models.zoo import TRAINED
from turbofno.service import cli
from turbofno.service.__main__ import main as entry_point
from turbofno.service.settings import Settings, env_name
from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "repository"
    for n_dim in (1, 2):
        save_tiny(root, f"tiny-{n_dim}d", n_dim=n_dim)
    monkeypatch.setenv(env_name("model_repository"), str(root))
    return root


@pytest.fixture
def field(tmp_path: Path) -> Path:
    path = tmp_path / "field.npy"
    np.save(path, np.sin(np.linspace(0, 6, 16, dtype=np.float32))[None])
    return path


class _Server(BaseHTTPRequestHandler):
    """A fake server: the list of models, one model, a prediction of two channels."""

    def do_GET(self) -> None:
        config = tiny_config()
        summary = {"name": config.name, "version": "1", "state": "READY", "reason": ""}
        summary |= {"backend": "cuda", "precision": "fp32", "execution": "graph"}
        summary |= {"execution_reason": "a norm"}
        summary |= {"trust": "no trust signals, not evaluated"}
        if self.path == "/v1/models":
            broken = {"name": "b", "version": "12", "state": "UNAVAILABLE", "reason": "no weights"}
            broken |= {"backend": "", "precision": "", "execution": "", "execution_reason": ""}
            listing = [summary | {"description": config.description}, broken]
            self._answer(200, orjson.dumps({"models": listing}))
        elif self.path == "/v1/models/tiny-1d":
            inputs, outputs, grid = (
                config.model_dump(mode="json")[key] for key in ("inputs", "outputs", "grid")
            )
            tensors = {"input": {"channels": inputs}, "output": {"channels": outputs}}
            self._answer(200, orjson.dumps({**summary, **tensors, "grid": grid}))
        else:
            self._answer(404, orjson.dumps({"detail": "there is no model 'other'"}))

    def do_POST(self) -> None:
        array = np.load(io.BytesIO(self.rfile.read(int(self.headers["content-length"]))))
        if not self.path.startswith("/v1/models/tiny-1d:predict"):
            self._answer(404, orjson.dumps({"detail": "there is no model 'other'"}))
            return
        buffer = io.BytesIO()
        np.save(buffer, np.concatenate([2 * array, 3 * array], axis=-2))
        self._answer(200, buffer.getvalue())

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Keep the test output clean."""


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Server)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_predict_local_writes_the_answer_of_the_checkpoint(
    repository: Path, field: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.npy"
    assert cli.main(["predict", "tiny-1d", str(field), "-o", str(out), "--local"]) == 0
    module = load_model(repository / "tiny-1d").module
    truth = module(torch.from_numpy(np.load(field)[None]))[0].numpy()
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


@pytest.mark.usefixtures("repository")
@pytest.mark.parametrize("content", [b"", b"not numpy", b"\x93NUMPY\x01\x00", b"PK\x03\x04"])
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


def test_models_prints_a_table(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["models", "--url", url]) == 0
    head, row, broken = capsys.readouterr().out.splitlines()
    columns = [
        "NAME",
        "VERSION",
        "STATE",
        "BACKEND",
        "PRECISION",
        "EXECUTION",
        "TRUST",
        "DESCRIPTION",
    ]
    assert head.split() == columns
    runs = ["tiny-1d", "1", "READY", "cuda", "fp32", "graph"]
    untold = "no trust signals, not evaluated"
    assert row.split(maxsplit=6) == [*runs, f"{untold}  {tiny_config().description} (a norm)"]
    assert broken.split(maxsplit=7) == ["b", "12", "UNAVAILABLE", *"----", "no weights"]
    assert head.index("STATE") == row.index("READY") == broken.index("UNAVAILABLE")


@pytest.mark.parametrize("bad_url", ["http://127.0.0.1:1", "nonsense", "http://[", "ftp://x"])
def test_models_without_a_server_fails_in_one_line(
    capsys: pytest.CaptureFixture[str], bad_url: str
) -> None:
    assert cli.main(["models", "--url", bad_url]) == 1
    error = capsys.readouterr().err
    assert error.startswith("turbofno: ")
    assert error.count("\n") == 1


def test_config_prints_every_setting_as_an_environment_file_that_reads_back(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert cli.main(["config", "--port", "9123", "--models", "a,b", "--log-level", "debug"]) == 0
    text = capsys.readouterr().out
    for name, field in Settings.model_fields.items():
        assert env_name(name) in text
        assert str(field.description) in text
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, value = line.partition("=")
            monkeypatch.setenv(name, value)
    assert Settings() == Settings(port=9123, models=("a", "b"), log_level="debug")
    assert "# port (set): " in text
    assert "# host (default): " in text


def test_options_win_over_the_environment(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(env_name("port"), "9000")
    assert cli.main(["config", "--port", "9001"]) == 0
    assert "TURBOFNO_PORT=9001\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--port", "x"], "--port (TURBOFNO_PORT): "),
        (["--device", "abacus"], "--device (TURBOFNO_DEVICE): "),
        (
            ["--max-json-bytes", "99999999999"],
            "TURBOFNO_MAX_JSON_BYTES=99999999999 must not exceed",
        ),
    ],
)
def test_serve_with_a_bad_setting_names_option_and_variable(
    capsys: pytest.CaptureFixture[str], arguments: list[str], expected: str
) -> None:
    assert cli.main(["serve", *arguments]) == 2
    error = capsys.readouterr().err
    assert expected in error
    assert error.count("\n") == 1
    assert "default factory" not in error


@pytest.mark.parametrize(
    ("folder", "options", "expected"),
    [
        ("missing", [], "missing is not a folder"),
        ("", [], "no model in"),
        ("repository", ["--models", "tiny-1d,x"], "TURBOFNO_MODELS names x"),
    ],
)
def test_serve_of_missing_models_fails_in_one_line(
    repository: Path, tmp_path: Path, folder: str, options: list[str], expected: str
) -> None:
    where = "empty" if folder == "" else folder
    (tmp_path / "empty").mkdir()
    command = [
        sys.executable,
        "-m",
        "turbofno.service",
        "serve",
        "--model-repository",
        tmp_path / where,
    ]
    done = subprocess.run(
        [*command, *options], cwd=ROOT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    assert expected in done.stderr
    assert str(tmp_path / where) in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("host", "expected"),
    [("::", "http://[::1]:"), ("fd00::7", "http://[fd00::7]:"), ("0.0.0.0", "http://127.0.0.1:")],
)
def test_models_finds_the_server_by_its_host_setting(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str, expected: str
) -> None:
    seen: list[str] = []

    def client(url: str, **_: object) -> object:
        seen.append(url)
        raise OSError("seen enough")

    monkeypatch.setattr(cli, "Client", client)
    monkeypatch.setenv(env_name("host"), host)
    assert cli.main(["models"]) == 1
    assert seen[0].startswith(expected)


def test_config_reports_a_misspelt_variable(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TURBOFNO_MAX_BATCHSIZE", "7")
    assert cli.main(["config"]) == 0
    assert capsys.readouterr().err == (
        "turbofno: TURBOFNO_MAX_BATCHSIZE is not a setting; did you mean TURBOFNO_MAX_BATCH_SIZE?\n"
    )


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


def test_serve_on_a_taken_port_fails_without_a_traceback(repository: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        command = [
            sys.executable,
            "-m",
            "turbofno.service",
            "serve",
            "--port",
            str(taken.getsockname()[1]),
        ]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "address already in use" in done.stderr
    assert "set another TURBOFNO_HOST or TURBOFNO_PORT" in done.stderr
    assert "Traceback" not in done.stderr


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


def test_a_reader_that_stops_early_is_no_error() -> None:
    command = f"set -o pipefail; {sys.executable} -m turbofno.service config | head -1; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
    assert (done.stdout.count("\n"), done.stderr) == (1, "")


def test_a_wrong_setting_is_explained(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["config", "--device", "tpu"]) == 2
    error = capsys.readouterr().err
    assert "--device (TURBOFNO_DEVICE)" in error
    assert str(Settings.model_fields["device"].description) in error


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["predict"], ["serve", "--nonsense"]])
def test_wrong_usage_exits_with_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2


@pytest.mark.parametrize("command", ["serve", "predict", "models", "config"])
def test_help_is_printed(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([command, "--help"])
    assert caught.value.code == 0
    assert command in capsys.readouterr().out


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"turbofno {VERSION}\n"


def test_the_command_without_the_service_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "turbofno.service.cli")
    monkeypatch.delattr("turbofno.service.cli")
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert entry_point() == 2
    error = capsys.readouterr().err
    assert "pip install 'turbofno[serve]'" in error
    assert error.count("\n") == 1


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
    np.save(path, np.zeros((1, 85, 85), np.float32))
    assert cli.main(["predict", "darcy-2d", str(path), "-o", str(out), "--local"]) == 1
    assert "channel 'a', grid point [0, 0] is 0, expected above 0" in capsys.readouterr().err
