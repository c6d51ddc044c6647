"""OpenAPI descriptions of the friendly route's operations: bodies, answers, errors."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from turbofno.service.codec.negotiate import CODECS, JSON
from turbofno.service.http.example_fields import burgers_field
from turbofno.service.http.openapi import problem
from turbofno.service.http.parameters import DEADLINE_DESCRIBED
from turbofno.service.http.trust import TRUST_HEADERS, TRUST_SCHEMA, TRUST_STATUS

if TYPE_CHECKING:
    from turbofno.service.http.parameters import Parameter

WARNING = "X-Warning"
"""Header of an answer: its warnings, separated by semicolons."""
_EXAMPLE_INPUT = burgers_field()
_BINARY = {"schema": {"type": "string", "format": "binary"}}
_ARRAYS = {
    "type": "object",
    "description": (
        "Either 'input' with shape [batch, channels, *grid], [channels, *grid], or, for a model with "
        "one input channel, [*grid]; or every input channel of the model by its name, with shape [*grid] "
        "or [batch, *grid]."
    ),
    "minProperties": 1,
    "additionalProperties": {"type": "array", "items": {}, "description": "Nested lists."},
}
REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "content": {codec.media_type: _BINARY for codec in CODECS if codec is not JSON}
    | {
        JSON.media_type: {
            "schema": {
                "type": "object",
                "required": ["inputs"],
                "properties": {"inputs": _ARRAYS},
                "additionalProperties": False,
            },
            "examples": {
                "by channel": {
                    "summary": "a field for model burgers-1d, on 256 points",
                    "value": {"inputs": {"u0": _EXAMPLE_INPUT}},
                },
                "as a tensor": {
                    "summary": "the same as one tensor [batch, channels, x]",
                    "value": {"inputs": {"input": [[_EXAMPLE_INPUT]]}},
                },
            },
        }
    },
}
WARNING_HEADER: dict[str, Any] = {
    "description": "in words, why the answer may be worse than the model's card says; absent if nothing is known",
    "schema": {"type": "string"},
}
RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "The output fields, laid out and named as the input was: 'output', or "
        "output channel names; in the form that Accept asks for, by default that of the request.",
        "headers": {
            "X-Model-Version": {
                "description": "version that answered",
                "schema": {"type": "string"},
            },
            "X-Batch-Size": {
                "description": "fields in each device batch that these fields ran in",
                "schema": {"type": "string"},
            },
            "Server-Timing": {
                "description": "decode, queue, compute and encode in milliseconds",
                "schema": {"type": "string"},
            },
            **TRUST_HEADERS,
            WARNING: WARNING_HEADER,
        },
        "content": {codec.media_type: _BINARY for codec in CODECS if codec is not JSON}
        | {
            JSON.media_type: {
                "schema": {
                    "type": "object",
                    "required": ["model", "version", "backend", "precision", "units", "outputs"],
                    "properties": {
                        "model": {"type": "string"},
                        "version": {"type": "string"},
                        "backend": {"type": "string"},
                        "precision": {"type": "string"},
                        "warnings": {
                            "type": "array",
                            "items": {"type": "string"},
                            "description": "as the header X-Warning; absent if there are none",
                        },
                        "units": {"type": "object", "additionalProperties": {"type": "string"}},
                        "trust": TRUST_SCHEMA,
                        "trust_status": TRUST_STATUS,
                        "outputs": {"type": "object", "additionalProperties": {"type": "array"}},
                    },
                }
            }
        },
    },
    400: problem("The body or a parameter cannot be understood."),
    401: problem("No known API key, where the server asks for one."),
    404: problem("No such model or version."),
    406: problem("Accept allows none of the offered forms; the error lists them."),
    408: problem("The body took too long to arrive."),
    413: problem("Over a stated limit, which the error names."),
    415: problem("Content-Type or Content-Encoding is not read; the error lists what is."),
    422: problem("The model cannot take these fields: shape, channels, dtype, NaN."),
    429: problem("The queue is full: come back after Retry-After seconds."),
    503: problem("Loading, draining or out of device memory."),
    504: problem("The deadline passed before the work ran."),
}


def path_parameter(name: str, description: str, example: str) -> dict[str, Any]:
    """A part of a path."""
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": description,
        "schema": {"type": "string", "examples": [example]},
    }


def described_twice(
    path: str,
    *,
    tag: str,
    summaries: tuple[str, str],
    description: str,
    parameters: tuple[Parameter, ...],
    body: dict[str, Any],
    responses: dict[int | str, dict[str, Any]],
    headers: tuple[dict[str, Any], ...] = (DEADLINE_DESCRIBED,),
    example: str = "burgers-1d",
) -> dict[str, dict[str, Any]]:
    """The operation at `path` of the newest version, and of a version that stands where `path` has VERSION."""
    placeholder = path[path.index("{") + 1 : path.index("}")]
    name = path_parameter(placeholder, "name of a model", example)
    version = path_parameter("version", "version of the model", "1")
    asked = [*(one.described() for one in parameters), *headers]
    verb = re.split("[:/]", path)[-1]
    shared = {
        "tags": [tag],
        "description": description,
        "requestBody": body,
        "responses": {str(code): response for code, response in responses.items()},
    }
    return {
        path.replace("VERSION", ""): {
            "summary": summaries[0],
            "operationId": f"{verb}_newest",
            "parameters": [name, *asked],
            **shared,
        },
        path.replace("VERSION", "/versions/{version}"): {
            "summary": summaries[1],
            "operationId": f"{verb}_version",
            "parameters": [name, version, *asked],
            **shared,
        },
    }
