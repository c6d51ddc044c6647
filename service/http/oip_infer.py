"""Inference by the Open Inference Protocol v2 over REST, with its binary tensor extension."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from turbofno.service.codec import oip_binary
from turbofno.service.codec.compression import Coding, answer_coding, compress
from turbofno.service.codec.fields import fields_from_tensor
from turbofno.service.codec.grids import parse_output_grid
from turbofno.service.codec.oip_binary import InferRequest
from turbofno.service.engine.interface import Fields
from turbofno.service.errors import BadRequest, PayloadTooLarge
from turbofno.service.http import oip_openapi, openapi
from turbofno.service.http.body import read_body
from turbofno.service.http.call import Bytes, Call, Operation, Reply
from turbofno.service.http.inference import run_model, warnings_of
from turbofno.service.http.offload import JSON_BYTES, TENSOR_BYTES, heavy_to_encode, offload
from turbofno.service.http.route import route
from turbofno.service.http.served import Served
from turbofno.service.settings import Settings, env_name

HEADER = "Inference-Header-Content-Length"
_HEADER_NAME = HEADER.lower().encode()
_COMPRESS_HEAVY = 16 * 1024
_MISPLACED = re.compile(rb"(?:^|&)(version|output_grid|priority|timeout)=")
"""Parameters that the protocol has elsewhere. Others in the query are ignored, as its clients may add some for proxies."""


class Parameters(NamedTuple):
    header_length: str | None
    """Length of the JSON before the tensor, not checked yet; None if the whole body is JSON."""
    raw_shape: str | None
    coding: Coding | None
    """Of the answer."""


def _parse(call: Call, given: Mapping[str, Any]) -> Parameters:
    if misplaced := _MISPLACED.search(call.query):
        name = misplaced[1].decode()
        where = (
            "path, as in /v2/models/NAME/versions/2/infer"
            if name == "version"
            else "'parameters' of the JSON"
        )
        raise BadRequest(f"{name!r} is no query parameter of /v2: give it in the {where}")
    length, coding = call.header(_HEADER_NAME), answer_coding(call.header(b"accept-encoding") or "")
    if length is None:
        return Parameters(None, given["shape"], coding)
    if "," in length:
        raise BadRequest(f"{HEADER} is given {length.count(',') + 1} times, expected once")
    length = length.strip()
    # The tensor follows the JSON. An invalid length is refused after reading, when its valid range is known.
    valid = length.isascii() and length.isdigit() and len(length) < 10
    call.aligned_at = int(length) if valid else 0
    return Parameters(length, given["shape"], coding)


OPERATIONS: list[Operation] = []


@route(
    OPERATIONS, "POST", "/v2/models/{model}VERSION/infer",
    summaries=("Infer with the newest version", "Infer with one version"),
    tag=oip_openapi.TAG,
    parameters=(oip_openapi.RAW_SHAPE,),
    headers=(oip_openapi.LENGTH_HEADER,),
    body=oip_openapi.INFER_BODY,
    errors=openapi.errors(400, 401, 404, 408, 413, 415, 422, 429, 503, 504),
    responses={200: oip_openapi.INFER_ANSWER},
    parse=_parse,
    protocol="oip",
)  # fmt: skip
async def infer(call: Call) -> Reply:
    """Infer; JSON or binary tensors both ways; Inference-Header-Content-Length says which, not Content-Type."""
    settings, served = call.context.settings, call.served
    header, raw_shape, coding = call.parameters
    setting = "max_json_bytes" if header is None else "max_body_bytes"
    body = await read_body(call, limit=getattr(settings, setting), setting=setting)
    started = time.perf_counter()
    json_length = _json_length(header, len(body), settings)
    heavy = json_length > JSON_BYTES or len(body) > TENSOR_BYTES
    before_tensor = None if header is None else json_length
    request, fields = await offload(heavy, _decode, body, before_tensor, raw_shape, served)
    call.note("decode", started)
    asked, timeout = request.output_grid, request.timeout_us
    grid = None if asked is None else parse_output_grid(asked, served.config)
    known = served.warnings(fields.shape[2:], grid)
    call.of_input = known.of_input(fields)
    work = run_model(
        call, fields,
        output_grid=grid,
        as_json=not request.binary,
        priority=request.priority,
        seconds=None if timeout is None else timeout / 1e6,
    )  # fmt: skip
    binary, request_id = request.binary, request.id
    # The engine may have them elsewhere now.
    del body, fields, request
    result = await work
    call.note_result(result)
    warnings = await warnings_of(call, known, result.trust, result.fields)
    started = time.perf_counter()
    heavy = heavy_to_encode(result.fields.size, as_json=not binary)
    answer = await offload(
        heavy, oip_binary.encode, result.fields,
        binary=binary, model=result.model, version=result.version, request_id=request_id,
        warnings=warnings, trust=result.trust, trust_status=served.why_no_trust(result.trust),
    )  # fmt: skip
    if answer.json_length is None:
        headers = [b"content-type: application/json"]
    else:
        headers = [
            b"%b: %d" % (_HEADER_NAME, answer.json_length),
            b"content-type: application/octet-stream",
        ]
    written: Sequence[Bytes] = answer.pieces
    if coding is not None:
        whole = answer.body
        written = (await offload(len(whole) > _COMPRESS_HEAVY, compress, whole, coding),)
        headers += [b"content-encoding: " + coding.encode(), b"vary: Accept-Encoding"]
    call.note("encode", started)
    return Reply(200, headers, written)


def _json_length(header: str | None, available: int, settings: Settings) -> int:
    if header is None:
        return available
    if header == "0":
        return 0
    length = oip_binary.parse_header_length(header, available=available)
    if length > settings.max_json_bytes:
        raise PayloadTooLarge(
            f"the JSON part has {length} bytes, the limit is {settings.max_json_bytes} "
            f"({env_name('max_json_bytes')}): send tensors in binary"
        )
    return length


def _decode(
    body: memoryview, header_length: int | None, raw_shape: str | None, served: Served
) -> tuple[InferRequest, Fields]:
    if header_length == 0:
        return oip_binary.RAW, served.fields_from_raw(body, raw_shape)
    request = oip_binary.decode(body, header_length=header_length, model=served.name)
    return request, fields_from_tensor(request.tensor, served.config, max_fields=served.max_fields)
