"""deploy/ray/slabs.yaml with an engine of two ranks on CPUs (`make test-ray`): answers, lost ranks, an engine that is lost.

Ray assigns GPUs that the machine does not have; so their number is compared with the devices as on a real node.
"""

from __future__ import annotations

import io
import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.tiny import tiny_config
from turbofno.models.core.checkpoint import save_model
from turbofno.models.core.config import GridSpec
from turbofno.models.core.fno import FNO
from turbofno.service.engine.interface import ModelStatus
from turbofno.service.settings import Settings
from turbofno_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

if not os.environ.get("TEST_RAY"):
    pytest.skip("takes a minute and needs Ray: make test-ray runs it", allow_module_level=True)
ray = pytest.importorskip("ray", reason="needs Ray: make test-ray")

from tests.deploy.ray_cluster import replicas, serve_run, until  # noqa: E402 - imports Ray

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]

NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}


class Deployed:
    def __init__(self, url: str, module: FNO) -> None:
        self.url, self._module = url, module

    def expected(self, fields: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            return self._module(torch.from_numpy(fields)).numpy()

    def ask(self, fields: NDArray[np.float32]) -> httpx.Response:
        buffer = io.BytesIO()
        np.save(buffer, fields)
        return httpx.post(
            f"{self.url}/v1/models/cut:predict", content=buffer.getvalue(), headers=NPY, timeout=60
        )

    def answers_right(self, fields: NDArray[np.float32]) -> bool:
        """False while it answers 503, which has Retry-After."""
        answer = self.ask(fields)
        if answer.status_code == 503:
            assert float(answer.headers["Retry-After"]) > 0
            return False
        assert answer.status_code == 200, answer.text
        found = np.load(io.BytesIO(answer.content), allow_pickle=False)
        np.testing.assert_allclose(found, self.expected(fields), rtol=1e-4, atol=1e-5)
        return True


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    folder = tmp_path_factory.mktemp("ray")
    config = tiny_config("cut", n_dim=2)
    periodic = GridSpec(
        training=(18, 16),
        minimum=(8, 8),
        maximum=(128, 128),
        extent=(1.0, 1.0),
        boundary="periodic",
    )
    config = config.model_copy(update={"slabs": True, "grid": periodic})
    torch.manual_seed(5)
    module = FNO(config.architecture).eval()
    save_model(folder / "models" / "cut", config, module)
    args = {"devices": "cpu+cpu", "require_native": "false", "torch_threads": "1"}
    scaling = {"min_replicas": 1, "max_replicas": 1}
    # Two for the replica, which does not use them, and two for tests.
    with serve_run(folder, "slabs.yaml", nodes=1, gpus=4, args=args, scaling=scaling) as url:
        yield Deployed(url, module)


def processes(*names: str) -> list[int]:
    """Process ids of this cluster's processes of these names."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if (process / "comm").read_text().rstrip() in names:
                    environment = (process / "environ").read_text().split("\0")
                    if f"RAY_TMPDIR={os.environ['RAY_TMPDIR']}" in environment:
                        found.append(int(process.name))
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
    return found


def ranks() -> list[int]:
    return [*processes("engine-0"), *processes("engine-0-rank-1")]


def fresh_fields() -> NDArray[np.float32]:
    return generator().standard_normal((3, 1, 33, 21), dtype=np.float32)


def test_a_replica_is_an_engine_of_two_ranks(deployed: Deployed) -> None:
    assert len(replicas()) == 1
    assert len(ranks()) == 2
    assert httpx.get(f"{deployed.url}/v1/models/cut").json()["execution"] == "slabs"
    with Client(deployed.url) as client:
        for _ in range(5):
            fields = fresh_fields()
            found = client.predict("cut", fields)
            np.testing.assert_allclose(found, deployed.expected(fields), rtol=1e-4, atol=1e-5)
    metrics = httpx.get(f"{deployed.url}/metrics").text
    for rank in "01":
        assert f'turbofno_rank_seconds_total{{group="engine-0",rank="{rank}"}}' in metrics
    # both the replica's own and the engine's
    assert 'process="frontend-0"' in metrics
    assert 'process="engine-0"' in metrics


@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_that_dies_costs_503s_and_no_replica(deployed: Deployed, victim: int) -> None:
    fields, before, old = fresh_fields(), replicas(), ranks()
    until(lambda: deployed.answers_right(fields), 30)
    os.kill(old[victim], signal.SIGKILL)
    until(lambda: not deployed.answers_right(fields), 10)
    until(lambda: deployed.answers_right(fields), 60)
    assert replicas() == before
    assert len(ranks()) == 2
    assert not set(ranks()) & set(old)


def test_a_replica_whose_engine_cannot_be_started_is_replaced(deployed: Deployed) -> None:
    fields, before, old = fresh_fields(), replicas(), ranks()
    until(lambda: deployed.answers_right(fields), 30)

    def replaced() -> bool:
        # No process that replaces the engine comes to its first heartbeat, as on a lost GPU.
        for pid in processes("fork-server", "engine-0"):
            if replicas() == before:
                os.kill(pid, signal.SIGKILL)
        return replicas() != before

    until(replaced, 90)
    until(lambda: deployed.answers_right(fields), 60)
    assert not set(ranks()) & set(old)


@pytest.mark.parametrize(
    ("devices", "gpus", "fits"),
    [("0+1", 2, True), ("0+1", 1, False), ("0", 2, False), ("1+2", 2, False), ("0", 1, True),
     ("cpu+cpu", 0, True)],
)  # fmt: skip
def test_devices_must_be_the_gpus_that_ray_assigned(
    deployed: Deployed, devices: str, gpus: int, fits: bool
) -> None:
    @ray.remote(num_gpus=gpus, num_cpus=0)
    def complaint() -> str:
        from deploy.ray.app import check_devices

        assigned = ray.get_runtime_context().get_accelerator_ids()["GPU"]
        try:
            check_devices(Settings(frontends=1, devices=devices), assigned)  # type: ignore[arg-type] # as text
        except ValueError as error:
            return str(error)
        return ""

    message = ray.get(complaint.remote())
    if fits:
        assert not message
    else:
        assert f"Ray assigned {gpus} GPUs" in message
        assert f"ray_actor_options.num_gpus to {devices.count('+') + 1}" in message


@pytest.mark.parametrize(
    ("ready", "failure", "states", "told"),
    [
        (False, "", [], ""),
        (False, "", ["LOADING", "UNAVAILABLE"], ""),
        (True, "", ["READY"], ""),
        (False, "", ["READY", "READY"], ""),  # a drain
        (False, "", ["READY", "UNAVAILABLE"], "models could not be loaded: m1 1: no memory"),
        (True, "the GPU failed", ["READY"], "the GPU failed"),
    ],
)
def test_health_is_whether_the_engine_will_be_ready(
    ready: bool, failure: str, states: list[str], told: str
) -> None:
    from deploy.ray.app import failure_of

    statuses = [
        ModelStatus(f"m{i}", "1", state, "no memory" if state == "UNAVAILABLE" else "")
        for i, state in enumerate(states)
    ]
    engine = SimpleNamespace(ready=ready, failure=failure, statuses=lambda: statuses)
    assert failure_of(engine) == told  # type: ignore[arg-type] # what it uses of an engine
