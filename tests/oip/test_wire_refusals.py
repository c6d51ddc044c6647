"""The protocol on the wire, without a client library: requests that must be refused."""

from __future__ import annotations

import gzip
import json
import socket
import zlib
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.oip.target import Target
from tests.oip.wire import HEADER, binary_body, post, refused


@pytest.fixture(autouse=True)
def _still_well(http: httpx.Client) -> Iterator[None]:
    """Check that the server is ready after each test."""
    yield
    assert http.get("/v2/health/ready").status_code == 200


SIZE = "SIZE"
"""Placeholder for the input's size in bytes."""


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
def test_body_that_is_not_a_request_is_refused(
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
