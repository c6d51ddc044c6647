"""The protocol on the wire, without a client library: requests that work, requests that must be refused."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import numpy as np
import pytest

from tests.oip.target import NUMPY, Target

HEADER = "Inference-Header-Content-Length"


def post(
    http: httpx.Client, path: str, content: Any, headers: dict[str, str] | None = None
) -> httpx.Response:
    response = http.post(path, content=content, headers=headers or {})
    response.read()
    return response


def binary_body(target: Target, array: np.ndarray[Any, Any], **top: Any) -> tuple[bytes, int]:
    entry = target.entry(parameters={"binary_data_size": array.nbytes})
    text = json.dumps({"inputs": [entry], **top}).encode()
    return text + array.tobytes(), len(text)


def tensors(response: httpx.Response) -> dict[str, np.ndarray[Any, Any]]:
    """All outputs of an infer answer, after checking that its parts agree with each other."""
    assert response.status_code == 200, response.text[:500]
    content, length = response.content, response.headers.get(HEADER)
    document = json.loads(content if length is None else content[: int(length)])
    rest = b"" if length is None else content[int(length) :]
    found = {}
    for output in document["outputs"]:
        size = output.get("parameters", {}).get("binary_data_size")
        dtype = NUMPY[output["datatype"]]
        if size is None:
            values = np.array(output["data"], dtype=dtype)
        else:
            assert "data" not in output
            assert size <= len(rest), f"{size} bytes announced, {len(rest)} are left"
            values, rest = np.frombuffer(rest[:size], dtype=dtype), rest[size:]
        found[output["name"]] = values.reshape(output["shape"])
    assert not rest, f"{len(rest)} bytes follow the last output"
    return found


def refused(response: httpx.Response) -> str:
    """The error text of a 4xx, which must be a JSON object with the string `error`."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:500])
    document = response.json()
    assert isinstance(document, dict)
    assert isinstance(document["error"], str)
    assert document["error"]
    return str(document["error"])


@pytest.fixture(scope="module")
def truth(http: httpx.Client, target: Target) -> dict[str, np.ndarray[Any, Any]]:
    """What the model answers to the suite's array, by the plainest request there is."""
    body = json.dumps({"inputs": [target.entry()]})
    return tensors(post(http, target.infer_path, body))


def assert_truth(response: httpx.Response, truth: dict[str, np.ndarray[Any, Any]]) -> None:
    found = tensors(response)
    assert list(found) == list(truth)
    for name, values in truth.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)


@pytest.fixture(autouse=True)
def _still_well(http: httpx.Client) -> Iterator[None]:
    """Whatever a test sent, the server is ready afterwards."""
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
    [None, "application/json", "application/octet-stream", "text/plain", "nonsense"],
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
    # aiohttp's default, of a client that then reads these answers without decompressing them.
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


SIZE = "SIZE"
"""Stands for the input's true number of bytes."""


@pytest.mark.parametrize(
    ("changes", "size_change"),
    [
        pytest.param({"parameters": {"binary_data_size": SIZE}}, -1, id="one byte short"),
        pytest.param({"parameters": {"binary_data_size": SIZE}}, -(10**9), id="no bytes"),
        pytest.param({"parameters": {"binary_data_size": SIZE}}, +1, id="one byte left over"),
        pytest.param({"parameters": {"binary_data_size": 8}}, 0, id="size smaller than shape"),
        pytest.param({"parameters": {"binary_data_size": -1}}, 0, id="negative size"),
        pytest.param({"parameters": {"binary_data_size": "many"}}, 0, id="size not a number"),
        pytest.param({"parameters": {"binary_data_size": 2**62}}, 0, id="size of 2^62"),
        pytest.param(
            {"parameters": {"binary_data_size": SIZE}, "shape": [2**60, 2**60]},
            0,
            id="shape that overflows",
        ),
        pytest.param(
            {"parameters": {"binary_data_size": SIZE}, "shape": [-1, -1]}, 0, id="negative shape"
        ),
        pytest.param({}, +4, id="bytes after a JSON input"),
    ],
)
def test_binary_sizes_that_disagree_are_refused(
    http: httpx.Client, target: Target, changes: dict[str, Any], size_change: int
) -> None:
    raw = target.array().tobytes()
    entry = target.entry(**changes)
    if entry.get("parameters", {}).get("binary_data_size") == SIZE:
        entry["parameters"] = {"binary_data_size": len(raw)}
    sent = raw[: max(0, len(raw) + size_change)] + b"x" * size_change
    if not changes:
        sent = b"x" * size_change
    text = json.dumps({"inputs": [entry]}).encode()
    refused(post(http, target.infer_path, text + sent, {HEADER: str(len(text))}))


@pytest.mark.parametrize("value", ["-1", "1000000000", "x", "1.5", "9" * 40, "0x10"])
def test_header_length_out_of_range_is_refused(
    http: httpx.Client, target: Target, value: str
) -> None:
    body, _ = binary_body(target, target.array())
    refused(post(http, target.infer_path, body, {HEADER: value}))


@pytest.mark.parametrize("shift", [-2, 2])
def test_header_length_that_cuts_the_json_is_refused(
    http: httpx.Client, target: Target, shift: int
) -> None:
    body, length = binary_body(target, target.array())
    refused(post(http, target.infer_path, body, {HEADER: str(length + shift)}))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[]",
        b"3",
        b'"text"',
        b"\xff\xfe",
        b"{}",
        b'{"inputs": 3}',
        b'{"inputs": [3]}',
        b'{"inputs": [{}]}',
        b"[" * 200 + b"]" * 200,
        b"[" * 100_000,
        b'{"inputs": ' + b"[" * 500 + b"]" * 500 + b"}",
        b'{"inputs": [NaN]}',
    ],
    ids=lambda body: body[:20].decode("latin-1"),
)
def test_body_that_is_no_request_is_refused(
    http: httpx.Client, target: Target, body: bytes
) -> None:
    refused(post(http, target.infer_path, body))


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "no such input"},
        {"name": None},
        {"shape": [2**60, 2**60]},
        {"shape": [2**40, 2**40, 0], "data": []},
        {"shape": [-1]},
        {"shape": "1"},
        {"shape": None},
        {"shape": [1.5]},
        {"shape": [3, 5, 7, 11, 13]},
        {"shape": [1] * 200},
        {"datatype": "FP99"},
        {"datatype": None},
        {"datatype": "FP16"},
        {"datatype": "BF16"},
        {"data": []},
        {"data": [1.0]},
        {"data": "AAAA"},
        {"data": None},
        {"data": {"0": 1}},
        {"parameters": 3},
        {"parameters": {"shared_memory_region": "none", "shared_memory_byte_size": 4}},
    ],
    ids=str,
)
def test_input_that_breaks_a_rule_is_refused(
    http: httpx.Client, target: Target, changes: dict[str, Any]
) -> None:
    refused(post(http, target.infer_path, json.dumps({"inputs": [target.entry(**changes)]})))


@pytest.mark.parametrize("bad", ["text", None, True, [1.0], {}], ids=str)
def test_json_data_that_is_not_all_numbers_is_refused(
    http: httpx.Client, target: Target, bad: Any
) -> None:
    data = target.array().reshape(-1).tolist()
    data[-1] = bad
    refused(post(http, target.infer_path, json.dumps({"inputs": [target.entry(data=data)]})))


def test_input_missing_or_twice_is_refused(http: httpx.Client, target: Target) -> None:
    for inputs in ([], [target.entry(), target.entry()]):
        refused(post(http, target.infer_path, json.dumps({"inputs": inputs})))


@pytest.mark.parametrize(
    "outputs",
    [
        [{"name": "no such output"}],
        ["twice"],
        [{}],
        [3],
        3,
        [{"name": None}],
    ],
    ids=str,
)
def test_outputs_that_break_a_rule_are_refused(
    http: httpx.Client, target: Target, outputs: Any
) -> None:
    if outputs == ["twice"]:
        outputs = [{"name": target.outputs[0]}] * 2
    body = json.dumps({"inputs": [target.entry()], "outputs": outputs})
    refused(post(http, target.infer_path, body))


@pytest.mark.parametrize(
    "parameters",
    [
        {"triton_unknown": 1},
        {"priority": -1},
        {"priority": "high"},
        {"timeout": -1},
        {"timeout": "long"},
        {"binary_data_output": "yes"},
        [],
    ],
    ids=str,
)
def test_parameters_that_break_a_rule_are_refused(
    http: httpx.Client, target: Target, parameters: Any
) -> None:
    body = json.dumps({"inputs": [target.entry()], "parameters": parameters})
    if parameters == []:
        body = body.replace('"parameters": []', '"parameters": [1]')
    refused(post(http, target.infer_path, body))


@pytest.mark.parametrize("coding", ["br", "zstd", "compress", "nonsense", "gzip, gzip"])
def test_unknown_content_encoding_is_refused(
    http: httpx.Client, target: Target, coding: str
) -> None:
    body = json.dumps({"inputs": [target.entry()]})
    response = post(http, target.infer_path, body, {"Content-Encoding": coding})
    assert response.status_code in (400, 415, 501)
    assert isinstance(response.json()["error"], str)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize("how", ["not compressed", "truncated", "damaged", "bomb"])
def test_broken_compressed_body_is_refused(
    http: httpx.Client, target: Target, coding: str, how: str
) -> None:
    pack = {"gzip": gzip.compress, "deflate": zlib.compress}[coding]
    plain = json.dumps({"inputs": [target.entry()]}).encode()
    packed = pack(plain)
    body = {
        "not compressed": plain,
        "truncated": packed[:-10],
        "damaged": packed[:-6] + bytes(b ^ 0xFF for b in packed[-6:]),
        "bomb": pack(bytes(1 << 28)) if how == "bomb" else b"",
    }[how]
    refused(post(http, target.infer_path, body, {"Content-Encoding": coding}))


@pytest.mark.parametrize(
    ("method", "path", "statuses"),
    [
        ("GET", "/v2/models/no-such-model", (404, 400)),
        ("GET", "/v2/models/no-such-model/ready", (404, 400)),
        ("GET", "/v2/models/no-such-model/config", (404, 400)),
        ("GET", "/v2/models/no-such-model/stats", (404, 400)),
        ("POST", "/v2/models/no-such-model/infer", (404, 400)),
        ("GET", "/v2/models/{}/versions/999999", (404, 400)),
        ("GET", "/v2/models/{}/versions/abc", (404, 400)),
        ("POST", "/v2/models/{}/versions/999999/infer", (404, 400)),
        ("POST", "/v2/models/{}/versions/-1/infer", (404, 400)),
        ("GET", "/v2/models/%2e%2e%2f%2e%2e%2fetc", (404, 400)),
        ("GET", "/v2/no/such/route", (404,)),
        ("GET", "/v2/models/{}/infer", (405,)),
        ("POST", "/v2/models/{}", (405, 404)),
        ("DELETE", "/v2", (405,)),
    ],
)
def test_error_has_the_protocols_body(
    http: httpx.Client, target: Target, method: str, path: str, statuses: tuple[int, ...]
) -> None:
    body = json.dumps({"inputs": [target.entry()]}) if method == "POST" else None
    response = http.request(method, path.format(target.model), content=body)
    assert response.status_code in statuses
    refused(response)


def test_declared_body_over_any_limit_is_refused_unread(target: Target) -> None:
    host, port = target.host.split("/")[0].split(":")
    head = f"POST {target.infer_path} HTTP/1.1\r\nHost: {host}\r\nContent-Length: {1 << 50}\r\n\r\n"
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(head.encode() + b"{")
        received = b""
        while not received.endswith(b"}") and (chunk := connection.recv(65536)):
            received += chunk
    start, _, body = received.partition(b"\r\n\r\n")
    assert start.split()[1] == b"413", start
    assert isinstance(json.loads(body)["error"], str)
