"""The Open Inference Protocol beyond the conformance suite: requests at the engine, limits, settings, statistics."""

from __future__ import annotations

import asyncio
import gc
import json
import threading
import time
from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.http.fake_engine import FakeEngine
from tests.service.http.live import connected, listening
from tests.service.http.serving import application, serving
from tests.service.waiting import until
from turbofno.service.codec import oip_binary
from turbofno.service.engine.interface import ModelCounters
from turbofno.service.errors import QueueFull, Unavailable
from turbofno.service.http import oip_infer as oip

FIELDS = np.random.default_rng(0).normal(size=(2, 1, 16)).astype("<f4")
PATH = "/v2/models/tiny-1d/infer"
HEADER = "Inference-Header-Content-Length"
CONTROL = {"model_control": True}


def call(method: str, path: str, *, settings: dict[str, Any] | None = None, **what: Any) -> Any:
    """Send one request to a fresh application; return the response and the engine."""

    async def run() -> tuple[httpx.Response, FakeEngine]:
        async with serving(**(settings or {})) as (client, engine):
            return await client.request(method, path, **what), engine

    return asyncio.run(run())


def body(fields: np.ndarray[Any, Any] = FIELDS, **top: Any) -> dict[str, Any]:
    entry = {"name": "input", "shape": list(fields.shape), "datatype": "FP32"}
    return {"inputs": [entry | {"data": fields.reshape(-1).tolist()}]} | top


def binary(fields: np.ndarray[Any, Any] = FIELDS, **top: Any) -> dict[str, Any]:
    """Content and headers of a request with a raw tensor."""
    entry = {
        "name": "input",
        "shape": list(fields.shape),
        "datatype": "FP32",
        "parameters": {"binary_data_size": fields.nbytes},
    }
    text = json.dumps({"inputs": [entry]} | top).encode()
    return {"content": text + fields.tobytes(), "headers": {HEADER: str(len(text))}}


def error(response: httpx.Response) -> str:
    assert response.headers["content-type"] == "application/json"
    document = response.json()
    assert list(document) == ["error"]
    return str(document["error"])


def test_infer_json_answers_the_engines_numbers() -> None:
    response, engine = call("POST", PATH, json=body())
    document = response.json()
    (output,) = document["outputs"]
    assert (document["model_name"], document["model_version"]) == ("tiny-1d", "2")
    assert (output["name"], output["datatype"], output["shape"]) == ("output", "FP32", [2, 2, 16])
    values = np.array(output["data"], "f4").reshape(output["shape"])
    np.testing.assert_array_equal(values, FakeEngine.answer(FIELDS, 2))
    np.testing.assert_array_equal(engine.requests[0].fields, FIELDS)


def test_infer_binary_answers_bit_for_bit() -> None:
    response, _ = call("POST", PATH, **binary(parameters={"binary_data_output": True}))
    length = int(response.headers[HEADER])
    (output,) = json.loads(response.content[:length])["outputs"]
    assert output["parameters"] == {"binary_data_size": 256}
    assert response.content[length:] == FakeEngine.answer(FIELDS, 2).tobytes()
    assert response.headers["content-type"] == "application/octet-stream"


@pytest.mark.parametrize("pad", range(4))
def test_infer_binary_tensor_is_used_without_a_copy(pad: int) -> None:
    # The tensor is aligned for any length of the JSON.
    _, engine = call("POST", PATH, **binary(id="x" * pad))
    fields = engine.requests[0].fields
    assert fields.base is not None
    assert fields.flags.aligned
    assert fields.ctypes.data % 64 == 0
    np.testing.assert_array_equal(fields, FIELDS)


def test_infer_priority_and_timeout_reach_the_engine() -> None:
    before = time.monotonic()
    _, engine = call("POST", PATH, json=body(parameters={"priority": 2, "timeout": 250_000}))
    (request,) = engine.requests
    assert request.priority == 2
    assert request.deadline is not None
    assert before + 0.25 <= request.deadline <= time.monotonic() + 0.25


@pytest.mark.parametrize("parameters", [{}, {"timeout": 0}, {"timeout": 10**12}])
def test_infer_timeout_never_lengthens_the_servers(parameters: dict[str, int]) -> None:
    before = time.monotonic()
    _, engine = call("POST", PATH, json=body(parameters=parameters))
    deadline = engine.requests[0].deadline
    assert engine.requests[0].priority == 0
    assert deadline is not None
    assert before + 30 <= deadline <= time.monotonic() + 30


def test_infer_raw_body_takes_its_shape_from_the_query() -> None:
    raw = {"content": FIELDS.tobytes(), "headers": {HEADER: "0"}}
    response, _ = call("POST", f"{PATH}?shape=2,1,16", **raw)
    length = int(response.headers[HEADER])
    assert response.content[length:] == FakeEngine.answer(FIELDS, 2).tobytes()
    for query in ("", "?shape=2,1,17", "?shape=x"):
        response, engine = call("POST", PATH + query, **raw)
        assert response.status_code == 400
        assert "shape=" in error(response) or "needs" in error(response)
        assert not engine.requests


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ("version=2", "the path, as in /v2/models/NAME/versions/2/infer"),
        ("tenant=a&output_grid=24", "'output_grid' is no query parameter of /v2: give it in the 'parameters'"),
        ("priority=1", "'parameters' of the JSON"),
    ],
)  # fmt: skip
def test_a_parameter_of_ours_in_the_query_is_refused_and_not_ignored(
    query: str, words: str
) -> None:
    response, engine = call("POST", f"{PATH}?{query}", json=body())
    assert response.status_code == 400
    assert words in error(response)
    assert not engine.requests


@pytest.mark.parametrize(
    ("fields", "status", "words"),
    [
        (np.zeros((1, 2, 16), "<f4"), 422, "expects 1 (u0)"),
        (np.zeros((1, 16), "<f4"), 422, "rank 2"),
        (np.zeros((1, 1, 7), "<f4"), 422, "axis 0 has 7 points, allowed are 8 to 64"),
        (np.zeros((0, 1, 16), "<f4"), 422, "at least one field"),
        (np.zeros((4097, 1, 16), "<f4"), 413, "TURBOFNO_MAX_FIELDS_PER_REQUEST"),
        (np.full((1, 1, 16), np.inf, "<f4"), 422, "channel 'u0', grid point [0] is inf"),
    ],
)
def test_infer_field_the_model_cannot_take(
    fields: np.ndarray[Any, Any], status: int, words: str
) -> None:
    response, engine = call("POST", PATH, **binary(fields))
    assert response.status_code == status
    assert words in error(response)
    assert not engine.requests


def test_infer_nonfinite_answer_is_refused_as_json_only() -> None:
    fields = np.full((1, 1, 16), 3e38, "<f4")
    with np.errstate(over="ignore"):
        response, _ = call("POST", PATH, **binary(fields))
        assert response.status_code == 422
        assert "binary_data" in error(response)
        response, _ = call("POST", PATH, **binary(fields, parameters={"binary_data_output": True}))
    assert response.status_code == 200


def test_infer_json_part_over_its_limit_points_to_binary() -> None:
    for what in ({"json": body()}, binary(id="x" * 1000)):
        response, _ = call("POST", PATH, settings={"max_json_bytes": 500}, **what)
        assert response.status_code == 413
        assert "TURBOFNO_MAX_JSON_BYTES" in error(response)


def test_infer_header_length_given_twice_is_refused() -> None:
    request = binary()
    length = request["headers"][HEADER]
    request["headers"] = [(HEADER, length), (HEADER, length)]
    response, _ = call("POST", PATH, **request)
    assert response.status_code == 400
    assert "2 times" in error(response)


def test_infer_queue_full_says_when_to_retry() -> None:
    async def run() -> httpx.Response:
        async with serving() as (client, engine):
            engine.error = QueueFull("full", retry_after=4.2)
            return await client.post(PATH, json=body())

    response = asyncio.run(run())
    assert (response.status_code, response.headers["retry-after"]) == (429, "5")
    assert error(response) == "full"


@pytest.mark.parametrize(
    ("accept", "coding"), [("gzip", "gzip"), ("deflate", "deflate"), ("gzip, deflate, br", None)]
)
def test_infer_is_compressed_only_on_explicit_request(accept: str, coding: str | None) -> None:
    response, _ = call("POST", PATH, json=body(), headers={"Accept-Encoding": accept})
    assert response.headers.get("content-encoding") == coding
    assert response.json()["model_name"] == "tiny-1d"


def test_metadata_describes_one_tensor_each_way() -> None:
    for path, versions in (("tiny-2d", ["1"]), ("tiny-2d/versions/1", ["1"])):
        response, _ = call("GET", f"/v2/models/{path}")
        assert response.json() == {
            "name": "tiny-2d",
            "versions": versions,
            "platform": "turbofno_safetensors",
            "inputs": [{"name": "input", "datatype": "FP32", "shape": [-1, 1, -1, -1]}],
            "outputs": [{"name": "output", "datatype": "FP32", "shape": [-1, 2, -1, -1]}],
            "parameters": {
                "backend": "cuda",
                "precision": "fp32",
                "asked_precision": "bf16",
                "execution": "graph",
                "trust": "no trust signals, not evaluated",
            },
        }
    response, _ = call("GET", "/v2/models/tiny-1d")
    assert response.json()["versions"] == ["1", "2"]


def test_metadata_of_the_server_with_and_without_a_slash() -> None:
    for path in ("/v2", "/v2/"):
        response, _ = call("GET", path)
        assert response.json()["name"] == "turbofno"
        assert "binary_tensor_data" in response.json()["extensions"]


def test_config_states_grid_limits_and_batching() -> None:
    response, _ = call(
        "GET",
        "/v2/models/tiny-2d/config",
        settings={"max_batch_size": 3, "max_queue_delay_seconds": 0.002},
    )
    document = response.json()
    assert document["max_batch_size"] == 4096
    assert document["input"][0]["dims"] == [1, -1, -1]
    assert document["output"][0]["dims"] == [2, -1, -1]
    assert document["dynamic_batching"] == {
        "preferred_batch_size": [3],
        "max_queue_delay_microseconds": 2000,
    }
    assert document["parameters"]["grid_minimum"] == {"string_value": "8,8"}
    assert document["parameters"]["grid_maximum"] == {"string_value": "64,64"}


@pytest.mark.parametrize(
    "path",
    [
        "/v2",
        "/v2/health/live",
        "/v2/health/ready",
        "/v2/models/{model}",
        "/v2/models/{model}/ready",
        "/v2/models/{model}/stats",
    ],
)
def test_documents_have_the_members_of_their_schema(path: str) -> None:
    openapi = application()[0].openapi()
    content = openapi["paths"][path]["get"]["responses"]["200"]["content"]
    name = content["application/json"]["schema"]["$ref"].rpartition("/")[2]
    response, _ = call("GET", path.format(model="tiny-1d"))
    assert list(response.json()) == openapi["components"]["schemas"][name]["required"]


def test_statistics_are_the_engines_totals() -> None:
    response, _ = call("GET", "/v2/models/tiny-1d/versions/1/stats")
    (model,) = response.json()["model_stats"]
    zero = {"count": 0, "ns": 0}
    assert model == {
        "name": "tiny-1d",
        "version": "1",
        "last_inference": 1234,
        "inference_count": 5,
        "execution_count": 2,
        "inference_stats": {
            "success": {"count": 3, "ns": 30},
            "fail": {"count": 1, "ns": 5},
            "queue": {"count": 3, "ns": 6},
            "compute_input": {"count": 3, "ns": 7},
            "compute_infer": {"count": 3, "ns": 8},
            "compute_output": {"count": 3, "ns": 9},
            "cache_hit": zero,
            "cache_miss": zero,
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": {"count": 1, "ns": 0},
                "compute_infer": {"count": 1, "ns": ns},
                "compute_output": {"count": 1, "ns": 0},
            }
            for size, ns in ((1, 20), (4, 80))
        ],
        "memory_usage": [],
    }
    response, _ = call("GET", "/v2/models/stats")
    names = [(m["name"], m["version"]) for m in response.json()["model_stats"]]
    assert names == [("tiny-1d", "1"), ("tiny-1d", "2"), ("tiny-2d", "1")]


def test_statistics_leave_out_a_model_that_is_unloaded_while_they_are_read() -> None:
    async def run() -> httpx.Response:
        async with serving() as (client, engine):
            counters = engine.counters

            async def unloading(model: str, version: str) -> ModelCounters:
                if (model, version) == ("tiny-1d", "2"):
                    raise Unavailable("model 'tiny-1d' version 2 is UNLOADING (unloaded)")
                return await counters(model, version)

            engine.counters = unloading  # type: ignore[method-assign]
            return await client.get("/v2/models/stats")

    response = asyncio.run(run())
    assert response.status_code == 200, response.text
    names = [(m["name"], m["version"]) for m in response.json()["model_stats"]]
    assert names == [("tiny-1d", "1"), ("tiny-2d", "1")]


@pytest.mark.parametrize(("content", "count"), [(b"", 4), (b"{}", 4), (b'{"ready": true}', 3)])
def test_repository_index_lists_all_or_the_ready(content: bytes, count: int) -> None:
    response, _ = call("POST", "/v2/repository/index", content=content)
    assert len(response.json()) == count
    if count == 4:
        assert response.json()[-1] == {
            "name": "broken",
            "version": "1",
            "state": "UNAVAILABLE",
            "reason": "bad weights",
        }


@pytest.mark.parametrize("content", [b"[", b"[]", b'{"ready": 1}'])
def test_repository_index_bad_body_is_refused(content: bytes) -> None:
    response, _ = call("POST", "/v2/repository/index", content=content)
    assert response.status_code == 400
    error(response)


def test_load_and_unload_reach_the_engine_with_an_empty_answer() -> None:
    for action, content in (("load", b""), ("load", b"{}"), ("unload", b"")):
        path = f"/v2/repository/models/tiny-1d/{action}"
        response, engine = call("POST", path, settings=CONTROL, content=content)
        assert (response.status_code, response.content) == (200, b"")
        assert (engine.loaded or engine.unloaded) == ["tiny-1d"]


def test_load_continues_when_its_client_disconnects(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with listening(**CONTROL) as (port, engine, _):
            load = engine.load

            async def held_load(model: str) -> None:
                engine.started.set()
                await engine.release.wait()
                await load(model)

            monkeypatch.setattr(engine, "load", held_load)
            async with connected(port) as (_, writer):
                path = "/v2/repository/models/tiny-1d/load"
                writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                await engine.started.wait()
            await asyncio.sleep(0.1)
            engine.release.set()
            await until(lambda: engine.loaded == ["tiny-1d"], 5)

    asyncio.run(main())


@pytest.mark.parametrize("action", ["load", "unload"])
def test_a_change_that_fails_when_its_client_has_left_is_logged_in_one_line(
    action: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    unhandled: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, about: unhandled.append(about))
        async with listening(**CONTROL) as (port, engine, _):
            failed = asyncio.Event()

            async def failing(_: str) -> None:
                engine.started.set()
                await engine.release.wait()
                failed.set()
                raise Unavailable("the model's file is damaged")

            monkeypatch.setattr(engine, action, failing)
            async with connected(port) as (_, writer):
                path = f"/v2/repository/models/tiny-1d/{action}"
                writer.write(f"POST {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
                await engine.started.wait()
            await asyncio.sleep(0.1)
            engine.release.set()
            await failed.wait()
            await asyncio.sleep(0)
            gc.collect()

    asyncio.run(main())
    assert unhandled == []
    (line,) = [one for one in caplog.records if "its client has left" in one.message]
    assert line.message.endswith("the model's file is damaged")
    assert not line.exc_info


@pytest.mark.parametrize("action", ["load", "unload"])
def test_load_refusals(action: str) -> None:
    path = f"/v2/repository/models/{{}}/{action}"
    for what, settings, status in (
        ({"url": "tiny-1d"}, None, 403),
        ({"url": "nope"}, CONTROL, 404),
        ({"url": "tiny-1d", "json": {"parameters": {"config": "{}"}}}, CONTROL, 400),
        ({"url": "tiny-1d", "json": {"parameters": 3}}, CONTROL, 400),
        ({"url": "tiny-1d", "content": b"{"}, CONTROL, 400),
    ):
        more = {key: value for key, value in what.items() if key != "url"}
        response, engine = call("POST", path.format(what["url"]), settings=settings, **more)
        assert response.status_code == status
        assert error(response)
        assert not engine.loaded + engine.unloaded


def test_ready_is_503_until_the_engine_is() -> None:
    async def run() -> httpx.Response:
        async with serving() as (client, engine):
            engine.ready = False
            return await client.get("/v2/health/ready")

    response = asyncio.run(run())
    assert response.status_code == 503
    assert "not ready" in error(response)


def test_extensions_not_offered_are_refused_with_a_reason() -> None:
    for path in (
        "systemsharedmemory/region/r/register",
        "cudasharedmemory/region/r/register",
        "trace/setting",
        "models/tiny-1d/trace/setting",
        "logging",
    ):
        response, _ = call("POST", f"/v2/{path}", json={})
        assert response.status_code == 501
        assert error(response)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v2/nope", 404), ("GET", PATH, 405), ("POST", "/v2/models/nope/infer", 404)],
)
def test_errors_are_in_the_protocols_form(method: str, path: str, status: int) -> None:
    response, _ = call(method, path, json=body())
    assert response.status_code == status
    error(response)


@pytest.mark.parametrize(
    ("request_of", "count", "thread"),
    [
        (lambda fields: {"json": body(fields)}, 1, "MainThread"),
        (lambda fields: {"json": body(fields)}, 1250, "codec"),
        (lambda fields: binary(fields, parameters={"binary_data_output": True}), 250, "MainThread"),
        (lambda fields: binary(fields, parameters={"binary_data_output": True}), 90_000, "codec"),
    ],
    ids=["short JSON", "long JSON", "short binary", "long binary"],
)
def test_infer_long_body_is_decoded_and_encoded_off_the_event_loop(
    monkeypatch: pytest.MonkeyPatch, request_of: Any, count: int, thread: str
) -> None:
    threads = []

    def noting(function: Any) -> Any:
        def noted(*args: Any, **kwargs: Any) -> Any:
            threads.append(threading.current_thread().name.partition("_")[0])
            return function(*args, **kwargs)

        return noted

    for module, name in ((oip, "_decode"), (oip_binary, "encode")):
        monkeypatch.setattr(module, name, noting(getattr(module, name)))
    many = ("max_fields_per_request", "max_queued_fields_per_model", "max_queued_fields")
    response, _ = call(
        "POST",
        PATH,
        settings=dict.fromkeys(many, 100_000),
        **request_of(np.full((count, 1, 16), 1 / 3, "<f4")),
    )
    assert response.status_code == 200, response.text
    assert threads == [thread, thread]
