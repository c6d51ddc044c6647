"""The command line: commands other than predict, options and usage; user errors are one line."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tests.service.forked import start
from tests.service.tiny import save_tiny, tiny_config
from turbofno.service import cli
from turbofno.service.__main__ import main as entry_point
from turbofno.service.settings import Settings, env_name
from turbofno.service.version import VERSION

if TYPE_CHECKING:
    pass

ROOT = Path(__file__).resolve().parents[3]


def serve(*options: str) -> tuple[int, str]:
    """Exit status and errors of `turbofno serve`, which must end by itself."""
    code = "import sys; from turbofno.service.cli import main; sys.exit(main())"
    process = start(code, "serve", *options, cwd=ROOT, env=os.environ)
    assert process.stderr is not None
    with process.stderr:
        said = process.stderr.read()
    return process.wait(60), said


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


def test_a_description_cannot_forge_rows_of_the_table(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", "--url", f"{url}/hostile"]) == 0
    _, row = capsys.readouterr().out.splitlines()
    assert row.endswith(r"\x1b[2J\nother-model (a norm)")


def test_an_error_cannot_write_to_the_terminal_what_a_model_has(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path, "x")
    config = tmp_path / "x" / "config.json"
    known = json.loads(config.read_text())
    config.write_text(json.dumps({**known, "\x1b[2J\nall is well": 0}))
    np.save(tmp_path / "field.npy", np.zeros((1, 16), np.float32))
    monkeypatch.setenv(env_name("model_repository"), str(tmp_path))
    files = [str(tmp_path / "field.npy"), "-o", str(tmp_path / "answer.npy")]
    assert cli.main(["predict", "x", *files, "--local"]) == 1
    error = capsys.readouterr().err
    assert r"\x1b[2J\nall is well" in error
    assert error.rstrip("\n").isprintable()


def test_a_server_that_asks_for_a_key_is_answered_with_where_to_put_it(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["models", "--url", f"{url}/closed"]) == 1
    said = "turbofno: an API key is needed; this command sends the one in TURBOFNO_API_KEY\n"
    assert capsys.readouterr().err == said


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
    status, said = serve("--model-repository", str(tmp_path / where), *options)
    assert status == 1
    assert expected in said
    assert str(tmp_path / where) in said
    assert said.count("\n") == 1


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


def test_serve_on_a_taken_port_fails_without_a_traceback(repository: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        status, said = serve("--port", str(taken.getsockname()[1]))
    assert status == 1
    assert "address already in use" in said
    assert "set another TURBOFNO_HOST or TURBOFNO_PORT" in said
    assert "Traceback" not in said


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


@pytest.mark.parametrize(
    ("text", "means"),
    [("-1.5", (-1.5,)), ("-1,2", (-1.0, 2.0)), ("-.5,-3", (-0.5, -3.0)), ("-1.5e-3", (-1.5e-3,))],
)
def test_import_takes_negative_means(
    monkeypatch: pytest.MonkeyPatch, text: str, means: tuple[float, ...]
) -> None:
    given: list[Any] = []
    monkeypatch.setattr(
        "turbofno.models.importers.command.run", lambda arguments, _: given.append(arguments) or 0
    )
    options = ["--name", "m", "--input-mean", text, "--output-mean", text]
    assert cli.main(["import", "x.pt", "--model-repository", "models", *options]) == 0
    assert (given[0].input_mean, given[0].output_mean) == (means, means)


def test_import_goes_to_the_folder_that_is_named_and_never_into_the_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    given: list[Path] = []
    monkeypatch.setattr(
        "turbofno.models.importers.command.run", lambda _, repository: given.append(repository) or 0
    )
    monkeypatch.delenv("TURBOFNO_MODEL_REPOSITORY", raising=False)
    command = ["import", "x.pt", "--name", "m"]
    assert cli.main(command) == 2
    assert capsys.readouterr().err == (
        "turbofno: no folder for the model: give --model-repository DIR or set TURBOFNO_MODEL_REPOSITORY\n"
    )
    assert cli.main([*command, "--model-repository", "mine"]) == 0
    assert cli.main([*command, "--repository", "older"]) == 0, "the option's name before"
    monkeypatch.setenv("TURBOFNO_MODEL_REPOSITORY", "ours")
    assert cli.main(command) == 0
    assert given == [Path("mine"), Path("older"), Path("ours")]


def test_the_command_without_the_service_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delitem(sys.modules, "turbofno.service.cli")
    monkeypatch.delattr("turbofno.service.cli")
    monkeypatch.setitem(sys.modules, "pydantic", None)
    assert entry_point() == 2
    error = capsys.readouterr().err
    assert "run `pip install '.[serve]'` in a checkout" in error
    assert error.count("\n") == 1
