"""Run the model on checked fields, between decoding and encoding; on its training grid, if an output grid is given."""

from __future__ import annotations

import math
import time
from collections.abc import Awaitable, Sequence

from turbofno.service.answer_warnings import AnswerWarning, AnswerWarnings, of_interpolated
from turbofno.service.codec.fields import answered_grid
from turbofno.service.codec.grids import OUTPUT_GRID, Grid, from_network, to_network
from turbofno.service.engine.interface import Fields, PredictRequest, PredictResult, Trust
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.errors import PayloadTooLarge
from turbofno.service.http.call import Call
from turbofno.service.http.offload import heavy_to_encode, offload
from turbofno.service.settings import env_name

_HEAVY_VALUES = 16 * 1024
"""Fields of more values (about 0.5 ms) are interpolated off the event loop."""
JSON_FACTOR = 3
"""Approximate size of JSON relative to float32."""


def run_model(
    call: Call,
    fields: Fields,
    *,
    priority: int,
    seconds: float | None,
    output_grid: Grid | None = None,
    as_json: bool = False,
    vjp: VjpShapes | None = None,
) -> Awaitable[PredictResult]:
    """Run the model on the fields, or on rows for gradients with `vjp`; the work is dropped unless started within `seconds`.

    With an `output_grid` the fields are interpolated to the training grid, and the result from there, for an answer in JSON
    if `as_json`. Otherwise this returns what the engine returned: a coroutine of its own would be memory of each waiting
    request.

    Raises:
        NotFound, QueueFull, DeadlineExceeded, Unavailable, InvalidField, InferenceFailed: as `Engine.predict`.
        PayloadTooLarge, QueueFull: the interpolated fields exceed the memory limit, or what is free of it now.
    """
    if output_grid is not None:
        _hold_interpolated(call, len(fields), output_grid, as_json=as_json)
        return _run_on_training_grid(call, fields, output_grid, priority, seconds)
    request = engine_request(call, fields, seconds)
    request.priority, request.vjp = priority, vjp
    if call.span is not None and call.span.get_span_context().trace_flags.sampled:
        # Others get no spans, and front ends join no requests that have a trace.
        request.trace = call.trace
    work = call.context.engine.predict(request)
    call.context.admission.enter_queue(call.admitted)
    return work


async def _run_on_training_grid(
    call: Call, fields: Fields, output_grid: Grid, priority: int, seconds: float | None
) -> PredictResult:
    config, count = call.served.config, len(fields)
    started = time.perf_counter()
    heavy = fields.size + count * math.prod(config.grid.training) > _HEAVY_VALUES
    fields = await offload(heavy, to_network, fields, config)
    call.of_input += await offload(heavy, of_interpolated, fields, config)
    call.note("decode", started)
    result = await run_model(call, fields, priority=priority, seconds=seconds)
    # Here too: the client may leave during what follows.
    call.note_result(result)
    started = time.perf_counter()
    heavy = result.fields.size + count * math.prod(output_grid) > _HEAVY_VALUES
    result.fields = await offload(heavy, from_network, result.fields, output_grid, config)
    call.note("encode", started)
    return result


def _hold_interpolated(call: Call, count: int, output_grid: Grid, *, as_json: bool) -> None:
    """Reserve memory for input and output on the training grid, and for the answer: a small body can ask for a large one."""
    config = call.served.config
    channels, training = config.architecture, config.grid.training
    answer = math.prod(output_grid) * (1 + JSON_FACTOR if as_json else 1)
    points = math.prod(answered_grid(training, config)) + answer
    values = channels.in_channels * math.prod(training) + channels.out_channels * points
    size = 4 * count * values
    most = call.context.settings.max_inflight_bytes
    if size > most:
        binary = ", or for a binary format" if as_json else ""
        raise PayloadTooLarge(
            f"{count} fields on the {OUTPUT_GRID} {list(output_grid)} take {size} bytes, more than the limit of {most} "
            f"({env_name('max_inflight_bytes')}): send fewer, or ask for a coarser grid{binary}"
        )
    call.admitted.hold_more(size)


def engine_request(call: Call, fields: Fields, seconds: float | None) -> PredictRequest:
    """The engine's request for these fields, which is to start within `seconds`, and at most the server's limit."""
    served, caller = call.served, call.caller
    allowed = call.context.settings.request_deadline_seconds
    if seconds is None or seconds > allowed:
        seconds = allowed
    return PredictRequest(
        model=served.name,
        # The version that the fields were checked against, even if a newer one is loaded meanwhile.
        version=served.version,
        config=served.config,
        fields=fields,
        request_id=call.request_id,
        client=caller.name,
        client_max_fields=caller.max_fields,
        at_once=call.at_once,
        # Without a limit front ends join requests, which they do for those with deadlines close to each other.
        deadline=None if seconds == math.inf else time.monotonic() + seconds,
    )


async def warnings_of(
    call: Call, known: AnswerWarnings, trust: Trust, fields: Fields
) -> tuple[str, ...]:
    """Note the warnings of a prediction with these signals and outputs, to be counted; return their texts."""
    heavy = known.reads_fields and heavy_to_encode(fields.size, as_json=False)
    found = await offload(heavy, known.of_prediction, trust, fields)
    return count_warnings(call, (*call.of_input, *found))


def count_warnings(call: Call, warnings: Sequence[AnswerWarning]) -> tuple[str, ...]:
    """Note the warnings' reasons, to be counted; return their texts."""
    if not warnings:
        return ()
    call.warned += tuple(dict.fromkeys([one.reason for one in warnings]))
    return tuple([one.text for one in warnings])
