"""Predictions: formats, versions, headers, limits and errors."""

from __future__ import annotations

import asyncio
import io
import math
import re
import threading
import time
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import safetensors.numpy

from tests.service.http.fake_engine import FakeEngine
from tests.service.http.serving import application, serving
from turbofno.service.codec.negotiate import CODECS
from turbofno.service.errors import DeadlineExceeded, InferenceFailed, QueueFull, Unavailable
from turbofno.service.http import predict

PATH = "/v1/models/tiny-1d:predict"
FIELDS = np.random.default_rng(0).normal(size=(3, 1, 16)).astype("f4")
JSON, NPY = "application/json", "application/x-npy"
NPZ, SAFETENSORS = "application/x-npz", "application/vnd.safetensors"


def written(media_type: str, array: np.ndarray[Any, Any], name: str = "input") -> bytes:
    buffer = io.BytesIO()
    if media_type == NPY:
        np.save(buffer, array)
    elif media_type == NPZ:
        np.savez_compressed(buffer, **{name: array})
    elif media_type == SAFETENSORS:
        return safetensors.numpy.save({name: array})
    else:
        import json

        return json.dumps({"inputs": {name: array.tolist()}}).encode()
    return buffer.getvalue()


def read(response: httpx.Response, name: str = "output") -> np.ndarray[Any, Any]:
    assert response.status_code == 200, response.text
    media_type = response.headers["content-type"]
    if media_type == NPY:
        return np.load(io.BytesIO(response.content))  # type: ignore[no-any-return]
    if media_type == NPZ:
        return np.load(io.BytesIO(response.content))[name]  # type: ignore[no-any-return]
    if media_type == SAFETENSORS:
        return safetensors.numpy.load(response.content)[name]
    return np.array(response.json()["outputs"][name], dtype="f4")


def post(path: str = PATH, *, settings: dict[str, Any] | None = None, **what: Any) -> Any:
    """Send one request to a fresh application; return the response and the engine."""

    async def run() -> tuple[httpx.Response, FakeEngine]:
        async with serving(**(settings or {})) as (client, engine):
            return await client.post(path, **what), engine

    return asyncio.run(run())


def problem(response: httpx.Response) -> dict[str, Any]:
    assert response.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = response.json()
    assert document["status"] == response.status_code
    return document


@pytest.mark.parametrize("sent", [codec.media_type for codec in CODECS])
@pytest.mark.parametrize("asked", [None, *(codec.media_type for codec in CODECS)])
def test_predict_every_form_in_and_out(sent: str, asked: str | None) -> None:
    headers = {"Content-Type": sent} | ({"Accept": asked} if asked else {})
    response, _ = post(content=written(sent, FIELDS), headers=headers)
    assert response.headers["content-type"] == (asked or sent)
    np.testing.assert_array_equal(read(response), FakeEngine.answer(FIELDS, 2))


def test_predict_json_by_channel_answers_by_channel_with_units() -> None:
    response, _ = post(json={"inputs": {"u0": FIELDS[0, 0].tolist()}})
    document = response.json()
    assert (document["model"], document["version"]) == ("tiny-1d", "2")
    assert document["units"] == {"u": "1", "v": "m/s"}
    for name, expected in zip("uv", FakeEngine.answer(FIELDS[:1], 2)[0], strict=True):
        np.testing.assert_array_equal(np.array(document["outputs"][name], "f4"), expected)


def test_predict_single_field_is_answered_without_a_batch_axis() -> None:
    response, _ = post(content=written(NPY, FIELDS[0]), headers={"Content-Type": NPY})
    np.testing.assert_array_equal(read(response), FakeEngine.answer(FIELDS[:1], 2)[0])


@pytest.mark.parametrize(
    ("path", "version"),
    [
        (PATH, "2"),
        ("/v1/models/tiny-1d/versions/1:predict", "1"),
        ("/v1/models/tiny-1d/versions/2:predict", "2"),
        ("/v1/models/tiny-1d%3Apredict", "2"),
    ],
)
def test_predict_version_is_the_paths_or_the_newest(path: str, version: str) -> None:
    response, engine = post(path, json={"inputs": {"input": FIELDS.tolist()}})
    assert response.headers["x-model-version"] == version
    assert [request.version for request in engine.requests] == [version]


def test_predict_headers_have_batch_size_times_and_request_id() -> None:
    response, engine = post(
        json={"inputs": {"input": FIELDS.tolist()}}, headers={"X-Request-Id": "r-1"}
    )
    assert response.headers["x-request-id"] == "r-1"
    assert engine.requests[0].request_id == "r-1"
    assert response.headers["x-batch-size"] == str(len(FIELDS))
    times = dict(re.findall(r"(\w+);dur=([0-9.]+)", response.headers["server-timing"]))
    assert set(times) == {"decode", "queue", "compute", "encode"}
    assert float(times["queue"]) == pytest.approx(2.0)
    assert float(times["compute"]) == pytest.approx(3.0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [({}, 30.0), ({"X-Deadline-Ms": "250"}, 0.25), ({"X-Deadline-Ms": "9e9"}, 30)],
)
def test_predict_deadline_shortens_the_servers(headers: dict[str, str], seconds: float) -> None:
    before = time.monotonic()
    _, engine = post(json={"inputs": {"input": FIELDS.tolist()}}, headers=headers)
    deadline = engine.requests[0].deadline
    assert deadline is not None
    assert before + seconds <= deadline <= time.monotonic() + seconds


@pytest.mark.parametrize("headers", [{}, {"X-Deadline-Ms": "inf"}])
def test_predict_infinite_deadline_is_none(headers: dict[str, str]) -> None:
    settings = {"request_deadline_seconds": math.inf}
    _, engine = post(
        settings=settings, json={"inputs": {"input": FIELDS.tolist()}}, headers=headers
    )
    assert engine.requests[0].deadline is None


def test_predict_priority_reaches_the_engine() -> None:
    _, engine = post(f"{PATH}?priority=3", json={"inputs": {"input": FIELDS.tolist()}})
    assert engine.requests[0].priority == 3


@pytest.mark.parametrize(
    "what",
    [
        {"headers": {"X-Deadline-Ms": "0"}},
        {"headers": {"X-Deadline-Ms": "nan"}},
        {"headers": {"X-Deadline-Ms": "soon"}},
        {"params": {"priority": "-1"}},
        {"params": {"priority": "high"}},
        {"params": {"version": "1"}},
    ],
    ids=str,
)
def test_predict_bad_parameter_is_refused(what: dict[str, Any]) -> None:
    response, engine = post(json={"inputs": {"input": FIELDS.tolist()}}, **what)
    assert response.status_code == 400
    assert problem(response)["title"] == "Bad request"
    assert not engine.requests


@pytest.mark.parametrize(
    ("content_type", "body", "status"),
    [
        (None, b"{}", 415),
        ("application/octet-stream", FIELDS.tobytes(), 415),
        ("application/x-www-form-urlencoded", b"{}", 415),
        (JSON, b"", 400),
        (JSON, b"{", 400),
        (JSON, b'{"inputs": {"u0": [1, "2"]}}', 422),
        (JSON, b'{"inputs": {"u0": [1, 2]}}', 422),
        (JSON, b'{"inputs": {"wrong": [1, 2]}}', 422),
        (NPY, b"", 400),
        (NPY, written(NPY, FIELDS)[:-1], 400),
        (NPY, written(NPY, np.zeros((1, 2, 16), "f4")), 422),
        (NPY, written(NPY, np.zeros((1, 1, 7), "f4")), 422),
        (NPY, written(NPY, np.zeros((1, 1, 65), "f4")), 422),
        (NPY, written(NPY, np.full((1, 1, 16), np.nan, "f4")), 422),
        (NPY, written(NPY, np.zeros((4097, 1, 8), "f4")), 413),
        (NPZ, b"PK\x03\x04", 400),
        (SAFETENSORS, b"\xff" * 16, 400),
        (SAFETENSORS, written(SAFETENSORS, np.zeros((1, 1, 16), "i4")), 422),
    ],
)
def test_predict_bad_body_is_a_problem(content_type: str | None, body: bytes, status: int) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    response, engine = post(content=body, headers=headers)
    assert response.status_code == status, response.text
    assert problem(response)["detail"]
    assert not engine.requests


def test_predict_two_content_types_are_refused() -> None:
    headers = [("Content-Type", JSON), ("Content-Type", NPY)]
    response, engine = post(content=written(JSON, FIELDS), headers=headers)
    assert response.status_code == 415
    assert not engine.requests


def test_predict_archive_counts_by_its_inflated_size() -> None:
    async def run() -> list[int]:
        limits = dict.fromkeys(("max_body_bytes", "max_json_bytes", "max_inflight_bytes"), 3 * 4096)
        large = np.zeros((32, 1, 64), "f4")  # 8192 bytes
        async with serving(**limits) as (client, engine):
            engine.held = True

            async def send(media_type: str, array: np.ndarray[Any, Any]) -> int:
                body, headers = written(media_type, array), {"Content-Type": media_type}
                return (await client.post(PATH, content=body, headers=headers)).status_code

            first = asyncio.create_task(send(NPZ, large))
            await asyncio.wait_for(engine.started.wait(), 5)
            second, third = (
                asyncio.create_task(send(*what)) for what in ((NPZ, large), (NPY, FIELDS))
            )
            await asyncio.wait_for(second, 5)
            engine.release.set()
            return [await first, await second, await third]

    assert asyncio.run(run()) == [200, 429, 200]


def test_predict_unsupported_accept_is_refused_before_work() -> None:
    response, engine = post(json={"inputs": {"u0": [0.0] * 16}}, headers={"Accept": "text/html"})
    assert response.status_code == 406
    assert SAFETENSORS in problem(response)["detail"]
    assert not engine.requests


@pytest.mark.parametrize(
    "path", ["/v1/models/nope:predict", "/v1/models/tiny-1d/versions/9:predict"]
)
def test_predict_unknown_model_is_not_found(path: str) -> None:
    response, _ = post(path, json={"inputs": {"u0": [0.0] * 16}})
    assert response.status_code == 404
    problem(response)


def test_predict_get_is_not_allowed() -> None:
    async def run() -> httpx.Response:
        async with serving() as (client, _):
            return await client.get(PATH)

    response = asyncio.run(run())
    assert response.status_code == 405
    problem(response)


def test_predict_json_over_its_limit_points_to_binary() -> None:
    response, _ = post(json={"inputs": {"u0": [0.125] * 1000}}, settings={"max_json_bytes": 1000})
    assert response.status_code == 413
    assert "TURBOFNO_MAX_JSON_BYTES" in problem(response)["detail"]


def test_predict_too_many_fields_names_the_setting() -> None:
    response, _ = post(
        content=written(NPY, FIELDS),
        headers={"Content-Type": NPY},
        settings={"max_fields_per_request": 2},
    )
    assert response.status_code == 413
    assert "TURBOFNO_MAX_FIELDS_PER_REQUEST" in problem(response)["detail"]


@pytest.mark.parametrize(
    ("failure", "status", "retry_after"),
    [
        (QueueFull("full", retry_after=2.5), 429, "3"),
        (Unavailable("draining", retry_after=1.0), 503, "1"),
        (DeadlineExceeded("late"), 504, None),
        (InferenceFailed("broke"), 500, None),
    ],
    ids=lambda value: str(value),
)
def test_predict_engine_failure_becomes_its_status(
    failure: Exception, status: int, retry_after: str | None
) -> None:
    async def run() -> httpx.Response:
        async with serving() as (client, engine):
            engine.error = failure
            return await client.post(PATH, json={"inputs": {"u0": [0.0] * 16}})

    response = asyncio.run(run())
    assert response.status_code == status
    assert response.headers.get("retry-after") == retry_after


def test_predict_client_that_leaves_cancels_the_work() -> None:
    async def run() -> tuple[int, FakeEngine]:
        app, engine = application()
        engine.held = True
        body = written(NPY, FIELDS)
        messages: asyncio.Queue[dict[str, Any]] = asyncio.Queue()
        messages.put_nowait({"type": "http.request", "body": body, "more_body": False})
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        scope = {
            "type": "http",
            "method": "POST",
            "path": PATH,
            "raw_path": PATH.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": b"",
            "http_version": "1.1",
            "headers": [
                (b"host", b"localhost"),
                (b"content-type", NPY.encode()),
                (b"content-length", str(len(body)).encode()),
            ],
        }
        serving_it = asyncio.create_task(app(scope, messages.get, send))
        await asyncio.wait_for(engine.started.wait(), 5)
        messages.put_nowait({"type": "http.disconnect"})
        await asyncio.wait_for(serving_it, 5)
        return sent[0]["status"], engine

    status, engine = asyncio.run(run())
    assert status == 499
    assert engine.cancelled == 1


OIP = "/v2/models/tiny-1d/infer"
TENSOR = orjson.dumps(
    {
        "inputs": [
            {
                "name": "input",
                "shape": FIELDS.shape,
                "datatype": "FP32",
                "parameters": {"binary_data_size": FIELDS.nbytes},
            }
        ]
    }
).ljust(256)


@pytest.mark.parametrize(
    ("path", "headers", "body"),
    [
        (PATH, {"content-type": NPY}, written(NPY, FIELDS)),
        (f"{OIP}?shape=3,1,16", {"inference-header-content-length": "0"}, FIELDS.tobytes()),
        (OIP, {"inference-header-content-length": "256"}, TENSOR + FIELDS.tobytes()),
    ],
    ids=["npy", "raw", "tensor"],
)
def test_predict_keeps_no_body_that_the_engine_has_elsewhere(
    path: str, headers: dict[str, str], body: bytes
) -> None:
    async def run() -> httpx.Response:
        async with serving() as (client, engine):
            engine.held = True
            asked = asyncio.create_task(client.post(path, content=body, headers=headers))
            await asyncio.wait_for(engine.started.wait(), 5)
            (request,), (given,) = engine.requests, engine.given
            assert given() is not None
            request.fields = request.fields.copy()
            assert given() is None
            engine.release.set()
            return await asked

    assert asyncio.run(run()).status_code == 200


@pytest.mark.parametrize(
    ("media_type", "count", "thread"),
    [
        (JSON, 1, "MainThread"),
        (JSON, 1250, "codec"),
        (NPY, 250, "MainThread"),
        (NPY, 90_000, "codec"),
        (NPZ, 1, "codec"),
        (SAFETENSORS, 90_000, "codec"),
    ],
)
def test_predict_long_body_is_decoded_and_encoded_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, media_type: str, count: int, thread: str
) -> None:
    threads = []

    def noting(function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread().name)
            return function(*args, **kwargs)

        return noted

    monkeypatch.setattr(predict, "_decode", noting(predict._decode))
    for codec in CODECS:
        # Codecs are frozen.
        monkeypatch.setitem(vars(codec), "encode", noting(codec.encode))
    response, _ = post(
        content=written(media_type, np.full((count, 1, 16), 1 / 3, "f4")),
        headers={"Content-Type": media_type},
        settings=dict.fromkeys(
            ("max_fields_per_request", "max_queued_fields_per_model", "max_queued_fields"), 100_000
        ),
    )
    assert response.status_code == 200, response.text
    # An archive is decoded on a thread; the answer of a single field is short.
    expected = [thread, "MainThread" if media_type == NPZ else thread]
    assert [name.partition("_")[0] for name in threads] == expected
