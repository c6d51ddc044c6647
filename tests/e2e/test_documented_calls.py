"""Examples that people paste work, warn of nothing and agree with the solver: README, docs, and the lines that `serve` prints."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest
from scipy.io import netcdf_file

from tests.e2e.recording import TOLERANCE, Recording, recording
from tests.e2e.server_process import ROOT
from tests.service.forked import run as run_forked
from tests.service.forked import start
from tests.service.processes.running import until
from tests.service.tiny import save_tiny
from tests.service.waiting import until as eventually
from tests.turbofno_ops.on_gpu import ON_GPU
from turbofno_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess

# Python ends with 1 on a warning of the client; curl ends with 0 on any answer, and this makes it fail on a refusal.
_STRICT = 'set -euo pipefail\ncurl() { command curl --fail-with-body --max-time 60 "$@"; }\n'
_DEFAULT = re.compile(r"http://(127\.0\.0\.1|localhost):8080")
_NEEDS_A_SERVER = re.compile(r"curl|turbofno predict|Client\(")
_NOT_RUN = ("pip install",)
"""Blocks that install and start the service: tests/test_packaging does that."""
_COORDINATES = "docs/how-to/coordinates.md"
_DOCS = (
    "README.md",
    "docs/index.md",
    "docs/tutorial/first-prediction.md",
    "docs/reference/client.md",
    "docs/reference/fft.md",
    "docs/reference/ntt.md",
    "docs/reference/ops.md",
    "docs/how-to/column-major.md",
    _COORDINATES,
    "docs/how-to/gradients.md",
    "docs/how-to/page.md",
    "docs/how-to/resolution.md",
    "docs/how-to/rollouts.md",
)
_CHECKPOINT_LESSON = "docs/tutorial/own-checkpoint.md"
_MOUNTING = "docs/how-to/deploy.md"


def blocks(language: str, document: str) -> list[str]:
    """The fenced blocks of one language in a document."""
    return [code for name, code in all_blocks(document) if name == language]


def all_blocks(document: str) -> list[tuple[str, str]]:
    """The fenced blocks of a document with their languages, in order."""
    text = (ROOT / document).read_text()
    return re.findall(r"^```(\w*)\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def shell_examples() -> list[str]:
    found = [block for name in _DOCS for block in blocks("sh", name)]
    return [block for block in found if not any(word in block for word in _NOT_RUN)]


def python_examples() -> list[str]:
    return [block for name in _DOCS for block in blocks("python", name)]


@pytest.fixture
def recorded(server: ServerProcess) -> Iterator[Recording]:
    with recording(server.url) as kept:
        yield kept


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder that looks like the checkout, with its client as an installation has it."""
    for entry in ROOT.iterdir():
        (tmp_path / entry.name).symlink_to(entry)
    (tmp_path / "turbofno_client").symlink_to(ROOT / "service" / "turbofno_client")
    return tmp_path


def execute(command: list[str], folder: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command, which must succeed, in a folder."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "OMP_NUM_THREADS": "1",
        }
        | variables,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    return done


def run(command: list[str], folder: Path, recorded: Recording) -> str:
    """The output of a command that calls the server; it must succeed without a warning."""
    done = execute(command, folder, TURBOFNO_PORT=recorded.url.rpartition(":")[2])
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def run_python(program: str, folder: Path) -> None:
    """Run a Python program as `python -W error::UserWarning:__main__ -c`; it must succeed without a warning.

    torch, numpy and httpx are imported already: where most of the time would go. Nothing of this project is.
    """
    prepared = (
        "import sys, warnings, torch\nsys.path.insert(0, '')\ntorch.set_num_threads(1)\n"
        "warnings.filterwarnings('error', category=UserWarning, module=r'__main__\\Z')\n"
        f"exec(compile({program!r}, '<string>', 'exec'), {{'__name__': '__main__'}})"
    )
    imported = ("torch", "numpy", "httpx")
    env = os.environ if ON_GPU else {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    process = start(prepared, cwd=folder, env=env, imported=imported)
    assert process.stderr
    with process.stderr:
        said = process.stderr.read()
    assert process.wait(120) == 0, said
    assert "warning" not in said.lower(), said


def paste(script: str, folder: Path, recorded: Recording) -> str:
    here = _DEFAULT.sub(recorded.url, script)
    return run(["bash", "-c", _STRICT + here], folder, recorded)


def test_readme_has_examples_of_every_kind() -> None:
    shell, python = blocks("sh", "README.md"), blocks("python", "README.md")
    assert sum("curl" in block for block in shell) >= 2
    assert any("turbofno predict" in block for block in shell)
    assert any("Client(" in block for block in python)


@pytest.mark.parametrize("block", shell_examples())
def test_a_shell_example_works_warns_of_nothing_and_answers_as_the_solver(
    recorded: Recording, block: str, folder: Path
) -> None:
    assert _NEEDS_A_SERVER.search(block), "an example that no test knows how to run"
    paste(block, folder, recorded)
    assert recorded.exchanges
    recorded.check()


@pytest.mark.parametrize("block", python_examples())
def test_a_python_example_works_warns_of_nothing_and_answers_as_the_solver(
    recorded: Recording, block: str, folder: Path
) -> None:
    program = _DEFAULT.sub(recorded.url, block)
    if not ON_GPU:
        program = program.replace('"cuda"', '"cpu"')
    run_python(program, folder)
    assert bool(recorded.exchanges) == bool(_NEEDS_A_SERVER.search(block))
    if "PredictionWarning" in block:
        assert any("x-warning" in one.response for one in recorded.exchanges)
    else:
        recorded.check()


def test_the_netcdf_file_of_a_rollout_has_its_frames_coordinates_and_units(
    recorded: Recording, folder: Path
) -> None:
    (block,) = blocks("python", _COORDINATES)
    run_python(_DEFAULT.sub(recorded.url, block), folder)
    with netcdf_file(folder / "flow.nc", mmap=False) as file, Client(recorded.url) as client:
        np.testing.assert_array_equal(file.variables["time"][:], [5, 10, 15, 20])
        for axis in "xy":
            np.testing.assert_allclose(file.variables[axis][:], np.arange(64) / 64)
            assert file.variables[axis].units == b"1"
        field = file.variables["vorticity"]
        assert field.dimensions == ("time", "x", "y")
        solved = client.solve("navier-stokes-2d", client.sample("navier-stokes-2d"), steps=20)[0]
        error = np.linalg.norm(field[-1] - solved) / np.linalg.norm(solved)
    assert error < TOLERANCE * 0.0075, "five times the card's error of the last frame"


@pytest.mark.parametrize("document", [*_DOCS, _CHECKPOINT_LESSON, _MOUNTING])
def test_every_block_names_its_language(document: str) -> None:
    """`text` is what no test runs; a block without a language would be run by none unnoticed."""
    assert {name for name, _ in all_blocks(document)} <= {"sh", "python", "text"}


def test_the_lesson_on_checkpoints_works_from_start_to_end(tmp_path: Path) -> None:
    pytest.importorskip("neuralop")
    printed = []
    for language, code in all_blocks(_CHECKPOINT_LESSON):
        if language == "sh":
            printed.append(execute(["bash", "-ec", code], tmp_path).stdout)
        elif language == "python":
            status, output = run_forked(code, cwd=tmp_path, env=os.environ)
            assert status == 0, output
            printed.append(output)
    _, imported, difference = printed
    assert float(difference.splitlines()[-1]) < 1e-5
    of_example = re.search(r"on your example the answers differ .* by (\S+) of", imported)
    assert of_example is not None
    assert float(of_example[1]) < 1e-5


def test_an_application_that_mounts_the_service_loads_its_models(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_tiny(tmp_path)
    monkeypatch.setenv("TURBOFNO_MODEL_REPOSITORY", str(tmp_path))
    monkeypatch.setenv("TURBOFNO_DEVICE", "cpu")
    (block,) = blocks("python", _MOUNTING)
    main: dict[str, Any] = {}
    exec(block, main)
    app = main["app"]

    async def predict() -> httpx.Response:
        client = httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://localhost/fno"
        )
        async with app.router.lifespan_context(app), client:
            engine = main["fno"].state.context.engine
            await eventually(lambda: engine.ready, 30)
            inputs = {"input": [0.0] * 16}
            return await client.post("/v1/models/tiny-1d:predict", json={"inputs": inputs})

    answer = asyncio.run(predict())
    assert answer.status_code == 200, answer.text


def test_banner_has_a_line_for_each_model_that_works_when_pasted(
    server: ServerProcess, recorded: Recording, repository: Path, folder: Path
) -> None:
    models = sorted(entry.name for entry in repository.iterdir())

    def commands() -> list[str]:
        log = server.log.read_text().splitlines()
        return [line for line in log if line.startswith(("python3 -c", "curl "))]

    # The server prints them soon after it is ready.
    until(lambda: len(commands()) == len(models), 20)
    lines = commands()
    assert sorted(re.findall(r"/v1/models/([^:]+):predict", "\n".join(lines))) == models
    for line in lines:
        assert '"outputs"' in paste(line.replace(server.url, recorded.url), folder, recorded)
    # The tiny models are not trained: nothing is known of their answers.
    recorded.exchanges = [one for one in recorded.exchanges if not one.model.startswith("tiny")]
    assert len(recorded.asked("predict")) == 4
    recorded.check()
    assert f"{server.url}/docs" in server.log.read_text()


def test_examples_of_the_api_documentation_warn_of_nothing(server: ServerProcess) -> None:
    paths = httpx.get(f"{server.url}/openapi.json").json()["paths"]
    for path, model, query in (
        ("/v1/models/{name}:predict", "burgers-1d", ""),
        ("/v1/models/{name}:vjp", "burgers-1d", ""),
        ("/v1/models/{name}:rollout", "navier-stokes-2d", "?steps=10"),
        ("/v2/models/{model}/infer", "burgers-1d", ""),
    ):
        content = paths[path]["post"]["requestBody"]["content"]["application/json"]
        for example in content["examples"].values():
            answer = httpx.post(
                server.url + path.format(name=model, model=model) + query,
                json=example["value"],
                timeout=60,
            )
            assert answer.status_code == 200, answer.text
            assert "x-warning" not in answer.headers, answer.headers["x-warning"]
            assert "warning" not in answer.json().get("parameters", {})
