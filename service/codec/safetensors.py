"""The safetensors format: a length, a JSON header, and raw tensors without gaps."""

from __future__ import annotations

import math

import orjson

from turbofno.service.codec.fields import (
    BFLOAT16,
    MAX_RANK,
    Array,
    ResponseData,
    array_from_bytes,
    bytes_of,
    check_names,
    shaped,
)
from turbofno.service.codec.json import parse_object, shown
from turbofno.service.errors import BadRequest, InvalidField, PayloadTooLarge

_MAX_HEADER = 1 << 16
_ALIGNMENT = 8
_DTYPES = {"F16": "<f2", "BF16": BFLOAT16, "F32": "<f4", "F64": "<f8"}
_SIZES = {"F16": 2, "BF16": 2, "F32": 4, "F64": 8}


def decode(body: bytes | memoryview) -> dict[str, Array]:
    """Read all tensors: views of `body` for F16, F32 and F64, a float32 copy for BF16.

    Raises:
        BadRequest: a header with a wrong length, or with wrong sizes or offsets of tensors.
        InvalidField: a dtype other than F16, BF16, F32 or F64.
        PayloadTooLarge: a header above 64 KiB.
    """
    view = memoryview(body).cast("B")
    if len(view) < 8:
        raise BadRequest(
            f"the body has {len(view)} bytes, expected a safetensors file, which starts with 8 length bytes"
        )
    length = int.from_bytes(view[:8], "little")
    if length > len(view) - 8:
        raise BadRequest(
            f"the safetensors header declares {length} bytes, but only {len(view) - 8} follow"
        )
    if length > _MAX_HEADER:
        raise PayloadTooLarge(
            f"the safetensors header has {length} bytes, expected at most {_MAX_HEADER}"
        )
    header = parse_object(view[8 : 8 + length], what="safetensors header")
    header.pop("__metadata__", None)
    check_names(header)
    data = view[8 + length :]
    spans = {name: _span(name, entry) for name, entry in header.items()}
    _require_no_gaps(spans, len(data))
    return {
        name: shaped(
            array_from_bytes(data[begin:end], _DTYPES[dtype]), shape, name=f"tensor '{name}'"
        )
        for name, (dtype, shape, begin, end) in spans.items()
    }


def encode(answer: ResponseData) -> list[bytes | memoryview]:
    """The pieces of a file of F32 tensors, with model and version as metadata; the values are views if possible."""
    metadata = {
        "model": answer.model,
        "version": answer.version,
        "backend": answer.backend,
        "precision": answer.precision,
        **{f"units.{name}": units for name, units in answer.units.items()},
    }
    header: dict[str, object] = {"__metadata__": metadata}
    values = [bytes_of(array) for array in answer.outputs.values()]
    begin = 0
    for (name, array), data in zip(answer.outputs.items(), values, strict=True):
        end = begin + data.nbytes
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
        begin = end
    text = orjson.dumps(header)
    text += b" " * (-len(text) % _ALIGNMENT)
    return [len(text).to_bytes(8, "little") + text, *values]


def _span(name: str, entry: object) -> tuple[str, list[int], int, int]:
    if not isinstance(entry, dict):
        raise BadRequest(
            f"entry '{name}' of the safetensors header is not an object, expected dtype, shape and data_offsets"
        )
    shape = _sizes(entry.get("shape"), at_most=MAX_RANK, what=f"shape of tensor '{name}'")
    offsets = _sizes(entry.get("data_offsets"), at_most=2, what=f"data_offsets of tensor '{name}'")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in _SIZES:
        raise InvalidField(
            f"tensor '{name}' has dtype {shown(dtype)}, expected F32 (F16, BF16 and F64 are "
            f"converted)"
        )
    if len(offsets) != 2:
        raise BadRequest(f"data_offsets of tensor '{name}' are {offsets}, expected [begin, end]")
    begin, end = offsets
    expected = math.prod(shape) * _SIZES[dtype]
    if end - begin != expected:
        raise BadRequest(
            f"tensor '{name}' occupies bytes {begin} to {end}, shape {shape} of {dtype} needs "
            f"{expected} bytes"
        )
    return dtype, shape, begin, end


def _sizes(value: object, *, at_most: int, what: str) -> list[int]:
    if (
        isinstance(value, list)
        and len(value) <= at_most
        and all(type(item) is int and item >= 0 for item in value)
    ):
        return value
    raise BadRequest(f"the {what} is {shown(value)}, expected a list of at most {at_most} sizes")


def _require_no_gaps(spans: dict[str, tuple[str, list[int], int, int]], available: int) -> None:
    expected = 0
    for name, (_, _, begin, end) in sorted(spans.items(), key=lambda item: item[1][2:]):
        if begin != expected:
            raise BadRequest(
                f"tensor '{name}' begins at byte {begin}, expected {expected}, the end of the one before: "
                f"tensors must have no gaps or overlaps"
            )
        expected = end
    if expected != available:
        raise BadRequest(
            f"the safetensors header describes {expected} bytes of tensors, the body has "
            f"{available}"
        )
