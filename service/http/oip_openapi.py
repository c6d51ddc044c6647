"""OpenAPI descriptions of the Open Inference Protocol's routes."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from turbofno.service.http.openapi import GRID_PATTERN, SCHEMAS, VELOCITY, NestedList, schema_of
from turbofno.service.http.parameters import Parameter
from turbofno.service.http.trust import OF_REQUEST, WHY_NO_SIGNALS

TAG = "Open Inference Protocol v2"
_Size = Annotated[int, Meta(ge=0)]
_OUTPUT_GRID = (
    "points on each axis of the answer, as 128,128: the model then runs on its training grid, input and answer are "
    "interpolated"
)


class InferParameters(Struct):
    priority: Annotated[
        int, Meta(ge=0, le=10, description="1 is highest, 10 lowest, 0 counts as 5")
    ] = 0
    timeout: Annotated[int, Meta(ge=0, description="microseconds in the queue")] | UnsetType = UNSET
    binary_data_output: bool = False
    output_grid: (
        Annotated[str, Meta(pattern=GRID_PATTERN, description=_OUTPUT_GRID)] | UnsetType
    ) = UNSET


class InputParameters(Struct):
    binary_data_size: _Size | UnsetType = UNSET


class InferInput(Struct):
    name: Literal["input"]
    shape: list[_Size]
    datatype: Literal["FP32", "FP64", "FP16", "BF16"]
    parameters: InputParameters | UnsetType = UNSET
    data: Annotated[NestedList, Meta(description="flat or nested")] | UnsetType = UNSET


class OutputParameters(Struct):
    binary_data: bool | UnsetType = UNSET


class InferOutput(Struct):
    name: Literal["output"]
    parameters: OutputParameters | UnsetType = UNSET


class InferRequest(Struct):
    inputs: Annotated[list[InferInput], Meta(min_length=1, max_length=1)]
    outputs: Annotated[list[InferOutput], Meta(max_length=1)] | UnsetType = UNSET
    id: str | UnsetType = UNSET
    parameters: InferParameters | UnsetType = UNSET


class OutputTensor(Struct):
    name: str
    datatype: str
    shape: list[int]
    parameters: dict[str, Any] | UnsetType = UNSET
    data: list[float] | UnsetType = UNSET


class ResponseParameters(Struct):
    warning: (
        Annotated[str, Meta(description="why the answer may be worse than the model's card says")]
        | UnsetType
    ) = UNSET
    trust_status: Annotated[str, Meta(description=WHY_NO_SIGNALS)] | UnsetType = UNSET
    trust_input_distance: (
        Annotated[float, Meta(description=OF_REQUEST["input_distance"])] | UnsetType
    ) = UNSET
    trust_residual: Annotated[float, Meta(description=OF_REQUEST["residual"])] | UnsetType = UNSET


class InferResponse(Struct):
    model_name: str
    model_version: str
    outputs: list[OutputTensor]
    id: str | UnsetType = UNSET
    parameters: ResponseParameters | UnsetType = UNSET


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

_REQUEST = schema_of(InferRequest)
# of the component, because some generators of clients read nothing beside a reference to it
SCHEMAS[InferParameters.__name__] |= {
    "additionalProperties": {"type": ["string", "number", "boolean"]},
    "propertyNames": {"not": {"pattern": "^triton_"}},
}
INFER_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        "application/json": {
            "schema": _REQUEST,
            "examples": {
                "burgers-1d": {
                    "summary": "a field for model burgers-1d, on 256 points",
                    "value": {
                        "id": "42",
                        "inputs": [
                            {
                                "name": "input",
                                "shape": [1, 1, len(VELOCITY)],
                                "datatype": "FP32",
                                "data": VELOCITY,
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
)

LENGTH_HEADER = {"name": "Inference-Header-Content-Length", "in": "header", **_HEADER}
INFER_ANSWER = {
    "description": "The output in the requested form.",
    "headers": {"Inference-Header-Content-Length": _HEADER},
    "content": {
        "application/json": {"schema": schema_of(InferResponse)},
        "application/octet-stream": _BINARY,
    },
}
