"""Predictions, with fields as JSON, .npy, .npz or safetensors; parts shared by the other operations."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from turbofno.service.codec.fields import Form, ResponseData, arrays_from_fields, fields_from_arrays
from turbofno.service.codec.grids import OUTPUT_GRID, Grid, parse_output_grid
from turbofno.service.codec.negotiate import JSON, NPY, NPZ, Codec, codec_for_answer, codec_for_body
from turbofno.service.engine.interface import Fields
from turbofno.service.http import openapi
from turbofno.service.http.body import read_body
from turbofno.service.http.call import Call, Lines, Operation, Reply, encoded
from turbofno.service.http.inference import run_model, warnings_of
from turbofno.service.http.offload import (
    BINARY_BYTES,
    JSON_BYTES,
    TENSOR_BYTES,
    heavy_to_encode,
    offload,
)
from turbofno.service.http.parameters import PRIORITY, Parameter, seconds_allowed
from turbofno.service.http.route import route
from turbofno.service.http.served import Served
from turbofno.service.http.trust import TRUST_HEADER, trust_headers

T = TypeVar("T")

_CACHED_BYTES = 128
"""Longest headers that are cached: clients choose headers, and long ones would fill the memory."""
_OUTPUT_GRID = Parameter(
    OUTPUT_GRID,
    "Points on each axis of the answer, for example 128,128: the model then runs on the grid that it "
    "was trained on, the input is interpolated there and the answer from there, which is as a rule more accurate "
    "than running it on another grid. Without it the model runs on the input's grid and answers there.",
    {"type": "string", "pattern": openapi.GRID_PATTERN},
    example="64",
)


class Parameters(NamedTuple):
    reader: Codec
    writer: Codec
    priority: int
    seconds: float | None
    output_grid: Grid | None


def _parse(call: Call, given: Mapping[str, Any]) -> Parameters:
    grid = given[OUTPUT_GRID]
    reader, writer = codecs(call)
    call.aligned_at = alignment(reader)
    return Parameters(
        reader,
        writer,
        given["priority"],
        seconds_allowed(call),
        None if grid is None else parse_output_grid(grid, call.served.config),
    )


def codecs(call: Call) -> tuple[Codec, Codec]:
    """The codecs of request and response body. Raises UnsupportedMediaType, NotAcceptable."""
    kind, accept = call.headers.get(b"content-type"), call.headers.get(b"accept")
    if len(kind or b"") + len(accept or b"") <= _CACHED_BYTES:
        return _cached_codecs(kind, accept)
    return _codecs(kind, accept)


def alignment(reader: Codec) -> int | None:
    """`Call.aligned_at` of a body in that format: parsed or inflated fields are copied to the engine's memory later."""
    return None if reader in (JSON, NPZ) else 0


def _codecs(kind: bytes | None, accept: bytes | None) -> tuple[Codec, Codec]:
    reader = codec_for_body(None if kind is None else kind.decode("latin-1"))
    return reader, codec_for_answer(
        None if accept is None else accept.decode("latin-1"), request=reader
    )


_cached_codecs = lru_cache(maxsize=256)(_codecs)


OPERATIONS: list[Operation] = []


@route(
    OPERATIONS, "POST", "/v1/models/{name}VERSION:predict",
    summaries=("Predict with the newest version", "Predict with one version"),
    tag="predict",
    parameters=(PRIORITY, _OUTPUT_GRID),
    headers=(openapi.DEADLINE_HEADER,),
    body=openapi.REQUEST_BODY,
    errors=openapi.ERRORS,
    responses={200: openapi.ANSWER},
    parse=_parse,
    protocol="predict",
)  # fmt: skip
async def predict(call: Call) -> Reply:
    """Solve the PDE for one field or many, in physical units."""
    parameters: Parameters = call.parameters
    served = call.served
    fields, form = await read_fields(call, parameters.reader)
    known = served.warnings(fields.shape[2:], parameters.output_grid)
    call.of_input = known.of_input(fields)
    work = run_model(
        call, fields,
        output_grid=parameters.output_grid, as_json=parameters.writer is JSON,
        priority=parameters.priority, seconds=parameters.seconds,
    )  # fmt: skip
    # The engine may have them elsewhere now.
    del fields
    result = await work
    call.note_result(result)
    warnings = await warnings_of(call, known, result.trust, result.fields)
    answer = ResponseData(
        served.name, served.version, arrays_from_fields(result.fields, served.config, form), served.units,
        result.backend, result.precision, result.trust, served.why_no_trust(result.trust), warnings,
    )  # fmt: skip
    headers = [_batch_sizes(result.batch_sizes), *trust_headers(result.trust)]
    return await fields_reply(call, answer, headers)


@lru_cache(maxsize=256)
def _batch_sizes(sizes: tuple[int, ...]) -> bytes:
    return b"x-batch-size: " + ", ".join(map(str, sizes)).encode()


async def fields_reply(call: Call, answer: ResponseData, headers: Iterable[bytes] = ()) -> Reply:
    """A successful reply, encoded by the `writer` of the call's parameters. Raises as its `encode`."""
    writer: Codec = call.parameters.writer
    started = time.perf_counter()
    values = sum([array.size for array in answer.outputs.values()])
    heavy = heavy_to_encode(values, as_json=writer is JSON)
    body = await offload(heavy, writer.encode, answer)
    call.note("encode", started)
    status = status_headers(answer.trust_status, answer.warnings)
    return Reply(200, (writer.header, *call.served.headers, *headers, *status), body)


def status_headers(trust_status: str, warnings: Sequence[str]) -> Lines:
    """Headers for warnings, and for the reason why there are no trust signals."""
    headers = {}
    if trust_status:
        headers[TRUST_HEADER] = trust_status
    if warnings:
        headers[openapi.WARNING] = "; ".join(warnings)
    return encoded(headers)


def read_fields(call: Call, codec: Codec) -> Awaitable[tuple[Fields, Form]]:
    """Read and check the fields of the body. Raises as read_body and the codec do."""
    return read_arrays(call, codec, _decode)


async def read_arrays(
    call: Call, codec: Codec, decode: Callable[[memoryview, Codec, Served, int], tuple[Fields, T]]
) -> tuple[Fields, T]:
    """Read the body and `decode` it into fields, whose bytes the request then holds. Raises as read_body and `decode` do."""
    setting = "max_body_bytes"
    # Fields that are used where they lie are not copied.
    light = BINARY_BYTES if call.aligned_at is None else TENSOR_BYTES
    if codec is JSON:
        setting, light = "max_json_bytes", JSON_BYTES
    limit = getattr(call.context.settings, setting)
    body = await read_body(call, limit=limit, setting=setting)
    started = time.perf_counter()
    # A small archive can inflate up to the limit.
    heavy = codec is NPZ or len(body) > light
    fields, about = await offload(heavy, decode, body, codec, call.served, limit)
    if fields.nbytes > len(body):
        # As an archive's can be, by far.
        call.admitted.hold(fields.nbytes)
    call.note("decode", started)
    return fields, about


def _decode(body: memoryview, codec: Codec, served: Served, most: int) -> tuple[Fields, Form]:
    if codec is NPY:
        return served.fields_from_npy(body)
    arrays = codec.decode(body, max_bytes=most)
    return fields_from_arrays(arrays, served.config, max_fields=served.max_fields)
