"""The Open Inference Protocol v2 over REST: health, metadata, statistics, repository."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request, Response

from turbofno.service.codec.json import json_type, parse_object
from turbofno.service.context import context_of
from turbofno.service.engine.interface import status_of
from turbofno.service.errors import BadRequest, Forbidden, Unavailable
from turbofno.service.http import oip_describe, oip_extensions
from turbofno.service.http.asgi import call_of
from turbofno.service.http.body import read_body
from turbofno.service.http.oip_openapi import BODY_ERRORS, ERRORS
from turbofno.service.http.oip_schemas import (
    Error,
    Live,
    ModelMetadata,
    ModelReady,
    Ready,
    RepositoryEntry,
    ServerMetadata,
    Statistics,
)
from turbofno.service.http.openapi import ModelName, ModelVersion
from turbofno.service.pipeline.admission import ByteBudget
from turbofno.service.settings import env_name
from turbofno.service.version import VERSION

router = APIRouter(tags=["Open Inference Protocol v2"], responses=ERRORS)
router.include_router(oip_extensions.router)

EXTENSIONS = (
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)
_CONTROL_BYTES = 64 * 1024
_READY = "READY"


@router.get("/v2/", include_in_schema=False)
@router.get("/v2", summary="Server metadata")
async def server_metadata() -> ServerMetadata:
    """Name, version and the protocol extensions that this server offers."""
    return ServerMetadata(name="turbofno", version=VERSION, extensions=list(EXTENSIONS))


@router.get("/v2/health/live", summary="Is the process alive?")
async def live() -> Live:
    """Answers as long as the process can answer at all."""
    return Live(live=True)


@router.get("/v2/health/ready", summary="Does the server take requests?")
async def ready(request: Request) -> Ready:
    """200 once every start-up model is loaded and warm, until the server drains."""
    context = context_of(request)
    if context.engine.failure:
        raise Unavailable(context.engine.failure)
    if context.admission.draining or not context.engine.ready:
        raise Unavailable("the server is not ready: models are still loading, or it shuts down")
    return Ready(ready=True)


# Before the routes with a model's name, which would take "stats" for one.
@router.get("/v2/models/stats", summary="Statistics of all models")
async def all_statistics(request: Request) -> Statistics:
    """Counts and nanoseconds since load, for every model that is ready."""
    engine = context_of(request).engine
    return Statistics(
        model_stats=[
            oip_describe.statistics(m.name, m.version, await engine.counters(m.name, m.version))
            for m in engine.statuses()
            if m.state == _READY
        ]
    )


@router.get("/v2/models/{model}", summary="Model metadata")
async def model_metadata(request: Request, model: ModelName) -> ModelMetadata:
    """Tensors and versions of a model; -1 stands for a size that the request chooses."""
    return _metadata(request, model, None)


@router.get("/v2/models/{model}/versions/{version}", summary="Model metadata of one version")
async def version_metadata(
    request: Request, model: ModelName, version: ModelVersion
) -> ModelMetadata:
    """As for the model, whose versions are all listed."""
    return _metadata(request, model, version)


def _metadata(request: Request, model: str, version: str | None) -> ModelMetadata:
    engine = context_of(request).engine
    config = engine.config(model, version)
    versions = [m.version for m in engine.statuses() if m.name == model and m.state == _READY]
    judged = context_of(request).settings.trust
    return oip_describe.metadata(config, versions, status_of(config, engine), judged=judged)


@router.get("/v2/models/{model}/ready", summary="Does the model take requests?")
async def model_ready(request: Request, model: ModelName) -> ModelReady:
    """200 if any version does."""
    return _model_ready(request, model, None)


@router.get("/v2/models/{model}/versions/{version}/ready", summary="Does the version?")
async def version_ready(request: Request, model: ModelName, version: ModelVersion) -> ModelReady:
    """200 if it does."""
    return _model_ready(request, model, version)


def _model_ready(request: Request, model: str, version: str | None) -> ModelReady:
    config = context_of(request).engine.config(model, version)
    return ModelReady(name=config.name, ready=True)


@router.get("/v2/models/{model}/config", summary="Model configuration")
async def model_config(request: Request, model: ModelName) -> dict[str, Any]:
    """Triton's ModelConfig as JSON."""
    return _configuration(request, model, None)


@router.get("/v2/models/{model}/versions/{version}/config", summary="Configuration of one version")
async def version_config(
    request: Request, model: ModelName, version: ModelVersion
) -> dict[str, Any]:
    """Triton's ModelConfig as JSON."""
    return _configuration(request, model, version)


def _configuration(request: Request, model: str, version: str | None) -> dict[str, Any]:
    context = context_of(request)
    config = context.engine.config(model, version)
    status = status_of(config, context.engine)
    return oip_describe.configuration(config, status, context.settings)


@router.get("/v2/models/{model}/stats", summary="Statistics of a model")
async def model_statistics(request: Request, model: ModelName) -> Statistics:
    """Counts and nanoseconds since load, of the newest version."""
    return await _statistics(request, model, None)


@router.get("/v2/models/{model}/versions/{version}/stats", summary="Statistics of one version")
async def version_statistics(
    request: Request, model: ModelName, version: ModelVersion
) -> Statistics:
    """Counts and nanoseconds since load."""
    return await _statistics(request, model, version)


async def _statistics(request: Request, model: str, version: str | None) -> Statistics:
    engine = context_of(request).engine
    config = engine.config(model, version)
    counters = await engine.counters(config.name, config.version)
    return Statistics(model_stats=[oip_describe.statistics(config.name, config.version, counters)])


@router.post(
    "/v2/repository/index",
    summary="List the model repository",
    openapi_extra={
        "requestBody": {
            "content": {
                "application/json": {
                    "schema": {
                        "type": "object",
                        "properties": {"ready": {"type": "boolean"}},
                    },
                    "example": {"ready": True},
                }
            }
        }
    },
    responses=BODY_ERRORS,
)
async def repository_index(request: Request) -> list[RepositoryEntry]:
    """Every version the server knows, with its state; only the READY ones if `ready` is true."""
    only_ready = (await _control_body(request)).get("ready", False)
    if not isinstance(only_ready, bool):
        raise BadRequest(f"'ready' is a JSON {json_type(only_ready)}, expected true or false")
    return [
        RepositoryEntry(name=m.name, version=m.version, state=m.state, reason=m.reason)
        for m in context_of(request).engine.statuses()
        if m.state == _READY or not only_ready
    ]


_CONTROL_BODY: dict[str, Any] = {
    "requestBody": {
        "content": {
            "application/json": {
                "schema": {"type": "object", "properties": {"parameters": {"type": "object"}}},
                "example": {},
            }
        }
    }
}
_CONTROL_RESPONSES: dict[int | str, dict[str, Any]] = {
    200: {"description": "Done; the body is empty."},
    403: {"model": Error, "description": "Switched off on this server."},
    **BODY_ERRORS,
}


@router.post(
    "/v2/repository/models/{model}/load",
    summary="Load or reload a model",
    openapi_extra=_CONTROL_BODY,
    responses=_CONTROL_RESPONSES,
    response_class=Response,
)
async def load(request: Request, model: ModelName) -> Response:
    """Load a model from the repository; answers when it is warm. Overrides are refused."""
    parameters = await _control_parameters(request)
    if parameters:
        raise BadRequest(
            f"load parameter {min(parameters)[:80]!r} is not offered: a model is loaded as it "
            f"stands in the repository"
        )
    await context_of(request).engine.load(model)
    return Response()


@router.post(
    "/v2/repository/models/{model}/unload",
    summary="Unload a model",
    openapi_extra=_CONTROL_BODY,
    responses=_CONTROL_RESPONSES,
    response_class=Response,
)
async def unload(request: Request, model: ModelName) -> Response:
    """Answer what is queued for a model, then drop it."""
    unknown = set(await _control_parameters(request)) - {"unload_dependents"}
    if unknown:
        raise BadRequest(f"unload parameter {min(unknown)[:80]!r} is not known")
    await context_of(request).engine.unload(model)
    return Response()


async def _control_parameters(request: Request) -> dict[str, Any]:
    if not context_of(request).settings.model_control:
        raise Forbidden(
            "loading and unloading over HTTP is switched off: start the server with --model-control true "
            f"({env_name('model_control')}=true), or with API keys ({env_name('api_keys_file')})"
        )
    context_of(request).admission.refuse_if_draining()
    parameters = (await _control_body(request)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequest(f"'parameters' is a JSON {json_type(parameters)}, expected an object")
    return parameters


async def _control_body(request: Request) -> dict[str, Any]:
    # Not refused when the service is full: that is when operators need these routes.
    call = call_of(request.scope, request.receive, context_of(request))
    body = await read_body(call, ByteBudget(), limit=_CONTROL_BYTES, setting=None)
    return parse_object(body) if len(body) else {}
