"""Rollouts: repeated application of an autoregressive model to its own output, with frames streamed or in one reply."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import numpy as np

from turbofno.models.core.config import ModelConfig
from turbofno.service.answer_warnings import FrameWarnings, of_horizon
from turbofno.service.codec.fields import Form, ResponseData, answered_grid, arrays_from_fields
from turbofno.service.codec.negotiate import CODECS, JSON, Codec, codec_for_answer, codec_for_body
from turbofno.service.engine.interface import (
    Fields,
    Frame,
    ModelStatus,
    RolloutRequest,
    status_of,
)
from turbofno.service.engine.runnable import signals_of_all
from turbofno.service.errors import BadRequest, BlowUp, NotRollable, PayloadTooLarge
from turbofno.service.http import openapi
from turbofno.service.http.call import Call, Operation, Reply
from turbofno.service.http.frame_stream import (
    FORMATS,
    RECORDS,
    SERVER_SENT_EVENTS,
    StreamFormat,
    stream,
)
from turbofno.service.http.inference import JSON_FACTOR, count_warnings, engine_request
from turbofno.service.http.parameters import Parameter, integer, seconds_allowed
from turbofno.service.http.predict import alignment, fields_reply, read_fields, status_headers
from turbofno.service.http.route import route
from turbofno.service.http.trust import trust_headers
from turbofno.service.settings import env_name

_FRAMES = "(all|last|[1-9][0-9]{0,8})"


def _parse_frames(given: str) -> str:
    if not re.fullmatch(_FRAMES, given):
        raise ValueError
    return given


_PARAMETERS = (
    integer("steps", "number of the last step", least=1, required=True, example=10),
    Parameter(
        "frames",
        "all; last; or k: those of steps k, 2 k, ... and the last",
        {"type": "string", "pattern": f"^{_FRAMES}$"},
        "all, last, or a whole number above 0",
        _parse_frames,
        default="all",
    ),
    integer("start", "number of the step that the input is at, to resume a rollout", default=0),
)
_EVERY = {"all": 1, "last": 0}
_SUCCESS = {
    "description": "The frames, named as the input was, stacked on a first axis of time; in the form that Accept "
    "asks for, by default that of the request. Or a stream of them, if Accept names one of its two forms.",
    "headers": {**openapi.ANSWER_HEADERS, **openapi.TRUST_HEADERS},
    "content": {
        **openapi.formats(CODECS, schema=openapi.schema_of(openapi.FramesAnswer)),
        RECORDS.media_type: {"schema": {"type": "string", "format": "binary"}},
        SERVER_SENT_EVENTS.media_type: {"schema": {"type": "string"}},
    },
}
_UNUSABLE = "The model is not autoregressive or cannot take these fields; or, not streamed, the rollout blew up."
_REQUEST_BODY = openapi.arrays_body(
    openapi.FieldsRequest,
    {
        "by channel": (
            "a field for model navier-stokes-2d, on 64 x 64 points", {"vorticity": openapi.VORTICITY},
        )
    },
)  # fmt: skip


class Parameters(NamedTuple):
    start: int
    last: int
    every: int
    seconds: float | None
    reader: Codec
    writer: Codec | StreamFormat


def _parse(call: Call, given: Mapping[str, Any]) -> Parameters:
    _check(call, given["start"], given["steps"])
    frames = given["frames"]
    reader = codec_for_body(call.header(b"content-type"))
    call.aligned_at = alignment(reader)
    return Parameters(
        given["start"],
        given["steps"],
        _EVERY[frames] if frames in _EVERY else int(frames),
        seconds_allowed(call),
        reader,
        codec_for_answer(call.header(b"accept"), request=reader, besides=FORMATS),
    )


def _check(call: Call, start: int, last: int) -> None:
    config = call.served.config
    if start >= last:
        raise BadRequest(
            f"'steps' is the number of the last step, so it must be over 'start': got {last}, {start}"
        )
    most = call.context.settings.max_rollout_steps
    if last - start > most:
        raise PayloadTooLarge(
            f"a rollout may run {most} steps ({env_name('max_rollout_steps')}), this one asks for "
            f"{last - start}: run it in parts, each from where the one before ended (start=)"
        )
    why = _why_not(config)
    if why is not None:
        raise _not_rollable(config, why)


def _why_not(config: ModelConfig) -> str | None:
    """The reason why the model's output is no state of its next input, in which it is the last of `past_steps`; or None."""
    if config.time_step is None:
        return "its configuration gives no time_step"
    names = [[channel.name for channel in side] for side in (config.inputs, config.outputs)]
    if len(names[0]) != config.states * len(names[1]):
        several, rest = divmod(len(names[0]), len(names[1]))
        # so they may be past states
        unsaid = several > 1 and not rest
        remark = f"; past states have past_steps: {several} in config.json" if unsaid else ""
        return f"its outputs {names[1]} are not its inputs {names[0]}{remark}"
    # A state may have other names after the step, but not those of other channels.
    last = config.inputs[-len(config.outputs) :]
    pairs = zip(last, config.outputs, strict=True)
    if any(before.name != after.name and after.name in names[0] for before, after in pairs):
        return f"its outputs {names[1]} are not its inputs {names[0]} in this order"
    for before, after in zip(config.inputs, config.outputs * config.states, strict=True):
        # "1", the default, may stand for units that are not given
        if "1" not in (before.units, after.units) and before.units != after.units:
            return f"its output {after.name!r} is in {after.units}, its input {before.name!r} in {before.units}"
    return None


def _not_rollable(config: ModelConfig, why: str) -> NotRollable:
    return NotRollable(
        f"model {config.name!r} cannot be rolled out: {why}; use :predict, or a model whose output is its "
        "next input"
    )


OPERATIONS: list[Operation] = []


@route(
    OPERATIONS, "POST", "/v1/models/{name}VERSION:rollout",
    summaries=("Roll the newest version out", "Roll one version out"),
    tag="rollout",
    parameters=_PARAMETERS,
    headers=(openapi.DEADLINE_HEADER,),
    body=_REQUEST_BODY,
    errors={**openapi.ERRORS, 422: _UNUSABLE},
    responses={200: _SUCCESS},
    example="navier-stokes-2d",
    parse=_parse,
    protocol="rollout",
    queued=False,
)  # fmt: skip
async def rollout(call: Call) -> Reply:
    """Run the model on its own output, on the device, until step `steps`."""
    parameters: Parameters = call.parameters
    served, config, engine = call.served, call.served.config, call.context.engine
    fields, form = await read_fields(call, parameters.reader)
    grid = fields.shape[2:]
    answered = answered_grid(grid, config)
    if answered != grid:
        raise _not_rollable(
            config, f"its output has the grid {list(answered)} for an input on {list(grid)}"
        )
    call.fields = len(fields)
    job = RolloutRequest(
        engine_request(call, fields, parameters.seconds),
        last=parameters.last,
        start=parameters.start,
        every=parameters.every,
        past_steps=config.states,
    )
    known = served.warnings(grid)
    last = of_horizon(config, parameters.last)
    warnings = count_warnings(call, known.of_input(fields) + known.of_grids + last)
    frame_warnings = FrameWarnings(config, grid)

    def warnings_of(frame: Frame) -> tuple[str, ...]:
        return count_warnings(call, frame_warnings.of(frame))

    writer = parameters.writer
    if isinstance(writer, StreamFormat):
        # The body, the state on the device, and frames that the client has not read yet.
        call.admitted.hold(2 * fields.nbytes + job.unread_bytes)
        about = _about(config, job, status_of(config, engine))
        headers = [
            b"content-type: " + writer.media_type.encode(),
            *served.headers,
            # Keeps proxies from buffering frames.
            b"cache-control: no-store",
            b"x-accel-buffering: no",
            *status_headers(served.no_trust_reason, warnings),
        ]
        events = stream(engine.rollout(job), writer, about, warnings_of)
        # An error before the first piece is still sent as an ordinary error.
        return Reply(200, headers, (await anext(events),), events)
    _hold_frames(call, job, writer)
    # Before it runs: the model may be unloaded or replaced meanwhile.
    status = status_of(config, engine)
    try:
        async with aclosing(engine.rollout(job)) as progress:
            frames = [one async for one in progress if one.fields is not None]
    except BlowUp as error:
        message = f"{error.message}; only a stream gives the frames before that step"
        raise BlowUp(message, step=error.step, reason=error.reason) from None
    outputs = _outputs(frames, config, form)
    warnings = (*warnings, *(text for frame in frames for text in warnings_of(frame)))
    for one in frames:
        one.fields = None
    trust = signals_of_all([frame.trust for frame in frames])
    answer = ResponseData(
        served.name, served.version, outputs, served.units,
        status.backend, status.precision, trust, served.why_no_trust(dict.fromkeys(trust, ())), warnings,
    )  # fmt: skip
    largest = {name: tuple(map(max, values)) for name, values in trust.items()}
    return await fields_reply(call, answer, trust_headers(largest))


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
        "shape": job.frame_shape,
        "start": job.start,
        "steps": job.last,
        "frames": _count(job),
    }


def _count(job: RolloutRequest) -> int:
    if not job.every:
        return 1
    return job.last // job.every - job.start // job.every + bool(job.last % job.every)


def _hold_frames(call: Call, job: RolloutRequest, codec: Codec) -> None:
    """Reserve memory for all frames before the first is computed. Raises PayloadTooLarge, QueueFull."""
    state = 2 * job.initial.fields.nbytes
    size = _count(job) * job.frame_bytes * (JSON_FACTOR if codec is JSON else 1)
    most = call.context.settings.max_inflight_bytes
    if state + size > most:
        raise PayloadTooLarge(
            f"an answer of {_count(job)} frames takes about {size} bytes, more than the limit of {most} "
            f"({env_name('max_inflight_bytes')}): ask for fewer frames (frames=), or for a stream "
            f"(Accept: {RECORDS.media_type})"
        )
    call.admitted.hold(state + size)


def _outputs(frames: list[Frame], config: ModelConfig, form: Form) -> dict[str, Fields]:
    """The fields of the frames on a first axis of time, named and laid out as the input was."""
    fields = [one.fields for one in frames if one.fields is not None]
    each = [arrays_from_fields(one, config, form) for one in fields]
    return {name: np.stack([arrays[name] for arrays in each]) for name in each[0]}
