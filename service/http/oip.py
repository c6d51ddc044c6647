"""The Open Inference Protocol v2 over REST, with its binary tensor extension: inference."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import WithJsonSchema

from service import answer_warnings
from service.codec import oip_binary
from service.codec.compression import answer_coding, compress
from service.codec.fields import fields_from_tensor
from service.codec.grids import parse_output_grid
from service.context import context_of, record_of
from service.errors import BadRequest, PayloadTooLarge
from service.http import oip_extensions, oip_server
from service.http.body import header_values, read_body
from service.http.inference import admit, begin
from service.http.offload import BINARY_BYTES, JSON_BYTES, heavy_to_encode, offload
from service.http.oip_openapi import ERRORS, INFER_BODY, INFER_RESPONSES
from service.http.openapi import ModelName, ModelVersion
from service.http.output_grid import infer_onto
from service.http.trust import UNTOLD, largest, why_untold
from service.http.warned import counted
from service.settings import env_name

if TYPE_CHECKING:
    from models.config import ModelConfig
    from service.codec.oip_binary import InferAnswer, InferRequest
    from service.pipeline.admission import Room
    from service.pipeline.engine import Fields, PredictResult
    from service.settings import Settings

router = APIRouter(tags=["Open Inference Protocol v2"], responses=ERRORS)
router.include_router(oip_server.router)
router.include_router(oip_extensions.router)

HEADER = "Inference-Header-Content-Length"
_HEADER_NAME = HEADER.lower().encode()
_COMPRESS_HEAVY = 16 * 1024

RawShape = Annotated[
    str | None,
    Query(description="shape of a raw body (Inference-Header-Content-Length: 0), as 1,1,64,64"),
    WithJsonSchema({"type": "string"}),
]


@router.post(
    "/v2/models/{model}/infer",
    summary="Infer with the newest version",
    openapi_extra=INFER_BODY,
    responses=INFER_RESPONSES,
    response_class=Response,
)
async def infer_newest(request: Request, model: ModelName, shape: RawShape = None) -> Response:
    """Infer; JSON or binary tensors both ways, whatever Content-Type says."""
    return await infer(request, model, raw_shape=shape)


@router.post(
    "/v2/models/{model}/versions/{version}/infer",
    summary="Infer with one version",
    openapi_extra=INFER_BODY,
    responses=INFER_RESPONSES,
    response_class=Response,
)
async def infer_version(
    request: Request, model: ModelName, version: ModelVersion, shape: RawShape = None
) -> Response:
    """Infer with a chosen version of the model."""
    return await infer(request, model, version, raw_shape=shape)


async def infer(
    request: Request, model: str, version: str | None = None, *, raw_shape: str | None = None
) -> Response:
    """Answer with the newest version, or a chosen one. Raises ServiceError, ClientDisconnect."""
    context, record = context_of(request), record_of(request)
    settings = context.settings
    config = begin(request, "oip", model, version)
    header = _header_length(request)
    room = admit(request, config)
    body = await _read(request, room, header, settings)
    started = time.perf_counter()
    json_length = _json_length(header, len(body), settings)
    call, fields = await offload(
        json_length > JSON_BYTES or len(body) > BINARY_BYTES,
        _decode,
        body,
        None if header is None else json_length,
        raw_shape,
        config,
        max_fields=settings.max_fields_per_request,
    )
    record.decode_seconds = time.perf_counter() - started
    grid = None if call.output_grid is None else parse_output_grid(call.output_grid, config)
    result = await infer_onto(
        request,
        room,
        fields,
        config=config,
        output_grid=grid,
        priority=call.priority,
        seconds=None if call.timeout_us is None else call.timeout_us / 1e6,
    )
    warned = answer_warnings.of_prediction(config, fields.shape[2:], grid, result.trust)
    warnings = counted(request, config, warned)
    untold = why_untold(config, result.trust, judged=settings.trust).get(UNTOLD, "")
    started = time.perf_counter()
    as_json = not all(output.binary for output in call.outputs)
    heavy = heavy_to_encode(result.fields.size, as_json=as_json)
    response = await _response(
        request, await offload(heavy, _encode, call, result, warnings, untold)
    )
    record.encode_seconds = (record.encode_seconds or 0.0) + time.perf_counter() - started
    room.hold_answer(len(response.body))
    return response


def _header_length(request: Request) -> str | None:
    values = header_values(request, _HEADER_NAME)
    if len(values) > 1:
        raise BadRequest(f"{HEADER} is given {len(values)} times, expected once")
    return values[0].strip() if values else None


async def _read(request: Request, room: Room, header: str | None, settings: Settings) -> memoryview:
    if header is None:
        return await read_body(
            request, room, limit=settings.max_json_bytes, setting="max_json_bytes"
        )
    # The tensor starts where the JSON ends; a header that is no number is refused after reading,
    # when the range it should lie in is known.
    start = int(header) if header.isascii() and header.isdigit() and len(header) < 10 else 0
    return await read_body(request, room, limit=settings.max_body_bytes, aligned_at=start)


def _json_length(header: str | None, available: int, settings: Settings) -> int:
    if header is None:
        return available
    length = oip_binary.parse_header_length(header, available=available)
    if length > settings.max_json_bytes:
        raise PayloadTooLarge(
            f"the JSON part has {length} bytes, the limit is {settings.max_json_bytes} "
            f"({env_name('max_json_bytes')}): send tensors in binary"
        )
    return length


def _decode(
    body: memoryview,
    header_length: int | None,
    raw_shape: str | None,
    config: ModelConfig,
    *,
    max_fields: int,
) -> tuple[InferRequest, Fields]:
    if header_length == 0:
        call = oip_binary.decode_raw(body, shape=raw_shape, model=config.name)
    else:
        call = oip_binary.decode(body, header_length=header_length, model=config.name)
    return call, fields_from_tensor(call.tensor, config, max_fields=max_fields)


def _encode(
    call: InferRequest, result: PredictResult, warnings: tuple[str, ...], trust_status: str
) -> InferAnswer:
    return oip_binary.encode(
        result.fields,
        outputs=call.outputs,
        model=result.model,
        version=result.version,
        request_id=call.id,
        warnings=warnings,
        trust=largest(result.trust),
        trust_status=trust_status,
    )


async def _response(request: Request, answer: InferAnswer) -> Response:
    headers: dict[str, str] = {}
    body = answer.body
    coding = answer_coding(", ".join(header_values(request, b"accept-encoding")) or None)
    if coding is not None:
        body = await offload(len(body) > _COMPRESS_HEAVY, compress, body, coding)
        headers |= {"Content-Encoding": coding, "Vary": "Accept-Encoding"}
    if answer.json_length is None:
        return Response(body, media_type="application/json", headers=headers)
    headers[HEADER] = str(answer.json_length)
    return Response(body, media_type="application/octet-stream", headers=headers)
