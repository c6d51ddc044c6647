"""The contents of wheel and sdist, and the service installed from the wheel."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import time
import venv
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import numpy as np
import pytest
import torch

import turbofno_ops
from tests.draws import generator
from tests.e2e.server_process import ROOT, free_port
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED

NAME = f"turbofno-{turbofno_ops.__version__}"
PACKAGES = {
    "turbofno/service": "service",
    "turbofno/models": "models",
    "turbofno_ops": "turbofno_ops",
    "turbofno_client": "service/turbofno_client",
}
"""Place in the wheel -> folder of the checkout."""
DATA = {".py", ".typed", ".html", ".js", ".css", ".svg", ".json", ".safetensors", ".md", ".png"}
PURE = {**os.environ, "TURBOFNO_PURE": "1"}


def build_wheel(source: Path, folder: Path) -> Path:
    """A wheel without kernels."""
    options = ("--quiet", "--no-deps", "--no-build-isolation", "--no-cache-dir")
    command = [sys.executable, "-m", "pip", "wheel", *options, "--wheel-dir", folder, source]
    subprocess.run(command, check=True, timeout=150, env=PURE)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wheel(ROOT, tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def sdist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sdist")
    program = (
        "import sys; from scikit_build_core.build import build_sdist; build_sdist(sys.argv[1])"
    )
    subprocess.run([sys.executable, "-c", program, folder], cwd=ROOT, check=True, timeout=150)
    return folder / f"{NAME}.tar.gz"


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bin` of an environment with the wheel and the dependencies installed here, but not the checkout.

    The dependencies come by a path file. Python reads no path files in the folders that one names, and an editable install
    is such a file.
    """
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    python = folder / "bin" / "python"
    options = ("--quiet", "--no-deps", "--no-index", "--no-warn-script-location")
    command = [sys.executable, "-m", "pip", "--python", python, "install", *options, wheel]
    subprocess.run(command, check=True, timeout=150)
    (packages,) = folder.glob("lib/python*/site-packages")
    here = dict.fromkeys(path for path in sys.path if path.endswith("-packages"))
    (packages / "dependencies.pth").write_text("\n".join(here))
    return folder / "bin"


def run(*command: str | Path, cwd: Path) -> str:
    """Standard output of the command, run without PYTHONPATH."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=150, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def served(command: Path, cwd: Path) -> Iterator[str]:
    """The URL of `turbofno serve`, once its models are ready."""
    url = f"http://127.0.0.1:{(port := free_port())}"
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    with (cwd / "log").open("w") as log:
        process = subprocess.Popen(
            [command, "serve", "--port", str(port)],
            cwd=cwd,
            env=environment | {"TURBOFNO_DEVICE": "cpu", "TURBOFNO_TORCH_THREADS": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            until = time.monotonic() + 90
            while not ready(url):
                assert process.poll() is None, (cwd / "log").read_text()
                assert time.monotonic() < until, (cwd / "log").read_text()
                time.sleep(0.2)
            yield url
        finally:
            process.terminate()
            process.wait(60)
    assert process.returncode == 0, (cwd / "log").read_text()


def ready(url: str) -> bool:
    try:
        return httpx.get(f"{url}/readyz").status_code == 200
    except httpx.TransportError:
        return False


def test_wheel_holds_the_packages_with_their_data_and_nothing_else(wheel: Path) -> None:
    assert wheel.name == f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    expected = {
        f"{place}/{path.relative_to(ROOT / folder)}"
        for place, folder in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and path.suffix in DATA
    }
    expected -= {name for name in expected if name.startswith("turbofno/service/turbofno_client/")}
    assert found == expected
    assert {"turbofno_ops/py.typed", "turbofno/service/demo/page/index.html"} < found


def test_wheel_from_the_sdist_equals_the_wheel_from_the_checkout(
    wheel: Path, sdist: Path, tmp_path: Path
) -> None:
    with zipfile.ZipFile(wheel) as direct, zipfile.ZipFile(build_wheel(sdist, tmp_path)) as other:
        assert {(one.filename, one.CRC) for one in direct.infolist()} == {
            (one.filename, one.CRC) for one in other.infolist()
        }


def test_sdist_holds_the_sources_of_the_kernels(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        found = {name.removeprefix(f"{NAME}/") for name in archive.getnames()}
    sources = {str(p.relative_to(ROOT)) for p in (ROOT / "csrc").rglob("*") if p.is_file()}
    assert sources
    assert sources | {"CMakeLists.txt", "LICENSE", "constraints.txt"} <= found
    assert not {"tests", "docs", "benchmarks", "deploy"} & {name.split("/")[0] for name in found}


def test_installed_command_and_packages_come_from_the_wheel(
    installed: Path, tmp_path: Path
) -> None:
    assert run(installed / "turbofno", "--version", cwd=tmp_path).strip() == (
        f"turbofno {turbofno_ops.__version__}"
    )
    modules = ["turbofno.service", "turbofno.models", "turbofno_ops", "turbofno_client"]
    program = f"import json, {', '.join(modules)}\nprint(json.dumps([m.__path__[0] for m in ({', '.join(modules)})]))"
    for path in json.loads(run(installed / "python", "-c", program, cwd=tmp_path)):
        assert Path(path).is_relative_to(installed.parent)


def test_installed_service_predicts_what_the_model_predicts(
    installed: Path, tmp_path: Path
) -> None:
    field = generator().uniform(3, 12, (1, 85, 85)).astype(np.float32)
    np.save(tmp_path / "field.npy", field)
    network = load_model(TRAINED / "darcy-2d").module
    with torch.inference_mode():
        expected = network(torch.from_numpy(field)[None])[0].numpy()
    turbofno = installed / "turbofno"
    with served(turbofno, tmp_path) as url:
        assert httpx.get(f"{url}/ui/").status_code == 200
        listed = httpx.get(f"{url}/v1/models").json()["models"]
        assert {one["name"] for one in listed} == {path.name for path in TRAINED.iterdir()}
        command = ("predict", "darcy-2d", "field.npy", "--url", url, "--output", "answer.npy")
        run(turbofno, *command, cwd=tmp_path)
        body = {"inputs": {"input": field[None].tolist()}}
        answer = httpx.post(f"{url}/v1/models/darcy-2d:predict", json=body).json()
    tolerance = 1e-4 * float(np.abs(expected).max())
    for found in (np.load(tmp_path / "answer.npy"), np.array(answer["outputs"]["output"][0])):
        np.testing.assert_allclose(found, expected, rtol=0, atol=tolerance)
