"""Gradients: vector-Jacobian products of a model with respect to its input, batched as predictions are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from msgspec import Meta, Struct

from turbofno.service.codec.fields import ResponseData
from turbofno.service.codec.negotiate import CODECS, JSON, NPY, NPZ, SAFETENSORS, Codec
from turbofno.service.codec.vjp import VjpForm, arrays_from_vjp, units_of_vjp, vjp_from_arrays
from turbofno.service.engine.interface import Fields
from turbofno.service.engine.vjp import VjpShapes, join, part
from turbofno.service.errors import NotAcceptable, UnsupportedMediaType
from turbofno.service.http import openapi
from turbofno.service.http.call import Call, Operation, Reply
from turbofno.service.http.inference import run_model, warnings_of
from turbofno.service.http.parameters import PRIORITY, flag, seconds_allowed
from turbofno.service.http.predict import codecs, fields_reply, read_arrays
from turbofno.service.http.route import route
from turbofno.service.http.served import Served

_MEAN = [1 / len(openapi.VELOCITY)] * len(openapi.VELOCITY)
_INPUT_AND_COTANGENT = (
    "The input as for a prediction; and the cotangent, of the output's shape: either 'cotangent' with shape [batch, "
    "channels, *grid] or [channels, *grid], or 'cotangent.NAME' for every output channel, with shape [*grid] or "
    "[batch, *grid]."
)


class VjpRequest(Struct, forbid_unknown_fields=True):
    """Input fields of a model, and a cotangent of its output."""

    inputs: Annotated[
        dict[str, openapi.NestedList], Meta(min_length=2, description=_INPUT_AND_COTANGENT)
    ]


_REQUEST_BODY = openapi.arrays_body(
    VjpRequest,
    {
        "by channel": (
            "gradient of the mean of model burgers-1d's output, at a field on 256 points",
            {"u0": openapi.VELOCITY, "cotangent.u": _MEAN},
        ),
        "as tensors": (
            "the same as tensors [batch, channels, x]",
            {"input": [[openapi.VELOCITY]], "cotangent": [[_MEAN]]},
        ),
    },
    codecs=[codec for codec in CODECS if codec is not NPY],
)
_ANSWER = {
    **openapi.ANSWER,
    "description": "The gradient, laid out as the input was: 'gradient', or 'gradient.NAME' of each input "
    "channel; with output=true also the output, laid out as the cotangent was: 'output', or 'output.NAME'. "
    "In the form that Accept asks for, by default that of the request.",
    "headers": openapi.ANSWER_HEADERS,
}
_ERRORS = {
    **openapi.ERRORS,
    413: "Over a stated limit, which the error names; also that of the memory for gradients.",
    422: "The model cannot take these fields or this cotangent, or has no gradient.",
}


class Parameters(NamedTuple):
    reader: Codec
    writer: Codec
    priority: int
    seconds: float | None
    output: bool


def _parse(call: Call, given: Mapping[str, Any]) -> Parameters:
    output = given["output"]
    reader, writer = codecs(call)
    if reader is NPY:
        raise UnsupportedMediaType(
            f"{NPY.media_type} carries one array, a gradient needs two, the input and the cotangent: send them by name "
            f"as {NPZ.media_type}, {SAFETENSORS.media_type} or {JSON.media_type}"
        )
    if writer is NPY and output:
        raise NotAcceptable(
            f"{NPY.media_type} carries one array, gradient and output are two: leave output=true out, or ask for "
            f"{NPZ.media_type}, {SAFETENSORS.media_type} or {JSON.media_type}"
        )
    return Parameters(reader, writer, given["priority"], seconds_allowed(call), output)


OPERATIONS: list[Operation] = []


@route(
    OPERATIONS, "POST", "/v1/models/{name}VERSION:vjp",
    summaries=("Gradient through the newest version", "Gradient through one version"),
    tag="gradients",
    parameters=(flag("output", "also give the output"), PRIORITY),
    headers=(openapi.DEADLINE_HEADER,),
    body=_REQUEST_BODY,
    errors=_ERRORS,
    responses={200: _ANSWER},
    parse=_parse,
    protocol="vjp",
)  # fmt: skip
async def vjp(call: Call) -> Reply:
    """Multiply a cotangent by the Jacobian of the model: with dL/d(output) given, this is dL/d(input)."""
    parameters: Parameters = call.parameters
    served = call.served
    rows, (shapes, form) = await read_arrays(call, parameters.reader, _decode)
    result = await run_model(
        call, rows, priority=parameters.priority, seconds=parameters.seconds, vjp=shapes
    )
    call.note_result(result)
    gradients, outputs = part(result.fields, shapes)
    warnings = await warnings_of(call, served.warnings(shapes.input[1:]), {}, outputs)
    wanted = outputs if parameters.output else None
    answer = ResponseData(
        served.name, served.version, arrays_from_vjp(gradients, wanted, served.config, form),
        units_of_vjp(served.config, output=parameters.output), result.backend, result.precision, warnings=warnings,
    )  # fmt: skip
    return await fields_reply(call, answer)


def _decode(
    body: memoryview, codec: Codec, served: Served, most: int
) -> tuple[Fields, tuple[VjpShapes, VjpForm]]:
    arrays = codec.decode(body, max_bytes=most)
    fields, cotangents, form = vjp_from_arrays(arrays, served.config, max_fields=served.max_fields)
    rows, shapes = join(fields, cotangents)
    return rows, (shapes, form)
