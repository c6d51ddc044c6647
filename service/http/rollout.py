"""The rollout route: an autoregressive model run on its own output, its frames streamed or all at once."""

from __future__ import annotations

import time
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response

from service import answer_warnings
from service.answer_warnings import FrameWarnings
from service.codec.fields import OUTPUT, Answer
from service.codec.negotiate import JSON, codec_for_answer, codec_for_body
from service.context import context_of, record_of
from service.errors import BadRequest, NotRollable, PayloadTooLarge
from service.http.example_fields import vorticity_field
from service.http.frame_stream import FORMS, FrameStream, form_asked_for
from service.http.inference import admit, begin, unless_disconnected
from service.http.offload import heavy_to_encode, offload
from service.http.openapi import ModelVersion, problem
from service.http.predict import REQUEST_BODY, RESPONSES, WARNING_HEADER, Deadline, read_fields
from service.http.trust import (
    FRAME_TRUST_SCHEMA,
    TRUST_HEADERS,
    UNTOLD,
    never_told,
    trust_headers,
    why_untold,
)
from service.http.warned import WARNING, counted, warning_header
from service.pipeline.engine import PredictRequest, RolloutRequest, status_of, unread_bytes
from service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from models.config import ModelConfig
    from service.codec.fields import Form, FrameTrust
    from service.codec.negotiate import Codec
    from service.pipeline.admission import Room
    from service.pipeline.engine import Fields, Frame, ModelStatus

router = APIRouter(tags=["rollout"])

_JSON_FACTOR = 3
"""JSON takes about so many times the bytes of its float32."""
_EVERY = {"all": 1, "last": 0}
_JSON_ANSWER = RESPONSES[200]["content"][JSON.media_type]["schema"]
_SUCCESS = {
    "description": "The frames, named as the input was, stacked on a first axis of time; in the form that Accept "
    "asks for, by default that of the request. Or a stream of them, if Accept names one of its two forms.",
    "headers": {**TRUST_HEADERS, WARNING: WARNING_HEADER},
    "content": {
        **RESPONSES[200]["content"],
        JSON.media_type: {
            "schema": {
                **_JSON_ANSWER,
                "properties": {**_JSON_ANSWER["properties"], "trust": FRAME_TRUST_SCHEMA},
            }
        },
        FORMS[0].media_type: {"schema": {"type": "string", "format": "binary"}},
        FORMS[1].media_type: {"schema": {"type": "string"}},
    },
}
_ROLLOUT_RESPONSES: dict[int | str, dict[str, Any]] = {
    **RESPONSES,
    200: _SUCCESS,
    422: problem(
        "The model is not autoregressive or cannot take these fields; or, not streamed, the rollout blew up."
    ),
}

_REQUEST_BODY = {
    "required": True,
    "content": {
        **REQUEST_BODY["content"],
        JSON.media_type: {
            **REQUEST_BODY["content"][JSON.media_type],
            "examples": {
                "by channel": {
                    "summary": "a field for model navier-stokes-2d, on 64 x 64 points",
                    "value": {"inputs": {"vorticity": vorticity_field()}},
                }
            },
        },
    },
}
Name = Annotated[str, Path(description="name of a model", examples=["navier-stokes-2d"])]
Steps = Annotated[int, Query(ge=1, lt=2**31, description="number of the last step", examples=[10])]
Start = Annotated[
    int,
    Query(
        ge=0,
        lt=2**31,
        description="number of the step that the input is at, to resume from a frame",
    ),
]
Frames = Annotated[
    str,
    Query(
        pattern=r"^(all|last|[1-9][0-9]{0,8})$",
        description="all; last; or k: those of steps k, 2 k, ... and the last",
    ),
]


@router.post(
    "/v1/models/{name}:rollout",
    summary="Roll the newest version out",
    openapi_extra={"requestBody": _REQUEST_BODY},
    responses=_ROLLOUT_RESPONSES,
    response_class=Response,
)
async def rollout_newest(
    request: Request,
    name: Name,
    steps: Steps,
    frames: Frames = "all",
    start: Start = 0,
    deadline_ms: Deadline = None,
) -> Response:
    """Run the model on its own output, on the device, until step `steps`."""
    return await _rollout(request, name, None, (start, steps, frames), deadline_ms)


@router.post(
    "/v1/models/{name}/versions/{version}:rollout",
    summary="Roll one version out",
    openapi_extra={"requestBody": _REQUEST_BODY},
    responses=_ROLLOUT_RESPONSES,
    response_class=Response,
)
async def rollout_version(
    request: Request,
    name: Name,
    version: ModelVersion,
    steps: Steps,
    frames: Frames = "all",
    start: Start = 0,
    deadline_ms: Deadline = None,
) -> Response:
    """Run a chosen version of the model on its own output, on the device, until step `steps`."""
    return await _rollout(request, name, version, (start, steps, frames), deadline_ms)


async def _rollout(
    request: Request,
    name: str,
    version: str | None,
    span: tuple[int, int, str],
    deadline_ms: float | None,
) -> Response:
    context, record = context_of(request), record_of(request)
    config = begin(request, "rollout", name, version)
    _check(request, config, *span[:2])
    accept = ", ".join(request.headers.getlist("accept"))
    reader = codec_for_body(", ".join(request.headers.getlist("content-type")) or None)
    streamed = form_asked_for(accept)
    writer = None if streamed else codec_for_answer(accept or None, request=reader)
    room = admit(request, config)
    fields, form = await read_fields(request, room, reader, config)
    if not len(fields):
        raise BadRequest("a rollout needs at least one field")
    record.fields = len(fields)
    allowed = context.settings.request_deadline_seconds
    start, last, frames = span
    job = RolloutRequest(
        PredictRequest(
            model=config.name,
            version=config.version,
            config=config,
            fields=fields,
            request_id=record.request_id,
            client=record.caller.name,
            client_max_fields=record.caller.max_fields,
            deadline=time.monotonic()
            + min(allowed, allowed if deadline_ms is None else deadline_ms / 1e3),
        ),
        last=last,
        start=start,
        every=_EVERY[frames] if frames in _EVERY else int(frames),
    )
    grid = fields.shape[2:]
    known = answer_warnings.of_grids(config, grid) + answer_warnings.of_horizon(config, last)
    warnings = counted(request, config, known)
    frame_warnings = FrameWarnings(config, grid)

    def warnings_of(frame: Frame) -> tuple[str, ...]:
        return counted(request, config, frame_warnings.of(frame))

    headers = {"X-Model-Version": config.version}
    judged = context.settings.trust
    if streamed is not None:
        # The body, the state on the device, and what the client has not yet taken.
        room.hold(2 * fields.nbytes + unread_bytes(fields))
        about = _about(config, job, status_of(config, context.engine))
        return FrameStream(
            request,
            context.engine.rollout(job),
            streamed,
            about,
            headers | never_told(config, judged=judged) | warning_header(warnings),
            warnings_of,
        )
    assert writer is not None
    _hold_all(request, room, job, writer)
    stack, frames_made = await unless_disconnected(request, _all(context.engine.rollout(job)))
    warnings = (*warnings, *(text for frame in frames_made for text in warnings_of(frame)))
    trust = _trust_of(frames_made)
    untold = why_untold(config, trust, judged=judged)
    answer = await offload(
        heavy_to_encode(stack.size, as_json=writer is JSON),
        _encode, stack, writer, config, form, status_of(config, context.engine), trust,
        untold.get(UNTOLD, ""), warnings,
    )  # fmt: skip
    room.hold_answer(len(answer))
    largest = {name: tuple(map(max, values)) for name, values in trust.items()}
    headers |= trust_headers(largest) | untold | warning_header(warnings)
    return Response(answer, media_type=writer.media_type, headers=headers)


def _check(request: Request, config: ModelConfig, start: int, last: int) -> None:
    unknown = sorted(set(request.query_params) - {"steps", "frames", "start"})
    if unknown:
        raise BadRequest(
            f"unknown query parameter {unknown[0][:80]!r}; 'steps', 'frames' and 'start' are known (a version "
            "goes into the path: /v1/models/NAME/versions/VERSION:rollout)"
        )
    if start >= last:
        raise BadRequest(
            f"'steps' is the number of the last step, so it must be over 'start': got {last}, {start}"
        )
    most = context_of(request).settings.max_rollout_steps
    if last - start > most:
        raise PayloadTooLarge(
            f"a rollout may run {most} steps ({env_name('max_rollout_steps')}), this one asks for "
            f"{last - start}: run it in parts, each from the last frame of the one before (start=)"
        )
    names = [[channel.name for channel in side] for side in (config.inputs, config.outputs)]
    if config.time_step is None or len(names[0]) != len(names[1]):
        why = (
            "its configuration gives no time_step"
            if config.time_step is None
            else f"its outputs {names[1]} are not its inputs {names[0]}"
        )
        raise NotRollable(
            f"model {config.name!r} cannot be rolled out: {why}; use :predict, or a model whose output is its "
            "next input"
        )


def _about(config: ModelConfig, job: RolloutRequest, status: ModelStatus) -> dict[str, Any]:
    return {
        "model": config.name,
        "version": config.version,
        "backend": status.backend,
        "precision": status.precision,
        "channels": [channel.name for channel in config.outputs],
        "units": [channel.units for channel in config.outputs],
        "time_step": config.time_step,
        "dtype": "<f4",
        "shape": job.initial.fields.shape,
        "start": job.start,
        "steps": job.last,
        "frames": _count(job),
    }


def _count(job: RolloutRequest) -> int:
    """How many frames there will be."""
    if not job.every:
        return 1
    return job.last // job.every - job.start // job.every + bool(job.last % job.every)


def _hold_all(request: Request, room: Room, job: RolloutRequest, codec: Codec) -> None:
    """Count all frames before the first is made. Raises PayloadTooLarge, QueueFull."""
    fields = job.initial.fields
    size = _count(job) * fields.nbytes * (_JSON_FACTOR if codec is JSON else 1)
    most = context_of(request).settings.max_inflight_bytes
    if 2 * fields.nbytes + size > most:
        raise PayloadTooLarge(
            f"an answer of {_count(job)} frames takes about {size} bytes, more than the limit of {most} "
            f"({env_name('max_inflight_bytes')}): ask for fewer frames (frames=), or for a stream "
            f"(Accept: {FORMS[0].media_type})"
        )
    room.hold(2 * fields.nbytes + size)


async def _all(frames: AsyncGenerator[Frame]) -> tuple[Fields, list[Frame]]:
    """[frames, n, channels, *grid], and the same frames without their fields."""
    async with aclosing(frames):
        made = [one async for one in frames if one.fields is not None]
    stack = np.stack([one.fields for one in made if one.fields is not None])
    return stack, [replace(one, fields=None) for one in made]


def _trust_of(frames: list[Frame]) -> FrameTrust:
    """The signals that every frame has."""
    return {
        name: [frame.trust[name] for frame in frames]
        for name in frames[0].trust
        if all(name in frame.trust for frame in frames)
    }


def _encode(
    stack: Fields,
    codec: Codec,
    config: ModelConfig,
    form: Form,
    status: ModelStatus,
    trust: FrameTrust,
    trust_status: str,
    warnings: tuple[str, ...],
) -> bytes:
    frames = stack.reshape(len(stack), *form.leading(*stack.shape[1:3]), *stack.shape[3:])
    outputs = {OUTPUT: frames}
    if form.by_channel:
        # the channels' axis, after time and, if there is one, the batch
        by_channel = np.moveaxis(frames, 2 if form.batched else 1, 0)
        outputs = {channel.name: by_channel[i] for i, channel in enumerate(config.outputs)}
    return codec.encode(
        Answer(
            model=config.name,
            version=config.version,
            outputs=outputs,
            units={channel.name: channel.units for channel in config.outputs},
            backend=status.backend,
            precision=status.precision,
            trust=trust,
            trust_status=trust_status,
            warnings=warnings,
        )
    )
