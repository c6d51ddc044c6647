"""deploy/ray on a Ray cluster of two nodes on this machine (`make test-ray`): answers, autoscaling, killed replicas."""

from __future__ import annotations

import io
import os
import random
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.tiny import save_tiny
from turbofno_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from turbofno.models.core.fno import FNO

if not os.environ.get("TEST_RAY"):
    pytest.skip("takes a minute and needs Ray: make test-ray runs it", allow_module_level=True)
ray = pytest.importorskip("ray", reason="needs Ray: make test-ray")

from tests.deploy.ray_cluster import replicas, serve_run, until  # noqa: E402 - imports Ray

pytestmark = [pytest.mark.timeout(240), pytest.mark.filterwarnings("ignore")]

LEAST, MOST = 2, 3
KILLS, CALLERS = 3, 6


@dataclass(frozen=True, slots=True)
class Deployed:
    url: str
    module: FNO

    def expected(self, fields: NDArray[np.float32]) -> NDArray[np.float32]:
        with torch.no_grad():
            return self.module(torch.from_numpy(fields)).numpy()


@pytest.fixture(scope="module")
def deployed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployed]:
    """deploy/ray/cpu.yaml with a small model and a fast autoscaler, on two nodes."""
    folder = tmp_path_factory.mktemp("ray")
    module = save_tiny(folder / "models", "tiny-2d", n_dim=2)
    # With the delay, requests are in a replica nearly all the time.
    args = {"torch_threads": "1", "max_queue_delay_seconds": "0.2"}
    scaling = {
        "min_replicas": LEAST, "max_replicas": MOST, "target_ongoing_requests": 2,
        "upscale_delay_s": 0.5, "downscale_delay_s": 3.0, "metrics_interval_s": 0.2, "look_back_period_s": 1.0,
    }  # fmt: skip
    with serve_run(folder, "cpu.yaml", nodes=2, args=args, scaling=scaling) as url:
        yield Deployed(url, module)


def answering(url: str) -> int:
    """Number of processes that answer, identified by their start time."""
    started = set()
    for _ in range(12 * MOST):
        answer = httpx.get(f"{url}/metrics")
        if answer.status_code == 200:
            lines = answer.text.splitlines()
            started |= {one for one in lines if one.startswith("process_start_time_seconds ")}
    return len(started)


def is_gone(replica: str) -> bool:
    return replica not in replicas()


def assert_close(answer: NDArray[np.float32], expected: NDArray[np.float32]) -> None:
    np.testing.assert_allclose(answer, expected, rtol=1e-4, atol=1e-5)


def fresh_fields() -> NDArray[np.float32]:
    rows, columns = random.randint(8, 64), random.randint(8, 64)
    shape = (random.randint(1, 40), 1, rows, columns)
    return generator().standard_normal(shape, dtype=np.float32)


def test_all_replicas_answer_as_the_module(deployed: Deployed) -> None:
    assert len(replicas()) >= LEAST
    with Client(deployed.url) as client:
        for _ in range(20):
            fields = fresh_fields()
            assert_close(client.predict("tiny-2d", fields), deployed.expected(fields))
    until(lambda: answering(deployed.url) >= LEAST, 20)


def test_errors_and_limits_are_the_services(deployed: Deployed) -> None:
    wrong = httpx.post(f"{deployed.url}/v1/models/none:predict", json={"inputs": {}})
    assert wrong.status_code == 404
    assert wrong.headers["content-type"] == "application/problem+json"
    # Only one of the replicas would load the model.
    load = httpx.post(f"{deployed.url}/v2/repository/models/tiny-2d/load")
    assert load.status_code == 403


def test_load_adds_replicas_and_a_killed_one_loses_no_retried_request(
    deployed: Deployed, capsys: pytest.CaptureFixture[str]
) -> None:
    ended = threading.Event()
    seen: Counter[int] = Counter()
    questions = [
        (fields, deployed.expected(fields)) for fields in (fresh_fields() for _ in range(16))
    ]

    def call_again(_: int) -> int:
        count = 0
        with Client(deployed.url, retries=8) as client:
            while not ended.is_set():
                fields, expected = random.choice(questions)
                assert_close(client.predict("tiny-2d", fields), expected)
                count += 1
        return count

    def call_once(_: int) -> int:
        """Without retries each answer is right, or Ray's 500."""
        count = 0
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
        with httpx.Client(base_url=deployed.url, timeout=60, headers=headers) as client:
            while not ended.is_set():
                fields, expected = random.choice(questions)
                answer = client.post("/v1/models/tiny-2d:predict", content=npy(fields))
                seen[answer.status_code] += 1
                if answer.status_code == 200:
                    assert_close(array(answer.content), expected)
                else:
                    assert answer.status_code == 500
                    assert "json" not in answer.headers["content-type"]
                count += 1
        return count

    with ThreadPoolExecutor(2 * CALLERS) as pool:
        again = [pool.submit(call_again, one) for one in range(CALLERS)]
        once = [pool.submit(call_once, one) for one in range(CALLERS)]
        try:
            until(lambda: answering(deployed.url) == MOST, 60, lambda: str(replicas()))
            for _ in range(KILLS):
                killed = random.choice(replicas())
                ray.kill(ray.get_actor(killed, namespace="serve"))
                until(partial(is_gone, killed), 10)
                until(lambda: answering(deployed.url) == MOST, 60, lambda: str(replicas()))
        finally:
            ended.set()
        counts = [one.result(60) for one in again]
    lost = seen[500]  # call_once allows no other status but 200
    with capsys.disabled():
        print(f"\n{sum(counts)} answered with retries; without them {dict(seen)}")  # noqa: T201
    assert all(counts)
    assert all(one.result(60) for one in once)
    # At least one request, and at most those in killed replicas.
    assert 0 < lost <= KILLS * CALLERS


def test_removed_replica_finishes_its_requests(deployed: Deployed) -> None:
    fields = fresh_fields()
    expected = deployed.expected(fields)
    ended = threading.Event()

    def call_once(_: int) -> None:
        while not ended.is_set():
            answer = httpx.post(
                f"{deployed.url}/v1/models/tiny-2d:predict",
                content=npy(fields),
                headers={"Content-Type": "application/x-npy", "Accept": "application/x-npy"},
                timeout=60,
            )
            assert answer.status_code == 200
            assert_close(array(answer.content), expected)

    # Load for more than one replica and less than three.
    with ThreadPoolExecutor(3) as pool:
        callers = [pool.submit(call_once, one) for one in range(3)]
        try:
            until(lambda: len(replicas()) == LEAST, 60, lambda: str(replicas()))
        finally:
            ended.set()
        for caller in callers:
            caller.result(60)


def npy(fields: NDArray[np.float32]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, fields)
    return buffer.getvalue()


def array(body: bytes) -> NDArray[np.float32]:
    return np.load(io.BytesIO(body), allow_pickle=False)
