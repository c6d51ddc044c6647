"""The OpenAPI document is correct: its examples work, and fuzzing finds no undocumented response."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.draws import seed_of
from tests.e2e.server_process import ServerProcess
from tests.thorough import tried
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import BURGERS, NAVIER_STOKES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MODELS = (BURGERS.name, NAVIER_STOKES.name)
CONFIGURATION = f"""
color = false
# One worker because of python/cpython#106905: concurrent ast.parse can fail in 3.11.
workers = 1
seed = {seed_of(__name__)}
request-timeout = 20
warnings = false

[generation]
max-examples = {tried(3, thoroughly=60)}
database = "none"

[phases.stateful]
enabled = false

[checks]
enabled = false
status_code_conformance.enabled = true
content_type_conformance.enabled = true
response_schema_conformance.enabled = true

# Fuzzing tries tiny deadlines, for which 504 is correct.
[checks.not_a_server_error]
enabled = true
expected-statuses = ["2xx", "4xx", "504"]
"""


@pytest.fixture(scope="module")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server with the models of the examples, and low limits for rollouts and solutions."""
    folder = tmp_path_factory.mktemp("server")
    repository = folder / "repository"
    repository.mkdir()
    for name in MODELS:
        (repository / name).symlink_to(TRAINED / name)
    options = ("--model-control", "true", "--max-rollout-steps", "50", "--solver-seconds", "3")
    with ServerProcess(repository, folder / "log.txt", *options) as running:
        yield running
        assert running.stop() == 0, running.tail()
        assert "Traceback" not in running.log.read_text(errors="replace"), running.tail()


@pytest.fixture
def own_server(shared_server: ServerProcess) -> Iterator[ServerProcess]:
    """The server, whose models tests may unload: afterwards they are loaded again."""
    yield shared_server
    for name in MODELS:
        ready = httpx.get(f"{shared_server.url}/v2/models/{name}/ready").status_code
        if ready != 200:
            load = f"{shared_server.url}/v2/repository/models/{name}/load"
            assert httpx.post(load, timeout=60.0).status_code == 200


def test_every_openapi_example_works_as_it_stands(own_server: ServerProcess) -> None:
    document = httpx.get(f"{own_server.url}/openapi.json").json()
    operations = [
        (method, path, operation)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    # The other examples need the model that this one unloads.
    operations.sort(key=lambda one: one[1].endswith("/unload"))
    tried = 0
    with httpx.Client(base_url=own_server.url, timeout=60.0) as client:
        for method, path, operation in operations:
            for body in _example_bodies(operation):
                response = client.request(method, _example_path(path, operation), **body)
                assert response.status_code == 200, f"{method} {path} {body}: {response.text}"
                tried += 1
    assert tried >= len(operations)


def _example_path(path: str, operation: dict[str, Any]) -> str:
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            (example, *_) = parameter["schema"]["examples"]
            path = path.replace(f"{{{parameter['name']}}}", example)
        elif parameter.get("required"):
            (example, *_) = parameter["schema"]["examples"]
            path += f"?{parameter['name']}={example}"
    return path


def _example_bodies(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The JSON examples of an operation; None if it has none."""
    content = operation.get("requestBody", {}).get("content", {})
    examples = content.get("application/json", {}).get("examples", {})
    return [{"json": example["value"]} for example in examples.values()] or [{}]


@pytest.mark.timeout(150)
def test_fuzzing_by_the_openapi_finds_no_server_error_and_nothing_undocumented(
    own_server: ServerProcess, tmp_path: Path
) -> None:
    (tmp_path / "schemathesis.toml").write_text(CONFIGURATION)
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{own_server.url}/openapi.json"]
    # Unloading comes last, because every later response would be 503.
    for selection in ("--exclude-path-regex", "--include-path-regex"):
        done = subprocess.run(
            [*command, selection, "/unload$"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=100,
        )
        assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
