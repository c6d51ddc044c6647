"""Parts of OpenAPI descriptions that several operations share: parameters, bodies, responses, examples."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import UNSET, Meta, Struct, UnsetType

from turbofno.service.codec.negotiate import CODECS, JSON, Codec
from turbofno.service.http.parameters import DEADLINE
from turbofno.service.http.trust import (
    OF_FIELDS,
    OF_FRAMES,
    OF_REQUEST,
    TRUST_HEADER,
    WHY_NO_SIGNALS,
)

WARNING = "X-Warning"
"""Response header: the warnings of an answer, separated by semicolons."""
DEADLINE_HEADER: dict[str, Any] = {
    "name": DEADLINE,
    "in": "header",
    "required": False,
    "description": "drop the work with 504 if it has not started within this many milliseconds, "
    "counted once the body has come and is decoded",
    "schema": {"type": "number", "exclusiveMinimum": 0},
}


GRID_PATTERN = "^[0-9]+(,[0-9]+)*$"

SCHEMAS: dict[str, Any] = {}
"""The document's components, by name."""


def schema_of(kind: Any) -> dict[str, Any]:
    """The schema of a type; those of the structures in it are added to SCHEMAS."""
    (schema,), components = msgspec.json.schema_components(
        (kind,), ref_template="#/components/schemas/{name}"
    )
    SCHEMAS.update(components)
    return schema


NestedList = Annotated[
    list[Any], Meta(description="nested lists of numbers", extra_json_schema={"items": {}})
]
"""Nested lists of numbers. Generators of clients leave out what has an array without `items`."""

ERRORS = {
    400: "The body or a parameter cannot be understood.",
    401: "No known API key, where the server asks for one.",
    404: "No such model or version.",
    406: "Accept allows none of the offered forms; the error lists them.",
    408: "The body took too long to arrive.",
    413: "Over a stated limit, which the error names.",
    415: "Content-Type or Content-Encoding is not read; the error lists what is.",
    422: "The model cannot take these fields: shape, channels, dtype, NaN.",
    429: "The queue is full: come back after Retry-After seconds.",
    503: "Loading, draining or out of device memory.",
    504: "The deadline passed before the work ran.",
}


def errors(*codes: int) -> dict[int, str]:
    """The usual meanings of these errors."""
    return {code: ERRORS[code] for code in codes}


def _random_field(
    grid: tuple[int, ...], scale: float, shift: float, power: float, *, digits: int
) -> Any:
    """A periodic field of zero mean, such as a model takes, so that examples of predictions carry no warning."""
    noise = np.random.default_rng(0).normal(size=grid)
    squared = sum(k**2 for k in np.meshgrid(*(np.fft.fftfreq(n, 1 / n) for n in grid)))
    deviation = scale * (4 * math.pi**2 * squared + shift) ** power
    deviation.flat[0] = 0.0
    field = np.fft.ifftn(np.fft.fftn(noise) * deviation).real * math.sqrt(noise.size)
    return field.round(digits).tolist()


VELOCITY: list[float] = _random_field((256,), 25.0, 25.0, -1.0, digits=4)
"""An initial velocity of burgers-1d: N(0, 625 (-Laplacian + 25 I)^-2), periodic, of zero mean."""
VORTICITY: list[list[float]] = _random_field((64, 64), 7e4, 49.0, -3.0, digits=3)
"""A vorticity of navier-stokes-2d, smoother than an initial one, on which the model's error is above the card's."""

_BINARY = {"schema": {"type": "string", "format": "binary"}}
INPUT_ARRAYS = (
    "Either 'input' with shape [batch, channels, *grid], [channels, *grid], or, for a model with one input channel, "
    "[*grid]; or every input channel of the model by its name, with shape [*grid] or [batch, *grid]."
)


def formats(codecs: Sequence[Codec], **json: Any) -> dict[str, Any]:
    """A body in the formats of these codecs; `json` describes the JSON."""
    return {codec.media_type: json if codec is JSON else _BINARY for codec in codecs}


class FieldsRequest(Struct, forbid_unknown_fields=True):
    """Input fields of a model."""

    inputs: Annotated[dict[str, NestedList], Meta(min_length=1, description=INPUT_ARRAYS)]


def arrays_body(
    form: type[Struct],
    examples: Mapping[str, tuple[str, Any]],
    *,
    codecs: Sequence[Codec] = CODECS,
) -> dict[str, Any]:
    """A request body of named arrays, in JSON of this form; `examples` has a summary and arrays by name."""
    shown = {
        name: {"summary": summary, "value": {"inputs": inputs}}
        for name, (summary, inputs) in examples.items()
    }
    return {"required": True, "content": formats(codecs, schema=schema_of(form), examples=shown)}


REQUEST_BODY = arrays_body(
    FieldsRequest,
    {
        "by channel": ("a field for model burgers-1d, on 256 points", {"u0": VELOCITY}),
        "as a tensor": ("the same as one tensor [batch, channels, x]", {"input": [[VELOCITY]]}),
    },
)


def _header(description: str, kind: str = "string") -> dict[str, Any]:
    return {"description": description, "schema": {"type": kind}}


class FieldsAnswer(Struct):
    model: str
    version: str
    backend: str
    precision: str
    units: dict[str, str]
    outputs: dict[str, NestedList]
    warnings: (
        Annotated[list[str], Meta(description="as the header X-Warning; absent if there are none")]
        | UnsetType
    ) = UNSET
    trust: Annotated[dict[str, list[float]], Meta(description=OF_FIELDS)] | UnsetType = UNSET
    trust_status: Annotated[str, Meta(description=WHY_NO_SIGNALS)] | UnsetType = UNSET


_OfFrames = Annotated[dict[str, list[list[float]]], Meta(description=OF_FRAMES)]


class FramesAnswer(FieldsAnswer):
    trust: _OfFrames | UnsetType = UNSET  # type: ignore[assignment]


ANSWER_HEADERS: dict[str, Any] = {
    "X-Model-Version": _header("version that answered"),
    "Server-Timing": _header(
        "decode, queue, compute and encode in milliseconds, those that there were"
    ),
    WARNING: _header(
        "in words, why the answer may be worse than the model's card says; absent if nothing is known"
    ),
}
"""Headers of predictions, gradients and rollouts."""
TRUST_HEADERS = {TRUST_HEADER: _header(WHY_NO_SIGNALS)} | {
    f"X-Trust-{name.replace('_', '-').title()}": _header(meaning, "number")
    for name, meaning in OF_REQUEST.items()
}
ANSWER: dict[str, Any] = {
    "description": "The output fields, laid out and named as the input was: 'output', or "
    "output channel names; in the form that Accept asks for, by default that of the request.",
    "headers": {
        **ANSWER_HEADERS,
        "X-Batch-Size": _header("fields in each device batch that these fields ran in"),
        **TRUST_HEADERS,
    },
    "content": formats(CODECS, schema=schema_of(FieldsAnswer)),
}
