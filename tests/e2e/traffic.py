"""Good and bad requests in both protocols, each with its expected response."""

from __future__ import annotations

import gzip
import io
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx

    from turbofno.models.core.checkpoint import LoadedModel

NPY = {"Content-Type": "application/x-npy"}
JSON = {"Content-Type": "application/json"}
LENGTH = "Inference-Header-Content-Length"
FIELD = np.sin(np.linspace(0, 6, 16, dtype=np.float32)).reshape(1, 1, 16)
"""A field for model tiny-1d."""

FLOAT32_BOUND = 1e-5
"""Largest difference allowed between two float32 evaluations of one model, relative to the
largest value: a few hundred roundings of 6e-8, from summing in another order in another batch."""


@dataclass(frozen=True, slots=True)
class Call:
    """A request and its expected response: `truth` for a good one, else status and text."""

    name: str
    path: str
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)
    truth: np.ndarray[Any, Any] | None = None
    statuses: tuple[int, ...] = (200,)
    says: str = ""
    method: str = "POST"


def judge(call: Call, response: httpx.Response) -> None:
    """Fail unless `response` is the expected one of `call`."""
    shown = f"{call.name}: {response.status_code} {response.content[:400]!r}"
    assert response.status_code in call.statuses, shown
    if call.truth is not None:
        close_to(read_answer(response), call.truth, call.name)
        return
    problem = response.json()
    if call.path.startswith("/v2"):
        assert response.headers["content-type"] == "application/json", shown
        text = problem["error"]
    else:
        assert response.headers["content-type"] == "application/problem+json", shown
        assert problem["status"] == response.status_code, shown
        assert problem["type"], shown
        assert problem["title"], shown
        text = problem["detail"]
    assert call.says in text, shown


def close_to(found: np.ndarray[Any, Any], truth: np.ndarray[Any, Any], what: str) -> None:
    """Fail unless two float32 answers agree to rounding."""
    assert found.shape == truth.shape, f"wrong answer: {what} has {found.shape}, not {truth.shape}"
    difference = float(np.abs(found - truth).max() / np.abs(truth).max())
    assert difference <= FLOAT32_BOUND, (
        f"wrong answer: {what} is off by {difference:.2e} of the largest value"
    )


def read_answer(response: httpx.Response) -> np.ndarray[Any, Any]:
    """The output array of a good response in any of the four formats."""
    kind = response.headers["content-type"]
    if kind == "application/x-npy":
        array: np.ndarray[Any, Any] = np.load(io.BytesIO(response.content), allow_pickle=False)
        return array
    if LENGTH in response.headers:
        split = int(response.headers[LENGTH])
        (output,) = json.loads(response.content[:split])["outputs"]
        return np.frombuffer(response.content[split:], "<f4").reshape(output["shape"])
    answer = response.json()
    if "model_name" in answer:
        (output,) = answer["outputs"]
        return np.array(output["data"], np.float32).reshape(output["shape"])
    return np.array(answer["outputs"]["output"], np.float32)


def npy(array: np.ndarray[Any, Any], *, allow_pickle: bool = False) -> bytes:
    """The bytes of an .npy file."""
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=allow_pickle)
    return buffer.getvalue()


def predict_call(model: str, array: np.ndarray[Any, Any], **expected: Any) -> Call:
    """A request to `:predict` with an .npy body."""
    return Call(path=f"/v1/models/{model}:predict", body=npy(array), headers=NPY, **expected)


def infer_call(
    model: str,
    array: np.ndarray[Any, Any],
    *,
    binary: bool = True,
    datatype: str = "FP32",
    change: Mapping[str, Any] | None = None,
    extra: Mapping[str, Any] | None = None,
    **expected: Any,
) -> Call:
    """A request of the Open Inference Protocol; `change` replaces members of the input, `extra` those of the request."""
    tensor: dict[str, Any] = {"name": "input", "shape": list(array.shape), "datatype": datatype}
    blob = array.tobytes() if binary else b""
    if binary:
        tensor["parameters"] = {"binary_data_size": len(blob)}
    else:
        tensor["data"] = array.ravel().tolist()
    document: dict[str, Any] = {"inputs": [tensor | dict(change or {})]}
    if binary:
        document["parameters"] = {"binary_data_output": True}
    head = json.dumps(document | dict(extra or {})).encode()
    headers = {LENGTH: str(len(head))} if binary else JSON
    return Call(path=f"/v2/models/{model}/infer", body=head + blob, headers=headers, **expected)


def good_calls(models: Mapping[str, LoadedModel]) -> list[Call]:
    """Requests in all protocols and formats, with one field and many, on several grids; truth from the module."""
    random = np.random.default_rng(1)
    calls = []
    for name, model in models.items():
        for count, points in ((1, 16), (3, 21), (2, 32)):
            shape = (count, 1, *(points,) * model.config.architecture.n_dim)
            array = random.standard_normal(shape).astype(np.float32)
            with torch.inference_mode():
                truth = model.module(torch.from_numpy(array)).numpy()
            nested = json.dumps({"inputs": {"input": array.tolist()}}).encode()
            label = f"{name} {shape}"
            calls += [
                predict_call(name, array, name=f"npy {label}", truth=truth),
                predict_call(name, array[0], name=f"npy single {label}", truth=truth[0]),
                Call(f"json {label}", f"/v1/models/{name}:predict", nested, JSON, truth),
                infer_call(name, array, name=f"oip binary {label}", truth=truth),
                infer_call(name, array, binary=False, name=f"oip json {label}", truth=truth),
            ]
    return calls


def bad_calls() -> list[Call]:
    """Requests in both protocols that a server must refuse, with their expected errors."""
    return [*_bad_predictions(), *_bad_inferences()]


def _bad_predictions() -> list[Call]:
    path = "/v1/models/tiny-1d:predict"
    good = npy(FIELD)
    lying = good.replace(b"(1, 1, 16)", b"(1, 1, 64)")
    nan, infinite = FIELD.copy(), FIELD.copy()
    nan[0, 0, 3], infinite[0, 0, 3] = np.nan, np.inf
    objects = npy(np.array([{"a": 1}], dtype=object), allow_pickle=True)

    def array(name: str, values: np.ndarray[Any, Any], says: str, *statuses: int) -> Call:
        expected = {"name": f"predict: {name}", "says": says, "statuses": statuses or (422,)}
        return predict_call("tiny-1d", values, **expected)

    def body(name: str, content: bytes, says: str, *statuses: int, **headers: str) -> Call:
        sent = {key.replace("_", "-"): value for key, value in headers.items()} or JSON
        return Call(f"predict: {name}", path, content, sent, None, statuses or (400,), says)

    def text(name: str, content: str, says: str, *statuses: int) -> Call:
        return body(name, content.encode(), says, *statuses)

    return [
        array("grid too small", FIELD[..., :4], "4 points, allowed are 8 to 64"),
        array("grid too large", np.zeros((1, 1, 65), "f4"), "65 points, allowed are 8 to 64"),
        array("rank too low", FIELD[0, 0, 0], "rank 0"),
        array("rank too high", FIELD[None], "rank 4"),
        array("two channels", np.concatenate([FIELD, FIELD], 1), "2 channels"),
        array("no field", FIELD[:0], "at least one field"),
        array("too many fields", np.zeros((4100, 1, 16), "f4"), "4100 fields", 413),
        array("integers", FIELD.astype("i4"), "float32"),
        array("complex", FIELD.astype("c8"), "float32"),
        array("NaN", nan, "must be finite"),
        array("infinity", infinite, "must be finite"),
        array("beyond float32", FIELD.astype("f8") * 1e300, "must be finite"),
        body("pickled objects", objects, "never unpickled", 422, **NPY),
        body("truncated array", good[:-5], "bytes after its header", **NPY),
        body("array with a tail", good + b"tail", "bytes after its header", **NPY),
        body("lying array header", lying, "bytes after its header", **NPY),
        body("no array", b"nonsense", ".npy", **NPY),
        body("empty body", b"", ".npy", **NPY),
        text("empty JSON", "", "empty"),
        text("broken JSON", '{"inputs": [', "not valid JSON"),
        text("NaN in JSON", '{"inputs": {"input": [[NaN]]}}', "not valid JSON"),
        text("JSON list", "[1, 2]", "expected an object"),
        text("JSON without inputs", '{"data": []}', '"inputs"'),
        text("ragged lists", '{"inputs": {"input": [[[1, 2], [3]]]}}', "ragged", 422),
        text("strings", '{"inputs": {"input": [["a"]]}}', "expected a number", 422),
        text("unknown channel", '{"inputs": {"v0": [1.0]}}', "u0", 422),
        text(
            "deep nesting",
            '{"inputs": {"input": ' + "[" * 900 + "]" * 900 + "}}",
            "nested",
            400,
            422,
        ),
        body("unread media type", good, "application/x-npy", 415, Content_Type="text/plain"),
        body("no media type", good, "Content-Type", 415, Accept="*/*"),
        body("unread coding", good, "Content-Encoding", 415, **NPY, Content_Encoding="br"),
        body("broken gzip", good, "gzip", **NPY, Content_Encoding="gzip"),
        body(
            "inflates over the limit",
            gzip.compress(bytes(65 * 1024 * 1024), compresslevel=1),
            "TURBOFNO_MAX_BODY_BYTES",
            413,
            **NPY,
            Content_Encoding="gzip",
        ),
        body("unwritable answer", good, "image/png", 406, **NPY, Accept="image/png"),
        Call("predict: unknown model", "/v1/models/x:predict", good, NPY, None, (404,), "'x'"),
        Call(
            "predict: unknown version",
            "/v1/models/tiny-1d/versions/9:predict",
            good,
            NPY,
            None,
            (404,),
            "9",
        ),
        Call("predict: unknown route", "/v1/nothing", good, NPY, None, (404,), "/v1/nothing"),
        Call("predict: GET", path, b"", {}, None, (405,), "GET", "GET"),
    ]


def _bad_inferences() -> list[Call]:
    nan, infinite = FIELD.copy(), FIELD.copy()
    nan[0, 0, 3], infinite[0, 0, 3] = np.nan, -np.inf
    good = infer_call("tiny-1d", FIELD, name="good")
    head = int(good.headers[LENGTH])

    def tensor(name: str, says: str, array: np.ndarray[Any, Any] = FIELD, **how: Any) -> Call:
        statuses = how.pop("statuses", (400, 422))
        expected = {"name": f"infer: {name}", "says": says, "statuses": statuses}
        return infer_call(how.pop("model", "tiny-1d"), array, **how, **expected)

    def body(name: str, content: bytes, says: str, *statuses: int, **headers: str) -> Call:
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        return Call(f"infer: {name}", good.path, content, sent, None, statuses or (400,), says)

    def header(name: str, length: str, says: str) -> Call:
        return body(f"header length {name}", good.body, says, **{LENGTH: length})

    return [
        tensor("grid too small", "4 points, allowed are 8 to 64", FIELD[..., :4]),
        tensor("rank", "rank 2", FIELD[0]),
        tensor("two channels", "2 channels", np.concatenate([FIELD, FIELD], 1)),
        tensor("integers", "INT32", FIELD.astype("i4"), datatype="INT32"),
        tensor("unknown datatype", "FP99", change={"datatype": "FP99"}),
        tensor("NaN", "finite", nan),
        tensor("infinity", "finite", infinite),
        tensor("half precision in JSON", "FP16", binary=False, datatype="FP16"),
        tensor("other input name", "other", change={"name": "other"}),
        tensor("negative shape", "-1", change={"shape": [1, 1, -1]}),
        tensor("overflowing shape", "1152921504606846976", change={"shape": [2**60, 2**60, 2**60]}),
        tensor("shape of strings", "shape", change={"shape": ["1"]}),
        tensor("shape and size disagree", "needs 128", change={"shape": [1, 1, 32]}),
        tensor("too few data", "16 values", binary=False, change={"data": [1.0]}),
        tensor("no data", "'data'", binary=False, change={"data": None}),
        tensor("unknown output", "'z'", extra={"outputs": [{"name": "z"}]}),
        tensor("output twice", "output", extra={"outputs": [{"name": "output"}] * 2}),
        tensor("no inputs", "input", extra={"inputs": []}),
        tensor("reserved parameter", "triton_x", extra={"parameters": {"triton_x": 1}}),
        tensor("too many fields", "4100 fields", np.zeros((4100, 1, 16), "f4"), statuses=(413,)),
        tensor("unknown model", "'x'", model="x", statuses=(404,)),
        tensor("unknown version", "9", model="tiny-1d/versions/9", statuses=(404,)),
        body("truncated tensor", good.body[:-7], "7 additional bytes", **good.headers),
        body("tensor with a tail", good.body + b"tail", "4 bytes", **good.headers),
        header("is no number", "many", "got: many"),
        header("is negative", "-1", "got: -1"),
        header("beyond the body", str(len(good.body) + 1), "should be in range"),
        header("inside the JSON", str(head - 9), "not valid JSON"),
        header("after the JSON", str(head + 9), "not valid JSON"),
        body("no header length for a binary body", good.body, "not valid JSON"),
        body("empty body", b"", "empty"),
        body("broken JSON", b'{"inputs"', "JSON", **JSON),
        body("JSON list", b"[]", "expected an object", **JSON),
        body("broken deflate", good.body, "deflate", Content_Encoding="deflate", **good.headers),
        body(
            "unread coding",
            good.body,
            "Content-Encoding",
            415,
            501,
            Content_Encoding="br",
            **good.headers,
        ),
        Call("infer: unknown route", "/v2/nothing", b"", {}, None, (404,), "/v2/nothing"),
        Call("infer: GET", good.path, b"", {}, None, (405,), "GET", "GET"),
    ]
