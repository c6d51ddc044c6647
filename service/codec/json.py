"""JSON: nested lists of numbers to arrays and back, and the bodies of `:predict`."""

from __future__ import annotations

from itertools import chain
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from turbofno.service.codec import json_arrays
from turbofno.service.codec.fields import (
    MAX_RANK,
    Array,
    ResponseData,
    check_names,
    first_nonfinite,
)
from turbofno.service.errors import BadRequest, InvalidField, PayloadTooLarge

MAX_CONTAINERS = 1 << 17
"""Maximum number of lists and objects. Each takes 2 bytes to send but 60 to 200 in memory, and the parser blocks all
threads while it makes them. A field needs one list for each grid row."""

_SHOWN = 80
_NPY = b"\x93NUMPY"


def parse_object(body: bytes | memoryview, *, what: str = "body", hint: str = "") -> dict[str, Any]:
    """Parse a JSON object; long lists of numbers become float64 arrays. The error of invalid JSON ends with `hint`.

    Raises:
        BadRequest: empty, not UTF-8, not JSON, nested too deeply, not an object, or with a repeated key.
        PayloadTooLarge: too many lists and objects.
    """
    raw = whole_bytes(body)
    if not raw or raw.isspace():
        raise BadRequest(f"the {what} is empty, expected a JSON object")
    if raw.startswith(_NPY):
        raise BadRequest(
            f"the {what} is a .npy file, not JSON: send it with 'Content-Type: application/x-npy' to a path "
            "that takes one, such as /v1/models/NAME:predict"
        )
    # Each takes two brackets.
    if len(raw) > 2 * MAX_CONTAINERS and json_arrays.count_containers(raw) > MAX_CONTAINERS:
        raise PayloadTooLarge(
            f"the {what} has more than {MAX_CONTAINERS} JSON lists and objects: send arrays of "
            f"this size in a binary format"
        )
    try:
        value = json_arrays.loads(raw)
    except orjson.JSONDecodeError as error:
        raise BadRequest(
            f"the {what} is not valid JSON: {error} (NaN and Infinity are not JSON{hint})"
        ) from None
    except json_arrays.RepeatedKey as repeated:
        # Its frames refer to the thread's parser, which could not be used until this error is gone.
        repeated.__traceback__ = None
        raise BadRequest(
            f"the {what} has the key {shown(str(repeated))} more than once in one object, expected once: leave out "
            "all but one"
        ) from None
    if not isinstance(value, dict):
        raise BadRequest(
            f"the {what} is a JSON {json_type(value)}, expected an object like {{...}}"
        )
    return value


def whole_bytes(body: bytes | memoryview) -> bytes:
    """The bytes of a body, without a copy of those that a view shows whole."""
    if isinstance(body, memoryview) and type(body.obj) is bytes and len(body.obj) == body.nbytes:
        return body.obj
    return bytes(body)


def array_from_lists(value: object, *, name: str) -> NDArray[np.float64]:
    """Turn nested lists of JSON numbers into an array of the same shape; return an array as it is.

    Unlike numpy.array, it refuses strings, booleans and null, and its errors name the place of a ragged list.

    Raises:
        InvalidField: ragged lists, lists nested too deeply, or a value that is not a number.
    """
    if isinstance(value, np.ndarray):
        return value
    shape: list[int] = []
    level: list[Any] = [value]
    while level and type(level[0]) is list:
        if len(shape) == MAX_RANK:
            raise InvalidField(
                f"'{name}' is nested more than {MAX_RANK} lists deep, which no model accepts"
            )
        _require_uniform(level, shape, name=name)
        shape.append(len(level[0]))
        level = list(chain.from_iterable(level))
    if not set(map(type, level)) <= {float, int}:
        position = next(i for i, item in enumerate(level) if type(item) not in (float, int))
        raise InvalidField(
            f"{name}{_index(position, shape)} is {shown(level[position])}, expected "
            f"{'a number' if shape else 'nested lists of numbers'}"
        )
    return np.array(level, dtype=np.float64).reshape(shape)


def require_encodable(array: NDArray[np.float32], *, name: str, remedy: str) -> None:
    """Raise InvalidField for NaN and infinity, which JSON does not have; the message ends with `remedy`."""
    where = first_nonfinite(array)
    if where is not None:
        raise InvalidField(
            f"the model's output is {array[where]} at {name}{list(where)}, which JSON cannot represent "
            f"(the input may be far from the training data): {remedy}"
        )


def decode(body: bytes | memoryview) -> dict[str, Array]:
    """Read {"inputs": {name: nested lists}} into float64 arrays.

    Raises:
        BadRequest: not JSON, or not in this form.
        InvalidField: an input is not a rectangular array of numbers.
        PayloadTooLarge: too many lists.
    """
    document = parse_object(body)
    inputs = document.get("inputs")
    if isinstance(inputs, (list, np.ndarray)):
        raise BadRequest(
            '"inputs" is a list, expected an object of named arrays such as {"inputs": {"input": [..]}} '
            "(a list of tensors with name, shape and datatype belongs to the Open Inference Protocol: POST it to "
            "/v2/models/{name}/infer)"
        )
    if not isinstance(inputs, dict) or not inputs:
        raise BadRequest(
            'the body has no named arrays, expected the key "inputs" with an object of them, for example '
            '{"inputs": {"input": [[[0.0, 0.5]]]}}'
        )
    unknown = set(document) - {"inputs"}
    if unknown:
        raise BadRequest(
            f'the body has the unknown key {shown(min(unknown))}, expected only "inputs"'
        )
    check_names(inputs)
    return {name: array_from_lists(value, name=name) for name, value in inputs.items()}


def encode(answer: ResponseData) -> list[bytes]:
    """The pieces of a JSON object with nested lists, which are not copied together.

    Raises:
        InvalidField: an output value is NaN or infinite.
    """
    remedy = "request a binary format, for example with 'Accept: application/x-npy'"
    for name, array in answer.outputs.items():
        require_encodable(array, name=name, remedy=remedy)
    warned = {"warnings": answer.warnings} if answer.warnings else {}
    about = orjson.dumps(
        {
            "model": answer.model,
            "version": answer.version,
            "backend": answer.backend,
            "precision": answer.precision,
            **warned,
            "units": answer.units,
            **({"trust": answer.trust} if answer.trust else {}),
            **({"trust_status": answer.trust_status} if answer.trust_status else {}),
        }
    )
    written = [about[:-1], b',"outputs":{']
    for number, (name, array) in enumerate(answer.outputs.items()):
        written.append(b"%b%b:" % (b"," if number else b"", orjson.dumps(name)))
        written += json_arrays.pieces(array)
    return [*written, b"}}"]


def json_type(value: object) -> str:
    """The JSON name of a parsed value's type."""
    names = {
        dict: "object", list: "array", np.ndarray: "array", str: "string", bool: "boolean",
        type(None): "null",
    }  # fmt: skip
    return names.get(type(value), "number")


def shown(value: object) -> str:
    """A parsed JSON value in short form for an error message, also if nested deeply."""
    if isinstance(value, dict):
        return "a JSON object"
    if isinstance(value, np.ndarray):
        return "a JSON array"
    if isinstance(value, list):
        if len(value) > MAX_RANK or any(isinstance(item, (list, dict)) for item in value):
            return "a JSON array"
        return f"[{', '.join(map(shown, value))}]"
    text = orjson.dumps(value).decode()
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "..."


def _require_uniform(level: list[Any], shape: list[int], *, name: str) -> None:
    expected = len(level[0])
    if set(map(type, level)) == {list} and len(set(map(len, level))) == 1:
        return
    for position, item in enumerate(level):
        if type(item) is not list:
            found = f"is {shown(item)}"
        elif len(item) != expected:
            found = f"has {len(item)} entries"
        else:
            continue
        raise InvalidField(
            f"'{name}' is ragged: {name}{_index(position, shape)} {found}, the first list at "
            f"that depth has {expected} entries"
        )


def _index(position: int, shape: list[int]) -> str:
    return str([int(i) for i in np.unravel_index(position, shape)]) if shape else ""
