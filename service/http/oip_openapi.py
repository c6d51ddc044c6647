"""OpenAPI descriptions of the Open Inference Protocol's routes."""

from __future__ import annotations

from typing import Any

from turbofno.service.http.openapi import (
    array_of,
    burgers_field,
    object_of,
)
from turbofno.service.http.parameters import Parameter
from turbofno.service.http.trust import TRUST_LARGEST, TRUST_STATUS

TAG = "Open Inference Protocol v2"
_EXAMPLE_DATA = burgers_field()


_PARAMETERS = object_of(
    {
        "priority": {
            "type": "integer",
            "minimum": 0,
            "description": "1 is highest, 10 lowest, 0 counts as 5",
        },
        "timeout": {"type": "integer", "minimum": 0, "description": "microseconds in the queue"},
        "binary_data_output": "boolean",
        "output_grid": {
            "type": "string",
            "pattern": "^[0-9]+(,[0-9]+)*$",
            "description": "points on each axis of the answer, as 128,128: the model then runs on its training grid, "
            "input and answer are interpolated",
        },
    },
    required=(),
    additionalProperties={"type": ["string", "number", "boolean"]},
    propertyNames={"not": {"pattern": "^triton_"}},
)
_SIZE = {"type": "integer", "minimum": 0}
_INPUT = object_of(
    {
        "name": {"const": "input"},
        "shape": array_of(_SIZE),
        "datatype": {"enum": ["FP32", "FP64", "FP16", "BF16"]},
        "parameters": object_of({"binary_data_size": _SIZE}, required=()),
        "data": array_of({}, description="flat or nested"),
    },
    required=("name", "shape", "datatype"),
)
_OUTPUT = object_of(
    {"name": {"const": "output"}, "parameters": object_of({"binary_data": "boolean"}, required=())},
    required=("name",),
)
_INFER_REQUEST = object_of(
    {
        "id": "string",
        "parameters": _PARAMETERS,
        "inputs": array_of(_INPUT, minItems=1, maxItems=1),
        "outputs": array_of(_OUTPUT, maxItems=1),
    },
    required=("inputs",),
)
_INFER_RESPONSE = object_of(
    {
        "id": "string",
        "model_name": "string",
        "model_version": "string",
        "parameters": object_of(
            {
                "warning": {
                    "type": "string",
                    "description": "why the answer may be worse than the model's card says",
                },
                "trust_status": TRUST_STATUS,
                **{f"trust_{name}": schema for name, schema in TRUST_LARGEST.items()},
            },
            required=(),
        ),
        "outputs": array_of(
            object_of(
                {
                    "name": "string",
                    "datatype": "string",
                    "shape": array_of("integer"),
                    "parameters": "object",
                    "data": array_of("number"),
                },
                required=("name", "datatype", "shape"),
            )
        ),
    },
    required=("model_name", "model_version", "outputs"),
)
_BINARY = {
    "schema": {
        "type": "string",
        "format": "binary",
        "description": "The JSON, directly followed by little-endian row-major tensor bytes; the "
        "header Inference-Header-Content-Length is the length of the JSON.",
    }
}
_HEADER = {
    "description": "Length in bytes of the JSON at the start of the body; absent if all is JSON.",
    "schema": {"type": "integer", "minimum": 0},
}

INFER_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": _INFER_REQUEST,
            "examples": {
                "burgers-1d": {
                    "summary": "a field for model burgers-1d, on 256 points",
                    "value": {
                        "id": "42",
                        "inputs": [
                            {
                                "name": "input",
                                "shape": [1, 1, len(_EXAMPLE_DATA)],
                                "datatype": "FP32",
                                "data": _EXAMPLE_DATA,
                            }
                        ],
                    },
                }
            },
        },
        "application/octet-stream": _BINARY,
    },
}
RAW_SHAPE = Parameter(
    "shape",
    "shape of a raw body (Inference-Header-Content-Length: 0), as 1,1,64,64",
    {"type": "string"},
    "the sizes of the axes",
    str,
)

LENGTH_HEADER = {"name": "Inference-Header-Content-Length", "in": "header", **_HEADER}
INFER_ANSWER = {
    "description": "The output in the requested form.",
    "headers": {"Inference-Header-Content-Length": _HEADER},
    "content": {
        "application/json": {"schema": _INFER_RESPONSE},
        "application/octet-stream": _BINARY,
    },
}
