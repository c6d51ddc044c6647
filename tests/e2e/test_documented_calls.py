"""Examples that people paste work, warn of nothing and agree with the solver: README, docs, and the lines that `serve` prints."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.e2e.recording import Recording, recording
from tests.e2e.server_process import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.e2e.server_process import ServerProcess

# Python ends with 1 on a warning of the client; curl ends with 0 on any answer, and this makes it fail on a refusal.
_STRICT = 'set -euo pipefail\ncurl() { command curl --fail-with-body --max-time 60 "$@"; }\n'
_DEFAULT = re.compile(r"http://(127\.0\.0\.1|localhost):8080")
_NEEDS_A_SERVER = re.compile(r"curl|turbofno predict|Client\(")
_NOT_RUN = ("turbofno import", "TURBOFNO_API_KEYS_FILE=", "make serve")
"""Blocks that are no example of a prediction: each has a test of its own."""
_DOCS = (
    "README.md",
    "docs/client.md",
    "docs/gradients.md",
    "docs/resolution.md",
    "docs/rollouts.md",
    "docs/ui.md",
)


def blocks(language: str, document: str) -> list[str]:
    """The fenced blocks of one language; those without a language are shell."""
    names = {"shell": "(?:sh|bash|shell)?", "python": "python"}[language]
    pattern = re.compile(rf"^```{names}\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    text = (ROOT / document).read_text()
    # Without a name the pattern would also begin at the end of a block.
    parts = re.split(r"^(```.*)$", text, flags=re.MULTILINE)
    fenced = ["".join(parts[i : i + 3]) for i in range(1, len(parts) - 2, 4)]
    return [match[1] for block in fenced if (match := pattern.match(block))]


def shell_examples() -> list[str]:
    found = [block for name in _DOCS for block in blocks("shell", name)]
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


def run(command: list[str], folder: Path, recorded: Recording) -> str:
    """The output of a command, which must end well."""
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ
        | {
            "PATH": f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(filter(None, paths)),
            "TURBOFNO_PORT": recorded.url.rpartition(":")[2],
            "OMP_NUM_THREADS": "1",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert "warning" not in done.stderr.lower(), done.stderr
    return done.stdout


def paste(script: str, folder: Path, recorded: Recording) -> str:
    here = _DEFAULT.sub(recorded.url, script)
    return run(["bash", "-c", _STRICT + here], folder, recorded)


def test_readme_has_examples_of_every_kind() -> None:
    shell, python = blocks("shell", "README.md"), blocks("python", "README.md")
    assert sum("curl" in block for block in shell) >= 3
    assert any("turbofno predict" in block for block in shell)
    assert any("Client(" in block for block in python)
    assert any("compile_fno" in block for block in python)


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
    program = _DEFAULT.sub(recorded.url, block).replace('"cuda"', '"cpu"')
    run([sys.executable, "-W", "error::UserWarning:__main__", "-c", program], folder, recorded)
    assert bool(recorded.exchanges) == bool(_NEEDS_A_SERVER.search(block))
    recorded.check()


def test_banner_has_a_line_for_each_model_that_works_when_pasted(
    server: ServerProcess, recorded: Recording, repository: Path, folder: Path
) -> None:
    log = server.log.read_text()
    lines = [line for line in log.splitlines() if line.startswith(("python3 -c", "curl "))]
    models = sorted(entry.name for entry in repository.iterdir())
    assert sorted(re.findall(r"/v1/models/([^:]+):predict", "\n".join(lines))) == models
    for line in lines:
        assert '"outputs"' in paste(line.replace(server.url, recorded.url), folder, recorded)
    # The tiny models are not trained: nothing is known of their answers.
    recorded.exchanges = [one for one in recorded.exchanges if not one.model.startswith("tiny")]
    assert len(recorded.asked("predict")) == 3
    recorded.check()
    assert f"{server.url}/docs" in log


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
