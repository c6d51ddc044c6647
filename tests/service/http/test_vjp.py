"""Gradients: formats, parameters and errors."""

from __future__ import annotations

import asyncio
import io
import json
import re
from typing import Any

import httpx
import numpy as np
import pytest
import safetensors.numpy

from tests.draws import generator
from tests.service.http.serving import serving
from tests.service.http.test_predict import JSON, NPY, NPZ, SAFETENSORS, post, problem
from turbofno.service.errors import NotDifferentiable, PayloadTooLarge

PATH = "/v1/models/tiny-1d:vjp"
RNG = generator(__name__)
X = RNG.standard_normal((3, 1, 16), np.float32)
V = RNG.standard_normal((3, 2, 16), np.float32)
BODY = {"inputs": {"input": X.tolist(), "cotangent": V.tolist()}}


def written(media_type: str, **arrays: Any) -> bytes:
    if media_type == SAFETENSORS:
        return safetensors.numpy.save(arrays)
    if media_type == JSON:
        lists = {name: array.tolist() for name, array in arrays.items()}
        return json.dumps({"inputs": lists}).encode()
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)
    return buffer.getvalue()


def read(response: httpx.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    media_type = response.headers["content-type"]
    if media_type == NPY:
        return {"gradient": np.load(io.BytesIO(response.content))}
    if media_type == NPZ:
        return dict(np.load(io.BytesIO(response.content)))
    if media_type == SAFETENSORS:
        return safetensors.numpy.load(response.content)
    return {name: np.array(a, "f4") for name, a in response.json()["outputs"].items()}


@pytest.mark.parametrize("sent", [JSON, NPZ, SAFETENSORS])
@pytest.mark.parametrize("asked", [None, JSON, NPY, NPZ, SAFETENSORS])
def test_every_form_in_and_out(sent: str, asked: str | None) -> None:
    headers = {"Content-Type": sent} | ({"Accept": asked} if asked else {})
    response, engine = post(PATH, content=written(sent, input=X, cotangent=V), headers=headers)
    assert response.headers["content-type"] == (asked or sent)
    found = read(response)
    assert set(found) == {"gradient"}
    np.testing.assert_array_equal(found["gradient"], 2 * X)
    (request,) = engine.requests
    assert request.vjp == ((1, 16), (2, 16))
    assert (request.version, response.headers["x-model-version"]) == ("2", "2")
    assert "compute" in response.headers["server-timing"]


@pytest.mark.parametrize("form", [JSON, NPZ, SAFETENSORS])
def test_output_is_included_on_request(form: str) -> None:
    content = written(form, input=X, cotangent=V)
    response, _ = post(PATH + "?output=true", content=content, headers={"Content-Type": form})
    found = read(response)
    assert set(found) == {"gradient", "output"}
    np.testing.assert_array_equal(found["output"], 2 * V)


def test_an_output_beyond_a_physical_bound_warns_as_the_prediction_does() -> None:
    async def run() -> tuple[httpx.Response, str]:
        async with serving() as (client, engine):
            for key, config in engine.configs.items():
                u, v = config.outputs
                outputs = (u.model_copy(update={"minimum": 1e6}), v)
                engine.configs[key] = config.model_copy(update={"outputs": outputs})
            answer = await client.post(PATH, json=BODY)
            return answer, (await client.get("/metrics")).text

    answer, metrics = asyncio.run(run())
    assert answer.status_code == 200
    words = "field 0, channel 'u', grid point [0] is "
    assert answer.headers["x-warning"].startswith(words)
    (counted,) = re.findall(r'warnings_total{.*reason="bounds".*} (?!0)(.*)', metrics)
    assert float(counted) == 1


def test_channels_by_name_and_units() -> None:
    inputs = {"u0": X[0, 0], "cotangent.u": V[0, 0], "cotangent.v": V[0, 1]}
    response, _ = post(
        PATH + "?output=true&priority=3",
        content=written(JSON, **inputs),
        headers={"Content-Type": JSON},
    )
    document = response.json()
    assert document["units"] == {"gradient.u0": "1", "output.u": "1", "output.v": "m/s"}
    found = read(response)
    np.testing.assert_array_equal(found["gradient.u0"], 2 * X[0, 0])
    np.testing.assert_array_equal(found["output.v"], 2 * V[0, 1])


def test_version_priority_and_deadline_reach_the_engine() -> None:
    path = "/v1/models/tiny-1d/versions/1:vjp?priority=2"
    _, engine = post(path, json=BODY, headers={"X-Deadline-Ms": "500"})
    (request,) = engine.requests
    assert (request.version, request.priority) == ("1", 2)
    assert request.deadline is not None


@pytest.mark.parametrize(
    ("query", "what", "status", "words"),
    [
        ("", {"content": b"x", "headers": {"Content-Type": NPY}}, 415, "carries one array.*cotangent.*x-npz"),
        ("?output=true", {"json": BODY, "headers": {"Accept": NPY}}, 406, "gradient and output are two"),
        ("", {"json": {"inputs": {"input": X.tolist()}}}, 422, "the cotangent is missing"),
        ("", {"json": {"inputs": {"input": X.tolist(), "cotangent": V[:1].tolist()}}}, 422, "the shape of the output"),
        ("", {"content": written(NPZ, input=X, cotangent=V * np.nan), "headers": {"Content-Type": NPZ}}, 422, "must be finite"),
        ("", {"content": written(NPZ, input=X * np.inf, cotangent=V), "headers": {"Content-Type": NPZ}}, 422, "must be finite"),
        ("?outputs=true", {"json": BODY}, 400, "'outputs'.*'output' and 'priority' are known"),
        ("?output=maybe", {"json": BODY}, 400, "output"),
        ("?output_grid=32", {"json": BODY}, 400, "output_grid"),
    ],
)  # fmt: skip
def test_refusals_say_what_was_expected(
    query: str, what: dict[str, Any], status: int, words: str
) -> None:
    response, engine = post(PATH + query, **what)
    document = problem(response)
    assert response.status_code == status, document
    assert re.search(words, document["detail"]), document["detail"]
    assert not engine.requests


@pytest.mark.parametrize(
    ("error", "status", "slug"),
    [
        (NotDifferentiable("no"), 422, "not-differentiable"),
        (PayloadTooLarge("too much"), 413, "payload-too-large"),
    ],
)
def test_engine_errors_become_problems(error: Exception, status: int, slug: str) -> None:
    async def main() -> httpx.Response:
        async with serving() as (client, engine):
            engine.error = error
            return await client.post(PATH, json=BODY)

    document = problem(asyncio.run(main()))
    assert document["status"] == status
    assert document["type"].endswith(slug)


def test_gradients_have_their_own_protocol_label() -> None:
    async def main() -> str:
        async with serving() as (client, _):
            await client.post(PATH, json=BODY)
            return (await client.get("/metrics")).text

    line = 'turbofno_requests_total{code="200",model="tiny-1d",protocol="vjp",version="2"} 1.0'
    assert line in asyncio.run(main())
