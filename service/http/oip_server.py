"""The Open Inference Protocol v2 over REST, all but inference: health, metadata, statistics, repository control."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any

from msgspec import Struct

from turbofno.models.core.config import ModelConfig
from turbofno.service.codec.fields import INPUT, OUTPUT, grid_limits
from turbofno.service.codec.json import json_type, parse_object
from turbofno.service.codec.oip_binary import DATATYPE
from turbofno.service.context import AppContext
from turbofno.service.engine.interface import ModelStatus, status_of
from turbofno.service.errors import (
    BadRequest,
    Forbidden,
    NotFound,
    ServiceError,
    Unavailable,
    Unsupported,
)
from turbofno.service.http import oip_metadata as oip
from turbofno.service.http.body import read_body
from turbofno.service.http.call import Call, Operation
from turbofno.service.http.health import Health, why_not_ready
from turbofno.service.http.oip_openapi import TAG
from turbofno.service.http.openapi import errors, schema_of
from turbofno.service.http.route import route
from turbofno.service.http.trust import trust_status
from turbofno.service.settings import env_name
from turbofno.service.version import VERSION

logger = logging.getLogger(__name__)

PLATFORM = "turbofno_safetensors"
EXTENSIONS = [
    "binary_tensor_data",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
]
_CONTROL_BYTES = 64 * 1024
_READY = "READY"
_SHARED_MEMORY = ("/v2/systemsharedmemory", "/v2/cudasharedmemory")
_REGION = "/region/{region}"
_TRACE = ("/v2/trace/setting", "/v2/models/{model}/trace/setting")
_NOT_OFFERED = {
    "register": "shared memory is not offered by this server: send tensors in binary",
    "setting": "trace settings cannot be changed while the server runs: start it with TURBOFNO_TRACING",
    "logging": "log settings cannot be changed while the server runs: start it with TURBOFNO_LOG_LEVEL",
}

OPERATIONS: list[Operation] = []
_route = partial(route, OPERATIONS, tag=TAG, errors=errors(400, 401, 404, 503))
_BODY_ERRORS = errors(400, 401, 404, 408, 413, 415, 503)


_CONTROL_ERRORS = {**_BODY_ERRORS, 403: "Switched off on this server."}


def _body(form: type[Struct], example: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"application/json": {"schema": schema_of(form), "example": example}}}


@_route("GET", "/v2/")
@_route("GET", "/v2", summaries=("Server metadata",))
async def server_metadata(_: Call) -> oip.ServerMetadata:
    """Name, version and the protocol extensions that this server offers."""
    return oip.ServerMetadata("turbofno", VERSION, EXTENSIONS)


@_route("GET", "/v2/health/live", summaries=("Is the process alive?",))
async def live(_: Call) -> Health:
    """Answers as long as the process can answer at all."""
    return Health(live=True)


@_route("GET", "/v2/health/ready", summaries=("Is the server ready?",))
async def ready(call: Call) -> oip.Ready:
    """200 once every start-up model is loaded and warm, until the server drains."""
    if reasons := why_not_ready(call.context):
        raise Unavailable(f"the server is not ready: {'; '.join(reasons)}")
    return oip.Ready(ready=True)


# Before the paths with a model's name, which would match "stats".
@_route("GET", "/v2/models/stats", summaries=("All statistics",))
async def all_statistics(call: Call) -> oip.ModelStatistics:
    """Counts and nanoseconds since load, for every model that is ready."""
    found = []
    for one in call.context.engine.statuses():
        if one.state == _READY:
            # It may be unloaded, or its engine end, while the others are read.
            with suppress(NotFound, Unavailable):
                found.append(await _statistics(call, one))
    return oip.ModelStatistics(found)


@_route(
    "GET", "/v2/models/{model}VERSION",
    summaries=("Model metadata", "Model metadata of one version"),
)  # fmt: skip
async def metadata(call: Call) -> oip.ModelMetadata:
    """Tensors and versions of a model; -1 is an axis of any size."""
    context, config = call.context, _config(call)
    statuses = context.engine.statuses()
    architecture = config.architecture
    grid = [-1] * architecture.n_dim
    return oip.ModelMetadata(
        config.name,
        [one.version for one in statuses if (one.name, one.state) == (config.name, _READY)],
        PLATFORM,
        inputs=[oip.Tensor(INPUT, DATATYPE, [-1, architecture.in_channels, *grid])],
        outputs=[oip.Tensor(OUTPUT, DATATYPE, [-1, architecture.out_channels, *grid])],
        parameters=_facts(context, config),
    )


@_route(
    "GET", "/v2/models/{model}VERSION/ready",
    summaries=("Is the model ready?", "Is the version ready?"),
)  # fmt: skip
async def model_ready(call: Call) -> oip.ModelReady:
    """200 if it is; without a version, if any version is."""
    return oip.ModelReady(_config(call).name, ready=True)


@_route(
    "GET", "/v2/models/{model}VERSION/config",
    summaries=("Model configuration", "Configuration of one version"),
)  # fmt: skip
async def configuration(call: Call) -> dict[str, Any]:
    """Triton's ModelConfig as JSON, for its performance tools; `dims` omits the batch axis."""
    settings, config = call.context.settings, _config(call)
    architecture = config.architecture
    lowest, highest = grid_limits(config)
    facts = {
        "input_channels": ",".join(channel.name for channel in config.inputs),
        "output_channels": ",".join(channel.name for channel in config.outputs),
        "grid_minimum": ",".join(map(str, lowest)),
        "grid_maximum": ",".join(map(str, highest)),
        "grid_training": ",".join(map(str, config.grid.training)),
        **_facts(call.context, config),
    }

    def tensor(name: str, channels: int) -> dict[str, Any]:
        dims = [channels, *[-1] * architecture.n_dim]
        return {
            "name": name,
            "data_type": f"TYPE_{DATATYPE}",
            "dims": dims,
            "is_shape_tensor": False,
        }

    return {
        "name": config.name,
        "platform": PLATFORM,
        "backend": "turbofno",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": settings.max_fields_per_request,
        "input": [tensor(INPUT, architecture.in_channels) | {"optional": False}],
        "output": [tensor(OUTPUT, architecture.out_channels)],
        "dynamic_batching": {
            "preferred_batch_size": [settings.max_batch_size],
            "max_queue_delay_microseconds": round(settings.max_queue_delay_seconds * 1e6),
        },
        "instance_group": [{"name": config.name, "count": 1}],
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
        "parameters": {name: {"string_value": value} for name, value in facts.items()},
    }


@_route(
    "GET", "/v2/models/{model}VERSION/stats",
    summaries=("Statistics of a model", "Statistics of one version"),
)  # fmt: skip
async def statistics(call: Call) -> oip.ModelStatistics:
    """Counts and nanoseconds since load; without a version, of the newest.

    `fail` leaves out requests that were refused before they reached the model's queue.
    """
    return oip.ModelStatistics([await _statistics(call, _config(call))])


@_route(
    "POST", "/v2/repository/index",
    summaries=("List the model repository",),
    body=_body(oip.RepositoryIndexRequest, {"ready": True}),
    errors=_BODY_ERRORS,
)  # fmt: skip
async def repository_index(call: Call) -> list[oip.IndexedModel]:
    """Every version known to the server, with its state; only the READY ones if `ready` is true."""
    only_ready = (await _control_body(call)).get("ready", False)
    if not isinstance(only_ready, bool):
        raise BadRequest(f"'ready' is a JSON {json_type(only_ready)}, expected true or false")
    return [
        oip.IndexedModel(one.name, one.version, one.state, one.reason)
        for one in call.context.engine.statuses()
        if one.state == _READY or not only_ready
    ]


@_route(
    "POST", "/v2/repository/models/{model}/load",
    summaries=("Load or reload a model",),
    body=_body(oip.LoadRequest, {}),
    errors=_CONTROL_ERRORS,
)  # fmt: skip
async def load(call: Call) -> None:
    """Load a model from the repository; answers when it is warm. Overrides are refused."""
    parameters = await _control_parameters(call)
    if parameters:
        raise BadRequest(
            f"load parameter {min(parameters)[:80]!r} is not supported: a model is loaded as the repository has it"
        )
    await _to_the_end(call.context.engine.load(call.target.model))


@_route(
    "POST", "/v2/repository/models/{model}/unload",
    summaries=("Unload a model",),
    body=_body(oip.UnloadRequest, {}),
    errors=_CONTROL_ERRORS,
)  # fmt: skip
async def unload(call: Call) -> None:
    """Answer what is queued for a model, then drop it."""
    unknown = (await _control_parameters(call)).keys() - {"unload_dependents"}
    if unknown:
        raise BadRequest(f"unload parameter {min(unknown)[:80]!r} is not known")
    await _to_the_end(call.context.engine.unload(call.target.model))


async def _to_the_end(change: Coroutine[Any, Any, None]) -> None:
    """Await a change, which goes on if its client disconnects: the model must not stay half loaded."""
    task = asyncio.create_task(change)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        task.add_done_callback(_log_failure)
        raise


def _log_failure(change: asyncio.Task[None]) -> None:
    if not change.cancelled() and (error := change.exception()) is not None:
        about = None if isinstance(error, ServiceError) else error
        logger.warning(
            "a model was not changed, and its client has left: %s", error, exc_info=about
        )


# Triton's extensions that are not offered: a client's generic calls get true readings and clear refusals.


@_route("GET", *(f"{root}{part}/status" for root in _SHARED_MEMORY for part in ("", _REGION)))
async def shared_memory_status(_: Call) -> list[dict[str, Any]]:
    return []


@_route("POST", *(f"{root}{part}/unregister" for root in _SHARED_MEMORY for part in ("", _REGION)))
async def unregister_shared_memory(_: Call) -> None:
    """Succeed: nothing is registered."""


@_route("GET", *_TRACE)
async def trace_settings(_: Call) -> dict[str, Any]:
    return {"trace_level": ["OFF"], "trace_rate": "0", "trace_count": "0", "log_frequency": "0"}


@_route("GET", "/v2/logging")
async def log_settings(_: Call) -> dict[str, Any]:
    ours = logging.getLogger("turbofno.service")
    return {
        "log_file": "",
        "log_info": ours.isEnabledFor(logging.INFO),
        "log_warning": ours.isEnabledFor(logging.WARNING),
        "log_error": ours.isEnabledFor(logging.ERROR),
        "log_verbose_level": int(ours.isEnabledFor(logging.DEBUG)),
        "log_format": "default",
    }


@_route("POST", *(f"{root}{_REGION}/register" for root in _SHARED_MEMORY), *_TRACE, "/v2/logging")
async def refuse(call: Call) -> None:
    raise Unsupported(_NOT_OFFERED[call.path.rpartition("/")[2]])


async def _statistics(call: Call, model: ModelConfig | ModelStatus) -> oip.VersionStatistics:
    counters = await call.context.engine.counters(model.name, model.version)
    answered, spent = counters.success_count, oip.Duration
    return oip.VersionStatistics(
        model.name,
        model.version,
        counters.last_inference_ms,
        counters.inference_count,
        counters.execution_count,
        oip.InferenceStatistics(
            success=spent(answered, counters.success_ns),
            fail=spent(counters.fail_count, counters.fail_ns),
            queue=spent(answered, counters.queue_ns),
            compute_input=spent(answered, counters.compute_input_ns),
            compute_infer=spent(answered, counters.compute_infer_ns),
            compute_output=spent(answered, counters.compute_output_ns),
            cache_hit=spent(0, 0),
            cache_miss=spent(0, 0),
        ),
        [
            oip.BatchStatistics(size, spent(count, 0), spent(count, ns), spent(count, 0))
            for size, (count, ns) in sorted(counters.batches.items())
        ],
        memory_usage=[],
    )


def _facts(context: AppContext, config: ModelConfig) -> dict[str, str]:
    """The trust status of a model, and what it runs by."""
    status = status_of(config, context.engine)
    names = ("backend", "precision", "asked_precision", "execution")
    trust = {"trust": trust_status(config, enabled=context.settings.trust)}
    return {name: getattr(status, name) for name in names} | trust


def _config(call: Call) -> ModelConfig:
    """The configuration of the requested model. Raises NotFound, Unavailable."""
    return call.context.engine.config(call.target.model, call.target.version)


async def _control_parameters(call: Call) -> dict[str, Any]:
    if not call.context.settings.model_control:
        raise Forbidden(
            "loading and unloading over HTTP is switched off: start the server with --model-control true "
            f"({env_name('model_control')}=true), or with API keys ({env_name('api_keys_file')})"
        )
    call.context.admission.refuse_if_draining()
    parameters = (await _control_body(call)).get("parameters", {})
    if not isinstance(parameters, dict):
        raise BadRequest(f"'parameters' is a JSON {json_type(parameters)}, expected an object")
    return parameters


async def _control_body(call: Call) -> dict[str, Any]:
    # Not counted: operators need these routes when the service is full.
    body = await read_body(call, limit=_CONTROL_BYTES, setting=None)
    return parse_object(body) if len(body) else {}
