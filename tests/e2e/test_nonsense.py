"""Fields unlike the training data give warnings on every route; fields like it give none."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import httpx
import numpy as np
import pytest

from turbofno_client import BadInput, Client, PredictionWarning

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tests.e2e.server_process import ServerProcess

MODELS = ("burgers-1d", "darcy-2d", "navier-stokes-2d", "nagumo-3d")
POSITIVE = ("darcy-2d", "nagumo-3d")


def drawn(server: ServerProcess, model: str) -> NDArray[np.float32]:
    """A field [channels, *grid] like the training data."""
    sample = httpx.get(f"{server.url}/v1/models/{model}/sample?seed=5", timeout=60)
    return np.asarray(np.load(io.BytesIO(sample.content)), np.float32)


def as_json(server: ServerProcess, path: str, body: object) -> httpx.Response:
    return httpx.post(server.url + path, json=body, timeout=60)


@pytest.mark.parametrize("waves", [2, 3])
def test_the_sines_that_readme_once_asked_for_warn_by_both_signals(
    server: ServerProcess, waves: int
) -> None:
    x = np.linspace(0, 1, 1024, endpoint=False, dtype=np.float32)
    field = np.sin(2 * np.pi * waves * x)[None]
    with Client(server.url) as client, pytest.warns(PredictionWarning) as caught:
        client.predict("burgers-1d", field)
    assert [str(one.message).split()[0] for one in caught] == ["input_distance", "residual"]


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.filterwarnings("error::turbofno_client.PredictionWarning")
def test_a_sample_gives_no_warning(server: ServerProcess, model: str) -> None:
    with Client(server.url) as client:
        client.predict(model, drawn(server, model))


NONSENSE = {
    "constant": lambda field: np.full_like(field, 5.0),
    "ten times as large": lambda field: 10 * field,
    "noise": lambda field: field + field.std() * np.random.default_rng(0).normal(size=field.shape),
    "another unit": lambda field: 1000 * field,
}


@pytest.mark.parametrize("what", NONSENSE)
@pytest.mark.parametrize("model", MODELS)
def test_nonsense_warns(server: ServerProcess, model: str, what: str) -> None:
    field = NONSENSE[what](drawn(server, model)).astype(np.float32)
    if model in POSITIVE:
        field = np.abs(field) + 1e-3
    with Client(server.url) as client, pytest.warns(PredictionWarning):
        client.predict(model, field)


def test_a_rollout_beyond_its_evaluation_warns(server: ServerProcess) -> None:
    field = drawn(server, "navier-stokes-2d")
    with Client(server.url) as client:
        with pytest.warns(PredictionWarning) as caught:
            next(client.rollout("navier-stokes-2d", field, 41))
        assert "goes to step 41" in str(caught[0].message)
        assert "was evaluated up to step 40" in str(caught[0].message)
        with pytest.warns(PredictionWarning) as caught:
            list(client.rollout("navier-stokes-2d", field + 0.3, 2))
        assert str(caught[0].message).startswith("step 1: input_distance")


def test_a_rollout_that_leaves_the_solution_within_its_evaluation_warns(
    server: ServerProcess,
) -> None:
    """Training and evaluation end at t = 50. From t = 30 on 40 steps reach t = 70, with a normal energy."""
    name, old = "navier-stokes-2d", {"time": 30.0}
    with Client(server.url) as client:
        flow = client.sample(name, 5, parameters=old)
        with pytest.warns(PredictionWarning) as caught:
            (last,) = client.rollout(name, flow, 40, frames="last")
        solution = client.solve(name, seed=5, parameters=old, steps=40)
    assert np.linalg.norm(last.fields - solution) > 0.1 * np.linalg.norm(solution)
    (text,) = (str(one.message) for one in caught)
    assert " residual " in text


def test_a_permeability_that_cannot_be_is_refused_in_a_sentence_by_every_route(
    server: ServerProcess,
) -> None:
    field = drawn(server, "darcy-2d")
    field[0, 2, 3] = -12.0
    words = "channel 'a', grid point [2, 3] is -12, expected above 0"
    path = "/v1/models/darcy-2d"
    named = {"inputs": {"a": field[0].tolist()}}
    cotangent = {"cotangent.u": np.ones_like(field[0]).tolist()}
    tensor = {"name": "input", "datatype": "FP32", "shape": [1, *field.shape]}
    for answer in (
        as_json(server, f"{path}:predict", named),
        as_json(server, f"{path}:solve", named),
        as_json(server, f"{path}:vjp", {"inputs": named["inputs"] | cotangent}),
        as_json(
            server,
            "/v2/models/darcy-2d/infer",
            {"inputs": [tensor | {"data": field.ravel().tolist()}]},
        ),
    ):
        assert answer.status_code == 422, answer.text
        assert words in answer.json().get("detail", answer.text)
    with Client(server.url) as client:
        with pytest.raises(BadInput, match="expected above 0"):
            client.predict("darcy-2d", field)
        (channel,) = client.model("darcy-2d")["input"]["channels"]
    assert channel["exclusive_minimum"] == 0
