"""The protocol on the wire, without a client library: requests that work."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.oip.target import Target
from tests.oip.wire import HEADER, assert_truth, binary_body, post, tensors


@pytest.fixture(scope="module")
def truth(http: httpx.Client, target: Target) -> dict[str, np.ndarray[Any, Any]]:
    """The model's answer to the suite's array, by a plain JSON request."""
    body = json.dumps({"inputs": [target.entry()]})
    return tensors(post(http, target.infer_path, body))


@pytest.fixture(autouse=True)
def _still_well(http: httpx.Client) -> Iterator[None]:
    """Check that the server is ready after each test."""
    yield
    assert http.get("/v2/health/ready").status_code == 200


def test_server_metadata_names_the_server_and_its_extensions(http: httpx.Client) -> None:
    document = http.get("/v2").json()
    assert isinstance(document["name"], str)
    assert isinstance(document["version"], str)
    assert "binary_tensor_data" in document["extensions"]


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready"])
def test_health_is_200(http: httpx.Client, path: str) -> None:
    assert http.get(path).status_code == 200


@pytest.mark.parametrize("versioned", [False, True])
def test_model_ready_and_metadata(http: httpx.Client, target: Target, versioned: bool) -> None:
    path = f"/v2/models/{target.model}" + (f"/versions/{target.version}" if versioned else "")
    assert http.get(f"{path}/ready").status_code == 200
    document = http.get(path).json()
    assert document["name"] == target.model
    assert isinstance(document["platform"], str)
    assert target.version in document["versions"]
    for tensor in (*document["inputs"], *document["outputs"]):
        assert isinstance(tensor["datatype"], str)
        assert all(type(size) is int and size >= -1 for size in tensor["shape"])


def test_model_config_has_what_perf_analyzer_reads(http: httpx.Client, target: Target) -> None:
    if "model_configuration" not in target.extensions:
        pytest.skip("the server does not offer model_configuration")
    document = http.get(f"/v2/models/{target.model}/config").json()
    assert document["name"] == target.model
    assert type(document["max_batch_size"]) is int
    assert [entry["name"] for entry in document["input"]] == [target.input]
    assert document["input"][0]["data_type"] == "TYPE_" + target.datatype
    batched = document["max_batch_size"] > 0
    assert len(document["input"][0]["dims"]) == len(target.shape) - batched
    assert [entry["name"] for entry in document["output"]] == list(target.outputs)


def test_statistics_have_every_member_and_count(http: httpx.Client, target: Target) -> None:
    if "statistics" not in target.extensions:
        pytest.skip("the server does not offer statistics")

    def read(path: str) -> dict[str, Any]:
        found = [m for m in http.get(path).json()["model_stats"] if m["name"] == target.model]
        return dict(found[-1])

    before = read(f"/v2/models/{target.model}/stats")
    body, length = binary_body(target, target.array())
    post(http, target.infer_path, body, {HEADER: str(length)})
    for path in ("/v2/models/stats", f"/v2/models/{target.model}/stats"):
        after = read(path)
        assert after["inference_count"] >= before["inference_count"] + 1
        assert after["execution_count"] >= before["execution_count"] + 1
        assert after["last_inference"] >= before["last_inference"]
        assert {type(entry["batch_size"]) for entry in after["batch_stats"]} == {int}
        for member in [
            "success",
            "fail",
            "queue",
            "compute_input",
            "compute_infer",
            "compute_output",
            "cache_hit",
            "cache_miss",
        ]:
            assert {type(after["inference_stats"][member][key]) for key in ("count", "ns")} == {int}


def test_repository_index_lists_the_model(http: httpx.Client, target: Target) -> None:
    for body in (b"", b"{}", b'{"ready": true}'):
        entries = post(http, "/v2/repository/index", body).json()
        (entry,) = [
            e for e in entries if (e["name"], e["version"]) == (target.model, target.version)
        ]
        assert entry["state"] == "READY"


@pytest.mark.parametrize(
    "content_type",
    [None, "application/json", "application/octet-stream", "nonsense"],
)
@pytest.mark.parametrize("binary", [False, True])
def test_infer_content_type_does_not_matter(
    http: httpx.Client, target: Target, truth: Any, content_type: str | None, binary: bool
) -> None:
    headers = {} if content_type is None else {"Content-Type": content_type}
    if binary:
        body, length = binary_body(target, target.array())
        headers[HEADER.lower()] = str(length)
    else:
        body = json.dumps({"inputs": [target.entry()]}).encode()
    assert_truth(post(http, target.infer_path, body, headers), truth)


def test_infer_json_answer_has_no_header_length(http: httpx.Client, target: Target) -> None:
    response = post(http, target.infer_path, json.dumps({"inputs": [target.entry()]}))
    assert HEADER not in response.headers
    assert response.headers["content-type"].split(";")[0] == "application/json"
    document = response.json()
    assert document["model_name"] == target.model
    assert isinstance(document["model_version"], str)
    assert "id" not in document or document["id"] == ""
    assert [output["name"] for output in document["outputs"]] == list(target.outputs)


def test_infer_json_request_can_ask_for_a_binary_answer(
    http: httpx.Client, target: Target, truth: Any
) -> None:
    body = {"inputs": [target.entry()], "parameters": {"binary_data_output": True}}
    response = post(http, target.infer_path, json.dumps(body))
    assert response.headers["content-type"] == "application/octet-stream"
    assert HEADER in response.headers
    assert_truth(response, truth)


@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_infer_output_parameter_overrides_the_requests(
    http: httpx.Client, target: Target, default: bool, own: bool
) -> None:
    body = {
        "inputs": [target.entry()],
        "outputs": [{"name": target.outputs[0], "parameters": {"binary_data": own}}],
        "parameters": {"binary_data_output": default},
    }
    response = post(http, target.infer_path, json.dumps(body))
    assert list(tensors(response)) == [target.outputs[0]]
    assert (HEADER in response.headers) == own


def test_infer_nested_data_equals_flat(http: httpx.Client, target: Target, truth: Any) -> None:
    body = json.dumps({"inputs": [target.entry(data=target.array().tolist())]})
    assert_truth(post(http, target.infer_path, body), truth)


def test_infer_id_is_echoed_and_version_route_answers(
    http: httpx.Client, target: Target, truth: Any
) -> None:
    path = f"/v2/models/{target.model}/versions/{target.version}/infer"
    body = json.dumps({"id": "request 7 ü", "inputs": [target.entry()]})
    response = post(http, path, body)
    assert response.json()["id"] == "request 7 ü"
    assert response.json()["model_version"] == target.version
    assert_truth(response, truth)


def test_infer_known_and_custom_parameters_are_taken(
    http: httpx.Client, target: Target, truth: Any
) -> None:
    parameters = {"priority": 1, "timeout": 20_000_000, "mine": "x", "number": 1.5, "flag": False}
    body = json.dumps({"inputs": [target.entry()], "parameters": parameters})
    assert_truth(post(http, target.infer_path, body), truth)


def test_infer_query_string_is_tolerated(http: httpx.Client, target: Target, truth: Any) -> None:
    body = json.dumps({"inputs": [target.entry()]})
    assert_truth(post(http, f"{target.infer_path}?tenant=a&tenant=b", body), truth)


@pytest.mark.parametrize("binary", [False, True])
def test_infer_chunked_body_is_read(
    http: httpx.Client, target: Target, truth: Any, binary: bool
) -> None:
    body, length = binary_body(target, target.array())
    headers = {HEADER: str(length)}
    if not binary:
        body, headers = json.dumps({"inputs": [target.entry()]}).encode(), {}
    pieces = (body[start : start + 1000] for start in range(0, len(body), 1000))
    assert_truth(post(http, target.infer_path, pieces, headers), truth)


@pytest.mark.parametrize("coding", ["gzip", "deflate", "identity"])
@pytest.mark.parametrize("binary", [False, True])
def test_infer_compressed_body_is_read(
    http: httpx.Client, target: Target, truth: Any, coding: str, binary: bool
) -> None:
    body, length = binary_body(target, target.array())
    headers = {HEADER: str(length), "Content-Encoding": coding}
    if not binary:
        body = json.dumps({"inputs": [target.entry()]}).encode()
        del headers[HEADER]
    packed = {"gzip": gzip.compress, "deflate": zlib.compress, "identity": bytes}[coding](body)
    assert_truth(post(http, target.infer_path, packed, headers), truth)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("binary", [False, True])
def test_infer_compressed_answer_can_be_read(
    http: httpx.Client, target: Target, truth: Any, coding: str, binary: bool
) -> None:
    body, length = binary_body(target, target.array(), parameters={"binary_data_output": binary})
    headers = {HEADER: str(length), "Accept-Encoding": coding}
    response = post(http, target.infer_path, body, headers)
    assert response.headers.get("content-encoding", coding) == coding
    assert_truth(response, truth)


@pytest.mark.parametrize("path", ["", "/models/{}", "/models/{}/config", "/models/nope"])
def test_only_infer_answers_are_compressed(http: httpx.Client, target: Target, path: str) -> None:
    # aiohttp's default Accept-Encoding; tritonclient does not decompress these answers.
    response = http.get(
        "/v2" + path.format(target.model), headers={"Accept-Encoding": "gzip, deflate, br"}
    )
    assert "content-encoding" not in response.headers


def test_infer_larger_batch_answers_each_field(http: httpx.Client, target: Target) -> None:
    first, second = target.array(1), target.array(2)
    body, length = binary_body(target, np.concatenate([first, second]))
    entry = json.loads(body[:length])["inputs"][0]
    entry["shape"][0] *= 2
    text = json.dumps({"inputs": [entry]}).encode()
    both = post(http, target.infer_path, text + body[length:], {HEADER: str(len(text))})
    singly = []
    for array in (first, second):
        body, length = binary_body(target, array)
        singly.append(tensors(post(http, target.infer_path, body, {HEADER: str(length)})))
    for name, values in tensors(both).items():
        expected = np.concatenate([one[name] for one in singly])
        np.testing.assert_allclose(values, expected, rtol=1e-4, atol=1e-5)
