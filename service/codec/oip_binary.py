"""Infer bodies of the Open Inference Protocol: JSON, optionally followed by raw tensors."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from turbofno.service.codec import json_arrays
from turbofno.service.codec.fields import (
    BFLOAT16,
    INPUT,
    MAX_RANK,
    OUTPUT,
    Array,
    FieldTrust,
    array_from_bytes,
    bytes_of,
    shaped,
)
from turbofno.service.codec.grids import OUTPUT_GRID
from turbofno.service.codec.json import (
    array_from_lists,
    json_type,
    parse_object,
    require_encodable,
    shown,
)
from turbofno.service.errors import BadRequest, InvalidField

DATATYPE = "FP32"
_FLOATS = {"FP16": "<f2", "BF16": BFLOAT16, "FP32": "<f4", "FP64": "<f8"}
_SIZES = {"FP16": 2, "BF16": 2, "FP32": 4, "FP64": 8}
_RESERVED = "triton_"
_SHAPE = re.compile(rf"[0-9]{{1,18}}(,[0-9]{{1,18}}){{0,{MAX_RANK - 1}}}")


@dataclass(frozen=True, slots=True)
class InferRequest:
    """A decoded infer body. `tensor` has the declared shape, not yet checked against the model."""

    tensor: Array
    binary: bool
    """The output is wanted as raw bytes after the JSON, not as JSON numbers."""
    id: str | None = None
    priority: int = 0
    """1 is the highest, 0 stands for the default."""
    timeout_us: int | None = None
    output_grid: str | None = None
    """Such as "128,128", unchecked."""


class InferResponse(NamedTuple):
    """An encoded infer response: the pieces of the body, and the length of its JSON if raw bytes follow."""

    pieces: tuple[bytes | memoryview, ...]
    json_length: int | None

    @property
    def body(self) -> bytes:
        return b"".join(self.pieces)


RAW = InferRequest(np.empty(0, np.float32), binary=True)
"""What a raw request asks for; its tensor is the whole body."""


def parse_header_length(value: str, *, available: int) -> int:
    """Parse the header Inference-Header-Content-Length.

    Raises:
        BadRequest: not an integer from 0 to `available`.
    """
    number = int(value) if re.fullmatch(r"[0-9]{1,18}", value) else -1
    if not 0 <= number <= available:
        raise BadRequest(
            f"inference header size should be in range (0, {available}), got: {value[:40]} "
            f"(Inference-Header-Content-Length is the length of the JSON part, uncompressed)"
        )
    return number


def decode(body: bytes | memoryview, *, header_length: int | None, model: str) -> InferRequest:
    """Decode a JSON body (`header_length` None), or a JSON part followed by raw tensors.

    Raises:
        BadRequest: the body does not follow the protocol, or its sizes disagree.
        InvalidField: an unsupported datatype or unusable values.
        PayloadTooLarge: too many JSON lists.
    """
    view = memoryview(body).cast("B")
    length = len(view) if header_length is None else header_length
    # A client may have left the header out, or a proxy have taken it.
    hint = (
        "; tensors behind it need Inference-Header-Content-Length" if header_length is None else ""
    )
    document = parse_object(view[:length], what="inference request", hint=hint)
    request_id = document.get("id")
    if request_id is not None and not isinstance(request_id, str):
        raise BadRequest(f"'id' is a JSON {json_type(request_id)}, expected a string")
    parameters = _object(document, "parameters", where="the request")
    priority, timeout = _scheduling(parameters)
    binary = _flag(parameters, "binary_data_output", default=False)
    binary = _binary_output(document, default=binary, model=model)
    return InferRequest(
        tensor=_tensor(_only_input(document, model=model), view[length:], model=model),
        binary=binary,
        id=request_id,
        priority=priority,
        timeout_us=timeout,
        output_grid=_text(parameters, OUTPUT_GRID),
    )


def decode_raw(body: bytes | memoryview, *, shape: str | None, model: str) -> InferRequest:
    """Decode a raw request (Inference-Header-Content-Length: 0), whose body is the FP32 input tensor.

    `shape` is the shape of the tensor, such as "1,1,64,64". The response is binary.

    Raises:
        BadRequest: no shape, an invalid one, or the wrong number of bytes.
    """
    remedy = "?shape=1,1,64,64 (batch, channels, grid)"
    if shape is None:
        raise BadRequest(f"a raw binary request to model '{model}' has no shape: add {remedy}")
    if not _SHAPE.fullmatch(shape):
        raise BadRequest(f"shape={shape[:80]!r} is not a shape, expected for example {remedy}")
    dims = [int(part) for part in shape.split(",")]
    view = memoryview(body).cast("B")
    if len(view) != math.prod(dims) * _SIZES[DATATYPE]:
        raise BadRequest(
            f"the raw body has {len(view)} bytes, shape {dims} of {DATATYPE} needs "
            f"{math.prod(dims) * _SIZES[DATATYPE]}"
        )
    tensor = shaped(array_from_bytes(view, _FLOATS[DATATYPE]), dims, name="the raw body")
    return replace(RAW, tensor=tensor)


def encode(
    output: NDArray[np.float32],
    *,
    binary: bool,
    model: str,
    version: str,
    request_id: str | None = None,
    warnings: tuple[str, ...] = (),
    trust: FieldTrust | None = None,
    trust_status: str = "",
) -> InferResponse:
    """Encode the output as requested: FP32 numbers in the JSON, or raw bytes after it; the largest value of each trust signal.

    Raises:
        InvalidField: a value is NaN or infinite, and JSON numbers were requested.
    """
    entry: dict[str, Any] = {"name": OUTPUT, "datatype": DATATYPE, "shape": output.shape}
    document: dict[str, Any] = {"model_name": model, "model_version": version, "outputs": [entry]}
    parameters: dict[str, Any] = {
        f"trust_{name}": max(values) for name, values in (trust or {}).items() if values
    }
    if trust_status:
        parameters["trust_status"] = trust_status
    if warnings:
        parameters["warning"] = "; ".join(warnings)
    if parameters:
        document["parameters"] = parameters
    if request_id is not None:
        document["id"] = request_id
    if binary:
        values = bytes_of(output)
        entry["parameters"] = {"binary_data_size": values.nbytes}
        text = orjson.dumps(document)
        return InferResponse((text, values), len(text))
    remedy = "request it in binary with the output parameter binary_data = true"
    require_encodable(output, name=OUTPUT, remedy=remedy)
    entry["data"] = json_arrays.dumps(np.ascontiguousarray(output).reshape(-1))
    return InferResponse((orjson.dumps(document),), None)


def _scheduling(parameters: dict[str, Any]) -> tuple[int, int | None]:
    reserved = sorted(name for name in parameters if name.startswith(_RESERVED))
    if reserved:
        raise BadRequest(
            f"parameter {reserved[0][:80]!r} is reserved: use a name that does not start with '{_RESERVED}'"
        )
    for name, value in parameters.items():
        if not isinstance(value, (str, int, float, bool)):
            raise BadRequest(
                f"parameter '{name[:80]}' is a JSON {json_type(value)}, expected a string, number "
                f"or boolean"
            )
    priority = _integer(parameters, "priority", most=10, named="10, the lowest") or 0
    # As for Triton, a timeout of 0 means no timeout.
    return priority, _integer(parameters, "timeout") or None


def _binary_output(document: dict[str, Any], *, default: bool, model: str) -> bool:
    listed = document.get("outputs")
    if listed is None:
        listed = []
    if not isinstance(listed, list):
        raise BadRequest(f"'outputs' is a JSON {json_type(listed)}, expected an array of objects")
    binary = default
    for number, item in enumerate(listed):
        name = item.get("name") if isinstance(item, dict) else None
        if not isinstance(name, str):
            raise BadRequest("each entry of 'outputs' must be an object with a string 'name'")
        if name != OUTPUT:
            raise BadRequest(
                f"unexpected inference output '{name[:80]}' for model '{model}', expected "
                f"'{OUTPUT}', which has all channels on axis 1"
            )
        if number:
            raise BadRequest(f"output '{name}' already exists in request")
        parameters = _object(item, "parameters", where=f"output '{name}'")
        _refuse_shared_memory(parameters, where=f"output '{name}'")
        if "classification" in parameters:
            raise BadRequest(
                f"output '{name}' requests classification, but a field has no classes: leave class_count out"
            )
        binary = _flag(parameters, "binary_data", default=default)
    return binary


def _only_input(document: dict[str, Any], *, model: str) -> dict[str, Any]:
    listed = document.get("inputs")
    if not isinstance(listed, list):
        raise BadRequest(
            "Unable to parse 'inputs': attribute not found or not an array; expected "
            f'"inputs": [{{"name": "{INPUT}", "shape": [...], "datatype": "{DATATYPE}", ...}}]'
        )
    names = [item.get("name") if isinstance(item, dict) else None for item in listed]
    if len(listed) != 1:
        raise BadRequest(
            f"expected 1 input but got {len(listed)} inputs for model '{model}': expected "
            f"['{INPUT}'] with all channels on axis 1, got {shown(names)}"
        )
    if names != [INPUT]:
        raise BadRequest(
            f"unexpected inference input {shown(names[0])} for model '{model}', expected '{INPUT}'"
        )
    return dict(listed[0])


def _tensor(entry: dict[str, Any], buffers: memoryview, *, model: str) -> Array:
    name = entry["name"]
    shape, datatype = entry.get("shape"), entry.get("datatype")
    if not (
        isinstance(shape, list)
        and len(shape) <= MAX_RANK
        and all(type(size) is int and 0 <= size < 1 << 63 for size in shape)
    ):
        raise BadRequest(
            f"input '{name}' has shape {shown(shape)}, expected a list of at most {MAX_RANK} sizes, whole numbers from 0"
        )
    if not isinstance(datatype, str) or datatype not in _FLOATS:
        raise InvalidField(
            f"inference input '{name}' data-type is {shown(datatype)}, but model '{model}' "
            f"expects '{DATATYPE}' ({', '.join(sorted(set(_FLOATS) - {DATATYPE}))} are converted)"
        )
    parameters = _object(entry, "parameters", where=f"input '{name}'")
    _refuse_shared_memory(parameters, where=f"input '{name}'")
    size = _integer(parameters, "binary_data_size")
    if size is None:
        if len(buffers):
            raise BadRequest(_leftover(len(buffers), model=model))
        return _tensor_from_json(entry, shape, datatype)
    if "data" in entry:
        raise BadRequest(f"input '{name}' has both 'data' and 'binary_data_size', expected one")
    return _tensor_from_bytes(buffers, shape, datatype, name=name, size=size, model=model)


def _tensor_from_bytes(
    buffers: memoryview, shape: list[int], datatype: str, *, name: str, size: int, model: str
) -> Array:
    if size > len(buffers):
        raise BadRequest(
            f"unexpected size for input '{name}', expecting {size - len(buffers)} additional bytes "
            f"for model '{model}'"
        )
    if size < len(buffers):
        raise BadRequest(_leftover(len(buffers) - size, model=model))
    expected = math.prod(shape) * _SIZES[datatype]
    if size != expected:
        raise BadRequest(
            f"input '{name}' got unexpected byte size {size}, shape {shape} of {datatype} needs "
            f"{expected}"
        )
    return shaped(array_from_bytes(buffers, _FLOATS[datatype]), shape, name=f"input '{name}'")


def _tensor_from_json(entry: dict[str, Any], shape: list[int], datatype: str) -> Array:
    name = entry["name"]
    if datatype in ("FP16", "BF16"):
        raise BadRequest(
            f"receiving {datatype} data via JSON is not supported. Please use the binary data "
            f"format for input '{name}'"
        )
    data = entry.get("data")
    if not isinstance(data, (list, np.ndarray)):
        raise BadRequest(
            f"input '{name}' has neither an array 'data' nor the parameter 'binary_data_size'"
        )
    array = array_from_lists(data, name=name)
    if array.ndim == 1 and array.size == math.prod(shape):
        return shaped(array, shape, name=f"input '{name}'")
    if list(array.shape) != shape:
        raise BadRequest(
            f"input '{name}' declares shape {shape} ({math.prod(shape)} values), its data has "
            f"shape {list(array.shape)} ({array.size} values)"
        )
    return array


def _leftover(count: int, *, model: str) -> str:
    return (
        f"unexpected additional input data for model '{model}': {count} bytes that no input's "
        f"binary_data_size accounts for"
    )


def _refuse_shared_memory(parameters: dict[str, Any], *, where: str) -> None:
    if any(key.startswith("shared_memory_") for key in parameters):
        raise BadRequest(
            f"{where} refers to shared memory, which this server does not support: use binary data"
        )


def _object(document: dict[str, Any], key: str, *, where: str) -> dict[str, Any]:
    value = document.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise BadRequest(f"'{key}' of {where} is a JSON {json_type(value)}, expected an object")
    return value


def _integer(
    parameters: dict[str, Any], key: str, *, most: int = (1 << 63) - 1, named: str = "2^63 - 1"
) -> int | None:
    """The parameter, 0 to `most`, which an error calls `named`; None without it."""
    value = parameters.get(key)
    if value is None:
        return None
    if type(value) is not int or not 0 <= value <= most:
        raise BadRequest(
            f"parameter '{key}' is {shown(value)}, expected an integer from 0 to {named}"
        )
    return value


def _text(parameters: dict[str, Any], key: str) -> str | None:
    value = parameters.get(key)
    if value is not None and not isinstance(value, str):
        raise BadRequest(f"parameter '{key}' is {shown(value)}, expected a string")
    return value


def _flag(parameters: dict[str, Any], key: str, *, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise BadRequest(f"parameter '{key}' is {shown(value)}, expected true or false")
    return value
