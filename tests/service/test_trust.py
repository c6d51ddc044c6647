"""Signals in answers: every form and protocol, several batches and processes, metrics, the client, and the switch."""

from __future__ import annotations

import io
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from models.checkpoint import load_model
from models.trust.signals import Signals
from service.client import Client
from tests.e2e.server_process import ServerProcess
from tests.service.processes.running import running
from tests.service.tiny import save_judged, save_tiny

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

PATH = "/v1/models/tiny-judged:predict"
NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
NAMES = ["input_distance", "residual"]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_judged(root)
    save_tiny(root)
    return root


def fields(count: int = 5) -> NDArray[np.float32]:
    """Ever larger ones."""
    noise = np.random.default_rng().normal(size=(count, 1, 32))
    return (noise * np.arange(1, count + 1)[:, None, None]).astype(np.float32)


def expected(repository: Path, inputs: NDArray[np.float32]) -> dict[str, list[float]]:
    model = load_model(repository / "tiny-judged")
    x = torch.from_numpy(inputs)
    with torch.inference_mode():
        found = Signals(model.config)(x, model.module(x))
    return {name: values.tolist() for name, values in found.items()}


def npy(array: NDArray[np.float32]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


@contextmanager
def serving(repository: Path, log: Path, *options: str) -> Iterator[httpx.Client]:
    with (
        ServerProcess(repository, log, *options) as server,
        httpx.Client(base_url=server.url, timeout=30.0) as client,
    ):
        yield client


def check_headers(response: httpx.Response, values: dict[str, list[float]]) -> None:
    for name in NAMES:
        header = response.headers["x-trust-" + name.replace("_", "-")]
        assert float(header) == pytest.approx(max(values[name]), rel=1e-3)


def test_every_answer_says_how_far_it_can_be_trusted(repository: Path, tmp_path: Path) -> None:
    inputs = fields()
    want = expected(repository, inputs)
    assert list(want) == NAMES
    # cut in batches of two, whose parts must come together in order
    with serving(repository, tmp_path / "log", "--max-batch-size", "2") as client:
        as_json = client.post(PATH, json={"inputs": {"input": inputs.tolist()}})
        for name in NAMES:
            assert as_json.json()["trust"][name] == pytest.approx(want[name], rel=1e-3)
        check_headers(as_json, want)
        check_headers(client.post(PATH, content=npy(inputs), headers=NPY), want)
        tensor = {
            "name": "input",
            "datatype": "FP32",
            "shape": list(inputs.shape),
            "data": inputs.ravel().tolist(),
        }
        v2 = client.post("/v2/models/tiny-judged/infer", json={"inputs": [tensor]}).json()
        largest = {f"trust_{name}": max(want[name]) for name in NAMES}
        for name, value in largest.items():
            assert v2["parameters"][name] == pytest.approx(value, rel=1e-3)
        arrays = {"input": inputs.tolist(), "cotangent": inputs.tolist()}
        gradient = client.post("/v1/models/tiny-judged:vjp", json={"inputs": arrays})
        assert gradient.status_code == 200
        assert "trust" not in gradient.json()
        unknown = client.post("/v1/models/tiny-1d:predict", content=npy(inputs), headers=NPY)
        assert not [name for name in unknown.headers if name.startswith("x-trust")]
        metrics = client.get("/metrics").text
    for metric in ("turbofno_input_distance", "turbofno_residual"):
        count = rf'^{metric}_count{{model="tiny-judged",version="1"}} 15\.0$'
        assert re.search(count, metrics, re.MULTILINE), metrics


def test_off_nothing_is_computed_or_said(repository: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path / "log", "--trust", "false") as client:
        response = client.post(PATH, json={"inputs": {"input": fields().tolist()}})
        assert "trust" not in response.json()
        assert "x-trust-residual" not in response.headers
        assert "turbofno_residual_count{" not in client.get("/metrics").text


def test_signals_cross_processes_and_reach_the_client(repository: Path) -> None:
    inputs = fields()
    want = expected(repository, inputs)
    with running(repository) as service:
        service.until_ready()
        with Client(service.url) as client:
            prediction = client.predict_detailed("tiny-judged", inputs)
        as_json = service.post(PATH, b'{"inputs": {"input": %s}}' % str(inputs.tolist()).encode())
        assert service.total("turbofno_input_distance_count", model="tiny-judged") == 10
    largest = {name: max(want[name]) for name in NAMES}
    assert prediction.trust == pytest.approx(largest, rel=1e-3)
    for name in NAMES:
        assert as_json.json()["trust"][name] == pytest.approx(want[name], rel=1e-3)
