"""OpenAPI descriptions of the Open Inference Protocol's routes."""

from __future__ import annotations

from typing import Any

from turbofno.service.http.described import described_twice
from turbofno.service.http.example_fields import burgers_field
from turbofno.service.http.oip_schemas import Error
from turbofno.service.http.parameters import Parameter
from turbofno.service.http.trust import TRUST_LARGEST, TRUST_STATUS

_EXAMPLE_DATA = burgers_field()

ERRORS: dict[int | str, dict[str, Any]] = {
    400: {"model": Error, "description": "The request does not follow the protocol."},
    401: {"model": Error, "description": "No known API key, where the server asks for one."},
    404: {"model": Error, "description": "No such model or version."},
    503: {"model": Error, "description": "Not ready, or shutting down."},
}
BODY_ERRORS: dict[int | str, dict[str, Any]] = {
    408: {"model": Error, "description": "The body took too long to arrive."},
    413: {"model": Error, "description": "Over a stated limit, which the error names."},
    415: {"model": Error, "description": "Content-Encoding is none of gzip, deflate, identity."},
}

_PARAMETERS = {
    "type": "object",
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "propertyNames": {"not": {"pattern": "^triton_"}},
    "properties": {
        "priority": {
            "type": "integer",
            "minimum": 0,
            "description": "1 is highest, 10 lowest, 0 counts as 5",
        },
        "timeout": {"type": "integer", "minimum": 0, "description": "microseconds in the queue"},
        "binary_data_output": {"type": "boolean"},
        "output_grid": {
            "type": "string",
            "pattern": "^[0-9]+(,[0-9]+)*$",
            "description": "points on each axis of the answer, as 128,128: the model then runs on its training grid, "
            "input and answer are interpolated",
        },
    },
}
_INFER_REQUEST = {
    "type": "object",
    "required": ["inputs"],
    "properties": {
        "id": {"type": "string"},
        "parameters": _PARAMETERS,
        "inputs": {
            "type": "array",
            "minItems": 1,
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name", "shape", "datatype"],
                "properties": {
                    "name": {"const": "input"},
                    "shape": {"type": "array", "items": {"type": "integer", "minimum": 0}},
                    "datatype": {"enum": ["FP32", "FP64", "FP16", "BF16"]},
                    "parameters": {
                        "type": "object",
                        "properties": {"binary_data_size": {"type": "integer", "minimum": 0}},
                    },
                    "data": {"type": "array", "items": {}, "description": "flat or nested"},
                },
            },
        },
        "outputs": {
            "type": "array",
            "maxItems": 1,
            "items": {
                "type": "object",
                "required": ["name"],
                "properties": {
                    "name": {"const": "output"},
                    "parameters": {
                        "type": "object",
                        "properties": {"binary_data": {"type": "boolean"}},
                    },
                },
            },
        },
    },
}
_INFER_RESPONSE = {
    "type": "object",
    "required": ["model_name", "model_version", "outputs"],
    "properties": {
        "id": {"type": "string"},
        "model_name": {"type": "string"},
        "model_version": {"type": "string"},
        "parameters": {
            "type": "object",
            "properties": {
                "warning": {
                    "type": "string",
                    "description": "why the answer may be worse than the model's card says",
                },
                "trust_status": TRUST_STATUS,
                **{f"trust_{name}": schema for name, schema in TRUST_LARGEST.items()},
            },
        },
        "outputs": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["name", "datatype", "shape"],
                "properties": {
                    "name": {"type": "string"},
                    "datatype": {"type": "string"},
                    "shape": {"type": "array", "items": {"type": "integer"}},
                    "parameters": {"type": "object"},
                    "data": {"type": "array", "items": {"type": "number"}},
                },
            },
        },
    },
}
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
INFER_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The output in the form asked for.",
        "headers": {"Inference-Header-Content-Length": _HEADER},
        "content": {
            "application/json": {"schema": _INFER_RESPONSE},
            "application/octet-stream": _BINARY,
        },
    },
    **BODY_ERRORS,
    422: {"model": Error, "description": "The model cannot take these fields."},
    429: {"model": Error, "description": "The queue is full: come back after Retry-After seconds."},
    504: {"model": Error, "description": "The timeout passed before the work ran."},
}


RAW_SHAPE = Parameter(
    "shape",
    "shape of a raw body (Inference-Header-Content-Length: 0), as 1,1,64,64",
    {"type": "string"},
    "the sizes of the axes",
    str,
)


def _response(described: dict[str, Any]) -> dict[str, Any]:
    if "model" not in described:
        return described
    content = {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}
    return {"description": described["description"], "content": content}


INFER_PATHS = described_twice(
    "/v2/models/{model}VERSION/infer",
    tag="Open Inference Protocol v2",
    summaries=("Infer with the newest version", "Infer with one version"),
    description="Infer; JSON or binary tensors both ways, whatever Content-Type says.",
    parameters=(RAW_SHAPE,),
    headers=({"name": "Inference-Header-Content-Length", "in": "header", **_HEADER},),
    body=INFER_BODY,
    responses={code: _response(one) for code, one in {**ERRORS, **INFER_RESPONSES}.items()},
)
