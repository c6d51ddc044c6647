"""The gradient route: vector-Jacobian products of a model with respect to its input, batched like predictions."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service import answer_warnings
from service.codec.fields import Answer
from service.codec.negotiate import (
    CODECS,
    JSON,
    NPY,
    NPZ,
    SAFETENSORS,
    codec_for_answer,
    codec_for_body,
)
from service.codec.vjp import VjpForm, arrays_from_vjp, units_of_vjp, vjp_from_arrays
from service.context import context_of, record_of
from service.errors import BadRequest, NotAcceptable, UnsupportedMediaType
from service.http.example_fields import burgers_field
from service.http.inference import admit, begin, infer
from service.http.offload import heavy_to_encode, offload
from service.http.openapi import ModelName, ModelVersion, problem
from service.http.predict import REQUEST_BODY, RESPONSES, Deadline, Priority, read_arrays
from service.http.warned import counted, warning_header
from service.pipeline.vjp import VjpShapes, join, part

if TYPE_CHECKING:
    from models.config import ModelConfig
    from service.codec.fields import Array
    from service.codec.negotiate import Codec
    from service.pipeline.engine import Fields, PredictResult

router = APIRouter(tags=["gradients"])

_FIELD = burgers_field()
_MEAN = [1 / len(_FIELD)] * len(_FIELD)
_REQUEST_BODY: dict[str, Any] = {
    "required": True,
    "content": {
        codec.media_type: REQUEST_BODY["content"][codec.media_type]
        for codec in CODECS
        if codec is not NPY
    },
}
_REQUEST_BODY["content"][JSON.media_type] = {
    "schema": {
        "type": "object",
        "required": ["inputs"],
        "properties": {
            "inputs": {
                "type": "object",
                "description": (
                    "The input as for a prediction; and the cotangent, of the output's shape: either 'cotangent' "
                    "with shape [batch, channels, *grid] or [channels, *grid], or 'cotangent.NAME' for every "
                    "output channel, with shape [*grid] or [batch, *grid]."
                ),
                "minProperties": 2,
                "additionalProperties": {
                    "type": "array",
                    "items": {},
                    "description": "Nested lists.",
                },
            }
        },
        "additionalProperties": False,
    },
    "examples": {
        "by channel": {
            "summary": "gradient of the mean of model burgers-1d's output, at a field on 256 points",
            "value": {"inputs": {"u0": _FIELD, "cotangent.u": _MEAN}},
        },
        "as tensors": {
            "summary": "the same as tensors [batch, channels, x]",
            "value": {"inputs": {"input": [[_FIELD]], "cotangent": [[_MEAN]]}},
        },
    },
}
_RESPONSES: dict[int | str, dict[str, Any]] = {
    **RESPONSES,
    200: {
        **RESPONSES[200],
        "description": "The gradient, laid out as the input was: 'gradient', or 'gradient.NAME' of each input "
        "channel; with output=true also the output, laid out as the cotangent was: 'output', or 'output.NAME'. "
        "In the form that Accept asks for, by default that of the request.",
    },
    413: problem(
        "Over a stated limit, which the error names; also that of the memory for gradients."
    ),
    422: problem("The model cannot take these fields or this cotangent, or has no gradient."),
}

Output = Annotated[bool, Query(description="also give the output")]


@router.post(
    "/v1/models/{name}:vjp",
    summary="Gradient through the newest version",
    openapi_extra={"requestBody": _REQUEST_BODY},
    responses=_RESPONSES,
    response_class=Response,
)
async def vjp_newest(
    request: Request,
    name: ModelName,
    output: Output = False,
    priority: Priority = 0,
    deadline_ms: Deadline = None,
) -> Response:
    """Multiply a cotangent by the Jacobian of the model: with dL/d(output) given, this is dL/d(input)."""
    return await _vjp(
        request, name, None, output=output, priority=priority, deadline_ms=deadline_ms
    )


@router.post(
    "/v1/models/{name}/versions/{version}:vjp",
    summary="Gradient through one version",
    openapi_extra={"requestBody": _REQUEST_BODY},
    responses=_RESPONSES,
    response_class=Response,
)
async def vjp_version(
    request: Request,
    name: ModelName,
    version: ModelVersion,
    output: Output = False,
    priority: Priority = 0,
    deadline_ms: Deadline = None,
) -> Response:
    """Multiply a cotangent by the Jacobian of a chosen version of the model."""
    return await _vjp(
        request, name, version, output=output, priority=priority, deadline_ms=deadline_ms
    )


async def _vjp(
    request: Request,
    name: str,
    version: str | None,
    *,
    output: bool,
    priority: int,
    deadline_ms: float | None,
) -> Response:
    record = record_of(request)
    config = begin(request, "vjp", name, version)
    _refuse_unknown_parameters(request)
    reader, writer = _codecs(request, output=output)
    room = admit(request, config)
    most = context_of(request).settings.max_fields_per_request

    def check(arrays: dict[str, Array]) -> tuple[Fields, tuple[VjpShapes, VjpForm]]:
        fields, cotangents, form = vjp_from_arrays(arrays, config, max_fields=most)
        rows, shapes = join(fields, cotangents)
        return rows, (shapes, form)

    rows, (shapes, form) = await read_arrays(request, room, reader, check)
    seconds = None if deadline_ms is None else deadline_ms / 1e3
    result = await infer(
        request, rows, config=config, priority=priority, seconds=seconds, vjp=shapes
    )
    warned = answer_warnings.of_grids(config, shapes.input[1:])
    warnings = counted(request, config, warned)
    started = time.perf_counter()
    heavy = heavy_to_encode(result.fields.size, as_json=writer is JSON)
    answer = await offload(
        heavy, _encode, result, shapes, form, writer, config, warnings, output=output
    )
    record.encode_seconds = time.perf_counter() - started
    room.hold_answer(len(answer))
    headers = {"X-Model-Version": result.version, **warning_header(warnings)}
    return Response(answer, media_type=writer.media_type, headers=headers)


def _codecs(request: Request, *, output: bool) -> tuple[Codec, Codec]:
    """What reads the body and writes the answer. Raises UnsupportedMediaType, NotAcceptable."""
    reader = codec_for_body(", ".join(request.headers.getlist("content-type")) or None)
    if reader is NPY:
        raise UnsupportedMediaType(
            f"{NPY.media_type} carries one array, a gradient needs two, the input and the cotangent: send them by name "
            f"as {NPZ.media_type}, {SAFETENSORS.media_type} or {JSON.media_type}"
        )
    writer = codec_for_answer(", ".join(request.headers.getlist("accept")), request=reader)
    if writer is NPY and output:
        raise NotAcceptable(
            f"{NPY.media_type} carries one array, gradient and output are two: leave output=true out, or ask for "
            f"{NPZ.media_type}, {SAFETENSORS.media_type} or {JSON.media_type}"
        )
    return reader, writer


def _encode(
    result: PredictResult,
    shapes: VjpShapes,
    form: VjpForm,
    codec: Codec,
    config: ModelConfig,
    warnings: tuple[str, ...],
    *,
    output: bool,
) -> bytes:
    gradients, outputs = part(result.fields, shapes)
    return codec.encode(
        Answer(
            model=result.model,
            version=result.version,
            outputs=arrays_from_vjp(gradients, outputs if output else None, config, form),
            units=units_of_vjp(config, output=output),
            backend=result.backend,
            precision=result.precision,
            warnings=warnings,
        )
    )


def _refuse_unknown_parameters(request: Request) -> None:
    unknown = sorted(set(request.query_params) - {"output", "priority"})
    if unknown:
        raise BadRequest(
            f"unknown query parameter {unknown[0][:80]!r}; 'output' and 'priority' are known (a version goes into "
            "the path: /v1/models/NAME/versions/VERSION:vjp)"
        )
