"""The friendly route: fields in and out as JSON, .npy, .npz or safetensors."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import WithJsonSchema

from service import answer_warnings
from service.codec.fields import Answer, arrays_from_fields, fields_from_arrays
from service.codec.grids import OUTPUT_GRID, parse_output_grid
from service.codec.negotiate import CODECS, JSON, NPZ, codec_for_answer, codec_for_body
from service.context import context_of, record_of
from service.errors import BadRequest
from service.http.body import read_body
from service.http.example_fields import burgers_field
from service.http.inference import admit, begin
from service.http.offload import BINARY_BYTES, JSON_BYTES, heavy_to_encode, offload
from service.http.openapi import ModelName, ModelVersion, problem
from service.http.output_grid import infer_onto
from service.http.trust import (
    TRUST_HEADERS,
    TRUST_SCHEMA,
    TRUST_STATUS,
    UNTOLD,
    trust_headers,
    why_untold,
)
from service.http.warned import WARNING, counted, warning_header

if TYPE_CHECKING:
    from collections.abc import Callable

    from models.config import ModelConfig
    from service.codec.fields import Array, Form
    from service.codec.negotiate import Codec
    from service.pipeline.admission import Room
    from service.pipeline.engine import Fields, PredictResult

T = TypeVar("T")

router = APIRouter(tags=["predict"])

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
WARNING_HEADER = {
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

Priority = Annotated[
    int,
    Query(
        ge=0, lt=2**31, description="1 is highest, 10 lowest; 0, the default, is in the middle (5)"
    ),
]
Deadline = Annotated[
    float | None,
    Header(
        alias="X-Deadline-Ms",
        gt=0,
        description="drop the work with 504 if it has not started within this many milliseconds",
    ),
    # A header is there or not; it is never null, which the generated schema would allow.
    WithJsonSchema({"type": "number", "exclusiveMinimum": 0}),
]
OutputGrid = Annotated[
    str | None,
    Query(
        description="Points on each axis of the answer, for example 128,128: the model then runs on the grid that it "
        "was trained on, the input is interpolated there and the answer from there, which is as a rule more accurate "
        "than running it on another grid. Without it the model runs on the input's grid and answers there.",
        examples=["64"],
    ),
    WithJsonSchema({"type": "string", "pattern": "^[0-9]+(,[0-9]+)*$"}),
]


@router.post(
    "/v1/models/{name}:predict",
    summary="Predict with the newest version",
    openapi_extra={"requestBody": REQUEST_BODY},
    responses=RESPONSES,
    response_class=Response,
)
async def predict_newest(
    request: Request,
    name: ModelName,
    priority: Priority = 0,
    output_grid: OutputGrid = None,
    deadline_ms: Deadline = None,
) -> Response:
    """Solve the PDE for one field or many, in physical units."""
    return await predict(
        request, name, priority=priority, output_grid=output_grid, deadline_ms=deadline_ms
    )


@router.post(
    "/v1/models/{name}/versions/{version}:predict",
    summary="Predict with one version",
    openapi_extra={"requestBody": REQUEST_BODY},
    responses=RESPONSES,
    response_class=Response,
)
async def predict_version(
    request: Request,
    name: ModelName,
    version: ModelVersion,
    priority: Priority = 0,
    output_grid: OutputGrid = None,
    deadline_ms: Deadline = None,
) -> Response:
    """Solve the PDE for one field or many, with a chosen version of the model."""
    return await predict(
        request, name, version, priority=priority, output_grid=output_grid, deadline_ms=deadline_ms
    )


async def predict(
    request: Request,
    name: str,
    version: str | None = None,
    *,
    priority: int = 0,
    output_grid: str | None = None,
    deadline_ms: float | None = None,
) -> Response:
    """Answer with the newest version, or a chosen one. Raises ServiceError, ClientDisconnect."""
    record = record_of(request)
    config = begin(request, "predict", name, version)
    _refuse_unknown_parameters(request)
    grid = None if output_grid is None else parse_output_grid(output_grid, config)
    reader = codec_for_body(", ".join(request.headers.getlist("content-type")) or None)
    writer = codec_for_answer(", ".join(request.headers.getlist("accept")), request=reader)
    room = admit(request, config)
    fields, form = await read_fields(request, room, reader, config)
    seconds = None if deadline_ms is None else deadline_ms / 1e3
    result = await infer_onto(
        request, room, fields,
        config=config, output_grid=grid, priority=priority, seconds=seconds,
    )  # fmt: skip
    warned = answer_warnings.of_prediction(config, fields.shape[2:], grid, result.trust)
    warnings = counted(request, config, warned)
    untold = why_untold(config, result.trust, judged=context_of(request).settings.trust)
    started = time.perf_counter()
    heavy = heavy_to_encode(result.fields.size, as_json=writer is JSON)
    status = untold.get(UNTOLD, "")
    answer = await offload(heavy, _encode, result, writer, config, form, warnings, status)
    record.encode_seconds = (record.encode_seconds or 0.0) + time.perf_counter() - started
    room.hold_answer(len(answer))
    headers = {
        "X-Model-Version": result.version,
        **trust_headers(result.trust),
        **untold,
        "X-Batch-Size": ", ".join(map(str, result.batch_sizes)),
        **warning_header(warnings),
    }
    return Response(answer, media_type=writer.media_type, headers=headers)


async def read_fields(
    request: Request, room: Room, codec: Codec, config: ModelConfig
) -> tuple[Fields, Form]:
    """Read the body into checked fields, which the room then counts. Raises as read_body and the codec do."""
    check = partial(
        fields_from_arrays,
        config=config,
        max_fields=context_of(request).settings.max_fields_per_request,
    )
    # What is parsed or inflated is copied to the engine's memory afterwards.
    aligned_at = None if codec in (JSON, NPZ) else 0
    return await read_arrays(request, room, codec, check, aligned_at=aligned_at)


async def read_arrays(
    request: Request,
    room: Room,
    codec: Codec,
    check: Callable[[dict[str, Array]], tuple[Fields, T]],
    *,
    aligned_at: int | None = None,
) -> tuple[Fields, T]:
    """Read the body into named arrays, and `check` those into fields, which the room then counts.

    Raises as read_body, the codec and `check` do; `aligned_at` is as read_body has it.
    """
    settings, record = context_of(request).settings, record_of(request)
    setting = "max_json_bytes" if codec is JSON else "max_body_bytes"
    limit: int = getattr(settings, setting)
    body = await read_body(request, room, limit=limit, setting=setting, aligned_at=aligned_at)
    started = time.perf_counter()
    fields, about = await offload(
        # A small archive can inflate to the whole limit.
        codec is NPZ or len(body) > (JSON_BYTES if codec is JSON else BINARY_BYTES),
        _decode,
        body,
        codec,
        check,
        max_bytes=limit,
    )
    # An archive's fields can be far larger than its body.
    room.hold(max(len(body), fields.nbytes))
    record.decode_seconds = time.perf_counter() - started
    return fields, about


def _decode(
    body: memoryview,
    codec: Codec,
    check: Callable[[dict[str, Array]], tuple[Fields, T]],
    *,
    max_bytes: int,
) -> tuple[Fields, T]:
    return check(codec.decode(body, max_bytes=max_bytes))


def _encode(
    result: PredictResult,
    codec: Codec,
    config: ModelConfig,
    form: Form,
    warnings: tuple[str, ...],
    trust_status: str,
) -> bytes:
    return codec.encode(
        Answer(
            model=result.model,
            version=result.version,
            outputs=arrays_from_fields(result.fields, config, form),
            units={channel.name: channel.units for channel in config.outputs},
            backend=result.backend,
            precision=result.precision,
            trust=result.trust,
            trust_status=trust_status,
            warnings=warnings,
        )
    )


def _refuse_unknown_parameters(request: Request) -> None:
    """A misspelt or misplaced parameter must not be ignored: ?version= would pick another model."""
    unknown = sorted(set(request.query_params) - {"priority", OUTPUT_GRID})
    if unknown:
        raise BadRequest(
            f"unknown query parameter {unknown[0][:80]!r}, only 'priority' and '{OUTPUT_GRID}' are known "
            f"(a version goes into the path: /v1/models/NAME/versions/VERSION:predict)"
        )
