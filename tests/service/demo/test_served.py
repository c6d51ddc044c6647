"""Samples and solutions from a real server with front ends; its solver process ends with it."""

from __future__ import annotations

import io
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from tests.e2e.server_process import ServerProcess
from turbofno.models.zoo import TRAINED

if TYPE_CHECKING:
    from numpy.typing import NDArray


def parent(process: int | str) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def solver_processes(server: ServerProcess) -> set[int]:
    """Solver processes among the children of the front ends."""
    found = set()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            solves = b"turbofno.service.demo" in (folder / "cmdline").read_bytes()
            if solves and parent(parent(folder.name)) == server.process.pid:
                found.add(int(folder.name))
        except OSError:
            pass
    return found


@pytest.mark.timeout(150)
def test_front_ends_sample_and_solve_too(tmp_path: Path) -> None:
    models = tmp_path / "models"
    models.mkdir()
    (models / "burgers-1d").symlink_to(TRAINED / "burgers-1d")
    options = ("--frontends", "1", "--devices", "cpu")
    with ServerProcess(models, tmp_path / "log", *options) as server:
        base = f"{server.url}/v1/models/burgers-1d"

        def array(answer: httpx.Response) -> NDArray[np.float32]:
            found: NDArray[np.float32] = np.load(io.BytesIO(answer.raise_for_status().content))
            return found

        drawn = httpx.get(f"{base}/sample?seed=3", timeout=90)
        solved = array(httpx.post(f"{base}:solve?seed=3", timeout=90))
        headers = {"Content-Type": "application/x-npy"}
        answer = httpx.post(f"{base}:predict", content=drawn.content, headers=headers, timeout=30)
        assert answer.headers["x-batch-size"] == "1"
        error = np.linalg.norm(array(answer) - solved) / np.linalg.norm(solved)
        assert 0 < error < 0.01
        assert httpx.get(f"{server.url}/ui/app.js").status_code == 200
        (solver,) = solver_processes(server)
        assert server.stop() == 0
    assert not Path(f"/proc/{solver}").exists()
