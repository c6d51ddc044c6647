"""Trust signals and their warnings: formats and protocols, batches, processes, metrics, the client."""

from __future__ import annotations

import io
import json
import re
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.e2e.server_process import ServerProcess
from tests.service.processes.running import Service, running
from tests.service.tiny import rollable_module, save_judged, save_rollable, save_tiny
from turbofno.models.core.checkpoint import load_model
from turbofno.models.trust.signals import Signals
from turbofno.service import cli
from turbofno_client import Client, PredictionWarning

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

PATH = "/v1/models/tiny-judged:predict"
NPY = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
NAMES = ["input_distance", "residual"]
LIMIT = 1.5
"""The threshold of tiny-warned for input_distance: noise ten times as large is far above."""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("models")
    save_judged(root)
    save_tiny(root)
    save_rollable(root, rollable_module())
    save_judged(root, "tiny-warned", limits=(LIMIT, 1e5), steps=4)
    return root


def fields(count: int = 5) -> NDArray[np.float32]:
    """Fields of increasing size."""
    noise = generator().normal(size=(count, 1, 32))
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


def test_every_response_has_trust_signals(repository: Path, tmp_path: Path) -> None:
    inputs = fields()
    want = expected(repository, inputs)
    assert list(want) == NAMES
    # split into batches of two, whose signals must be joined in order
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
        assert not [name for name in unknown.headers if name.startswith("x-trust-")]
        metrics = client.get("/metrics").text
    for metric in ("turbofno_input_distance", "turbofno_residual"):
        count = rf'^{metric}_count{{model="tiny-judged",version="1"}} 15\.0$'
        assert re.search(count, metrics, re.MULTILINE), metrics


def test_without_the_setting_there_are_no_signals(repository: Path, tmp_path: Path) -> None:
    with serving(repository, tmp_path / "log", "--trust", "false") as client:
        response = client.post(PATH, json={"inputs": {"input": fields().tolist()}})
        assert "trust" not in response.json()
        assert "x-trust-residual" not in response.headers
        assert "turbofno_residual_count{" not in client.get("/metrics").text


@pytest.fixture(scope="module")
def service(repository: Path) -> Iterator[Service]:
    """Several processes."""
    with running(repository) as several:
        several.until_ready()
        yield several


def test_signals_cross_processes_and_reach_the_client(repository: Path, service: Service) -> None:
    inputs = fields()
    want = expected(repository, inputs)
    with Client(service.url) as client:
        prediction = client.predict_detailed("tiny-judged", inputs)
    as_json = service.post(PATH, b'{"inputs": {"input": %s}}' % str(inputs.tolist()).encode())
    assert service.total("turbofno_input_distance_count", model="tiny-judged") == 10
    largest = {name: max(want[name]) for name in NAMES}
    assert prediction.trust == pytest.approx(largest, rel=1e-3)
    for name in NAMES:
        assert as_json.json()["trust"][name] == pytest.approx(want[name], rel=1e-3)


def good_and_bad() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Fields [1, 1, 32]: one as in training, one ten times as large."""
    good = np.random.default_rng(0).normal(size=(1, 1, 32)).astype(np.float32)
    return good, 10 * good


def counts(metrics: str, model: str) -> dict[str, float]:
    """Reason -> number of responses with a warning."""
    pattern = (
        rf'^turbofno_prediction_warnings_total{{model="{model}",reason="(\w+)",version="1"}} (\S+)$'
    )
    return {reason: float(n) for reason, n in re.findall(pattern, metrics, re.MULTILINE)}


def test_a_signal_above_its_threshold_warns_in_every_form_and_is_counted(
    repository: Path, tmp_path: Path
) -> None:
    good, bad = good_and_bad()
    path = "/v1/models/tiny-warned:predict"
    both = np.concatenate([good, bad, good])
    with serving(repository, tmp_path / "log", "--max-batch-size", "2") as client:
        zeros = dict.fromkeys(("bounds", "grid", "horizon", *NAMES), 0.0)
        assert counts(client.get("/metrics").text, "tiny-warned") == zeros
        quiet = client.post(path, json={"inputs": {"input": good.tolist()}})
        assert "warnings" not in quiet.json()
        assert "x-warning" not in quiet.headers
        told = client.post(path, json={"inputs": {"input": both.tolist()}})
        (text,) = told.json()["warnings"]
        assert text == told.headers["x-warning"]
        assert re.match(
            r"input_distance \S+ of field 1 is above 1.5, which only 1 in 1000 fields ", text
        )
        binary = client.post(path, content=npy(bad), headers=NPY)
        assert "input_distance" in binary.headers["x-warning"]
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 32]}
        v2 = client.post(
            "/v2/models/tiny-warned/infer",
            json={"inputs": [{**tensor, "data": bad.ravel().tolist()}]},
        )
        assert "input_distance" in v2.json()["parameters"]["warning"]
        assert counts(client.get("/metrics").text, "tiny-warned") == zeros | {"input_distance": 3.0}


def test_a_model_without_signals_says_so_wherever_others_show_theirs(
    repository: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    none = "no trust signals, not evaluated"
    with serving(repository, tmp_path / "log") as client:
        answer = client.post("/v1/models/tiny-1d:predict", json={"inputs": {"u0": [0.0, 1.0] * 8}})
        assert answer.headers["x-trust"] == answer.json()["trust_status"] == none
        judged = client.post(PATH, json={"inputs": {"input": fields(1).tolist()}})
        assert "x-trust" not in judged.headers
        assert "trust_status" not in judged.json()
        tensor = {"name": "input", "datatype": "FP32", "shape": [1, 1, 16], "data": [0.0] * 16}
        v2 = client.post("/v2/models/tiny-1d/infer", json={"inputs": [tensor]}).json()
        assert v2["parameters"]["trust_status"] == none
        with Client(str(client.base_url)) as user:
            assert user.predict_detailed("tiny-1d", fields(1)).trust_status == none
        check_untold_rollout(client, none)
        described = {one["name"]: one["trust"] for one in client.get("/v1/models").json()["models"]}
        assert described == {
            "tiny-1d": none,
            "tiny-flow": none,
            "tiny-judged": "input_distance and residual without thresholds, not evaluated",
            "tiny-warned": "input_distance and residual",
        }
        for name, status in described.items():
            assert client.get(f"/v1/models/{name}").json()["trust"] == status
            assert client.get(f"/v2/models/{name}").json()["parameters"]["trust"] == status
            facts = client.get(f"/v2/models/{name}/config").json()["parameters"]
            assert facts["trust"]["string_value"] == status
        assert cli.main(["models", "--url", str(client.base_url)]) == 0
    table = capsys.readouterr().out
    assert all(status in table for status in described.values())


def check_untold_rollout(client: httpx.Client, none: str) -> None:
    flow = json.dumps({"inputs": {"input": fields(1).tolist()}})
    path, as_json = "/v1/models/tiny-flow:rollout?steps=2", {"Content-Type": "application/json"}
    whole = client.post(path, content=flow, headers=as_json)
    assert whole.headers["x-trust"] == whole.json()["trust_status"] == none
    accept = {"Accept": "text/event-stream"}
    assert client.post(path, content=flow, headers=as_json | accept).headers["x-trust"] == none


def test_answers_have_the_headers_that_the_document_declares(
    repository: Path, tmp_path: Path
) -> None:
    input_ = fields(1).tolist()
    cotangent = {"cotangent": np.ones((1, 1, 32)).tolist()}
    with serving(repository, tmp_path / "log") as client:
        paths = client.get("/openapi.json").json()["paths"]
        for verb, query, more in (
            ("predict", "", {}), ("vjp", "", cotangent), ("rollout", "?steps=2", {}),
        ):  # fmt: skip
            declared = {
                name.lower()
                for name in paths[f"/v1/models/{{name}}:{verb}"]["post"]["responses"]["200"][
                    "headers"
                ]
            }
            body = {"inputs": {"input": input_, **more}}
            answer = client.post(f"/v1/models/tiny-warned:{verb}{query}", json=body)
            assert answer.status_code == 200, answer.text
            sent = {name for name in answer.headers if name.startswith(("x-", "server-timing"))}
            assert sent - {"x-request-id"} <= declared, verb
            # These say that something is amiss.
            assert declared - {"x-trust", "x-warning"} <= sent, verb


def test_rollout_frames_have_signals_and_warnings_also_of_its_length(
    repository: Path, tmp_path: Path
) -> None:
    good, bad = good_and_bad()
    with serving(repository, tmp_path / "log") as client, Client(str(client.base_url)) as user:
        check_rollout(user, good, bad)
        whole = client.post(
            "/v1/models/tiny-warned:rollout?steps=6&frames=3",
            json={"inputs": {"input": np.concatenate([good, bad]).tolist()}},
        )
        assert np.shape(whole.json()["trust"]["input_distance"]) == (2, 2)
        horizon, distance = whole.json()["warnings"]
        assert "step 6, model tiny-warned was evaluated up to step 4" in horizon
        assert re.match(r"step 3: input_distance \S+ of field .*is above 1.5", distance)
        assert "x-trust" not in whole.headers
        assert "trust_status" not in whole.json()
        assert whole.headers["x-warning"] == f"{horizon}; {distance}"
        assert float(whole.headers["x-trust-input-distance"]) > LIMIT
        found = counts(client.get("/metrics").text, "tiny-warned")
        assert found["input_distance"] == 2.0
        assert found["horizon"] == 3.0


def check_rollout(user: Client, good: NDArray[np.float32], bad: NDArray[np.float32]) -> None:
    both = np.concatenate([good, bad])
    with pytest.warns(PredictionWarning) as caught:
        frames = list(user.rollout("tiny-warned", both, 6))
    horizon, distance = (str(one.message) for one in caught)
    assert "step 6, model tiny-warned was evaluated up to step 4: its error after" in horizon
    assert re.match(r"step 1: input_distance \S+ of field 1 .*is above 1.5", distance)
    assert [set(frame.trust) for frame in frames] == [set(NAMES)] * 6
    assert frames[0].trust["input_distance"] > LIMIT
    assert [len(frame.warnings) for frame in frames] == [1, 0, 0, 0, 0, 0]
    # a resumed rollout ends at the same step
    with pytest.warns(PredictionWarning, match="evaluated up to step 4"):
        list(user.rollout("tiny-warned", good, 6, start=5))


def test_warnings_cross_processes(service: Service) -> None:
    good, bad = good_and_bad()
    with Client(service.url) as client:
        check_rollout(client, good, bad)
        with pytest.warns(PredictionWarning, match="input_distance") as caught:
            client.predict("tiny-warned", bad)
        assert caught[0].filename == __file__
    total = partial(service.total, "turbofno_prediction_warnings_total", model="tiny-warned")
    assert total(reason="input_distance") == 2
    assert total(reason="horizon") == 2
    assert total(reason="residual") == 0
