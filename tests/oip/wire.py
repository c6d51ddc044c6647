"""Raw requests, and checks of their answers, without a client library."""

from __future__ import annotations

import json
from typing import Any

import httpx
import numpy as np

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
    """The outputs of an infer answer, after checking that its parts agree."""
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
    """Check that a response is a 4xx with the JSON string `error`; return that."""
    assert 400 <= response.status_code < 500, (response.status_code, response.text[:500])
    document = response.json()
    assert isinstance(document, dict)
    assert isinstance(document["error"], str)
    assert document["error"]
    return str(document["error"])


def assert_truth(response: httpx.Response, truth: dict[str, np.ndarray[Any, Any]]) -> None:
    found = tensors(response)
    assert list(found) == list(truth)
    for name, values in truth.items():
        assert found[name].shape == values.shape
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)
