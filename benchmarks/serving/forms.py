"""Request and answer formats of each server."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import orjson

from benchmarks.serving.checkpoint import Array

_RAW = "application/octet-stream"
_JSON = "application/json"


@dataclass(frozen=True)
class Form:
    """A body format of one server. `path` may hold {model}, {fields} and {side}."""

    path: str
    content_type: str
    body: Callable[[Array], bytes]
    values: Callable[[bytes], Array]
    headers: str = ""

    def request(self, field: Array, *, model: str, port: int) -> bytes:
        """The HTTP request for fields [n, 1, side, side]."""
        path = self.path.format(model=model, fields=len(field), side=field.shape[-1])
        body = self.body(field)
        head = (
            f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: {self.content_type}\r\n"
            f"{self.headers}Content-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body


_BINARY_SIZE = re.compile(rb'"binary_data_size":(\d+)')


def _json(document: Any) -> bytes:
    return orjson.dumps(document, option=orjson.OPT_SERIALIZE_NUMPY)


def _raw_values(body: bytes) -> Array:
    return np.frombuffer(body, np.float32)


def _from_v1(body: bytes) -> Array:
    return np.asarray(orjson.loads(body)["outputs"]["output"], np.float32)


def _from_lists(body: bytes) -> Array:
    return np.asarray(orjson.loads(body)["output"], np.float32)


def _from_v2(body: bytes) -> Array:
    return np.asarray(orjson.loads(body)["outputs"][0]["data"], np.float32)


def _from_base64(body: bytes) -> Array:
    text = orjson.loads(body)["outputs"][0]["data"][0]
    return np.frombuffer(base64.b64decode(text), np.float32)


def _after_json(body: bytes) -> Array:
    """The values of an Open Inference Protocol answer with one binary output after the JSON."""
    found = _BINARY_SIZE.search(body)
    if found is None:
        raise ValueError(f"no output follows the JSON of {body[:200]!r}")
    return np.frombuffer(body[len(body) - int(found[1]) :], np.float32)


def _v2_numbers(field: Array) -> bytes:
    tensor = {"name": "input", "shape": list(field.shape), "datatype": "FP32"}
    return _json({"inputs": [{**tensor, "data": field.reshape(-1)}]})


def _v2_base64(field: Array) -> bytes:
    text = base64.b64encode(field.tobytes()).decode()
    tensor = {"name": "input", "shape": [1, 1], "datatype": "BYTES", "data": [text]}
    return _json({"inputs": [{**tensor, "parameters": {"content_type": "base64"}}]})


TURBOFNO = {
    "binary": Form(
        "/v2/models/{model}/infer?shape={fields},1,{side},{side}",
        _RAW,
        lambda field: field.tobytes(),
        _after_json,
        headers="Inference-Header-Content-Length: 0\r\n",
    ),
    "JSON": Form(
        "/v1/models/{model}:predict",
        _JSON,
        lambda field: _json({"inputs": {"input": field}}),
        _from_v1,
    ),
}
MLSERVER = {
    "binary": Form("/v2/models/{model}/infer", _JSON, _v2_base64, _from_base64),
    "JSON": Form("/v2/models/{model}/infer", _JSON, _v2_numbers, _from_v2),
}
PLAIN = {
    "binary": Form("/binary", _RAW, lambda field: field.tobytes(), _raw_values),
    "JSON": Form("/json", _JSON, lambda field: _json({"input": field}), _from_lists),
}
"""For servers whose handlers are in `peers`."""
LITSERVE = {
    "binary": replace(PLAIN["binary"], path="/predict"),
    # text/plain, so that LitServe leaves parsing to the handler's orjson
    "JSON": replace(PLAIN["JSON"], path="/predict", content_type="text/plain"),
}
