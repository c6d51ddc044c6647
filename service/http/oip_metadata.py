"""A model's metadata, configuration and statistics as the Open Inference Protocol's JSON documents, and their schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turbofno.service.codec.fields import INPUT, OUTPUT, grid_limits
from turbofno.service.codec.oip_binary import DATATYPE
from turbofno.service.http.openapi import array_of, object_of, schema_ref
from turbofno.service.http.trust import trust_status

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import ModelCounters, ModelStatus
    from turbofno.service.settings import Settings

PLATFORM = "turbofno_safetensors"


def metadata(
    config: ModelConfig, versions: list[str], status: ModelStatus, *, enabled: bool
) -> dict[str, Any]:
    """One input and one output tensor, [batch, channels, *grid]; the parameters give backend, precision and trust status."""
    architecture = config.architecture
    grid = [-1] * architecture.n_dim
    return {
        "name": config.name,
        "versions": versions,
        "platform": PLATFORM,
        "inputs": [_tensor(INPUT, [-1, architecture.in_channels, *grid])],
        "outputs": [_tensor(OUTPUT, [-1, architecture.out_channels, *grid])],
        "parameters": _execution(status) | {"trust": trust_status(config, enabled=enabled)},
    }


def configuration(config: ModelConfig, status: ModelStatus, settings: Settings) -> dict[str, Any]:
    """Triton's ModelConfig, for its performance tools; `dims` omits the batch axis."""
    architecture = config.architecture
    grid = [-1] * architecture.n_dim
    lowest, highest = grid_limits(config)
    facts = {
        "input_channels": ",".join(channel.name for channel in config.inputs),
        "output_channels": ",".join(channel.name for channel in config.outputs),
        "grid_minimum": ",".join(map(str, lowest)),
        "grid_maximum": ",".join(map(str, highest)),
        "grid_training": ",".join(map(str, config.grid.training)),
        "trust": trust_status(config, enabled=settings.trust),
        **_execution(status),
    }
    return {
        "name": config.name,
        "platform": PLATFORM,
        "backend": "turbofno",
        "version_policy": {"latest": {"num_versions": 1}},
        "max_batch_size": settings.max_fields_per_request,
        "input": [
            {
                "name": INPUT,
                "data_type": f"TYPE_{DATATYPE}",
                "dims": [architecture.in_channels, *grid],
                "optional": False,
                "is_shape_tensor": False,
            }
        ],
        "output": [
            {
                "name": OUTPUT,
                "data_type": f"TYPE_{DATATYPE}",
                "dims": [architecture.out_channels, *grid],
                "is_shape_tensor": False,
            }
        ],
        "dynamic_batching": {
            "preferred_batch_size": [settings.max_batch_size],
            "max_queue_delay_microseconds": round(settings.max_queue_delay_seconds * 1e6),
        },
        "instance_group": [{"name": config.name, "count": 1}],
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
        "parameters": {name: {"string_value": value} for name, value in facts.items()},
    }


def statistics(name: str, version: str, counters: ModelCounters) -> dict[str, Any]:
    """Every member is present, zero or not: clients read them unconditionally."""
    answered = counters.success_count
    return {
        "name": name,
        "version": version,
        "last_inference": counters.last_inference_ms,
        "inference_count": counters.inference_count,
        "execution_count": counters.execution_count,
        "inference_stats": {
            "success": _duration(answered, counters.success_ns),
            "fail": _duration(counters.fail_count, counters.fail_ns),
            "queue": _duration(answered, counters.queue_ns),
            "compute_input": _duration(answered, counters.compute_input_ns),
            "compute_infer": _duration(answered, counters.compute_infer_ns),
            "compute_output": _duration(answered, counters.compute_output_ns),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "batch_stats": [
            {
                "batch_size": size,
                "compute_input": _duration(count, 0),
                "compute_infer": _duration(count, ns),
                "compute_output": _duration(count, 0),
            }
            for size, (count, ns) in sorted(counters.batches.items())
        ],
        "memory_usage": [],
    }


def _duration(count: int, ns: int) -> dict[str, int]:
    return {"count": count, "ns": ns}


def _execution(status: ModelStatus) -> dict[str, str]:
    return {
        "backend": status.backend,
        "precision": status.precision,
        "asked_precision": status.asked_precision,
        "execution": status.execution,
    }


def _tensor(name: str, shape: list[int]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPE, "shape": shape}


_DURATION = schema_ref("Duration")
_COMPUTE = {"compute_input": _DURATION, "compute_infer": _DURATION, "compute_output": _DURATION}
_TENSOR = object_of({"name": "string", "datatype": "string", "shape": array_of("integer")})
SCHEMAS = {
    "Error": object_of({"error": "string"}),
    "ServerMetadata": object_of(
        {"name": "string", "version": "string", "extensions": array_of("string")}
    ),
    "Live": object_of({"live": "boolean"}),
    "Ready": object_of({"ready": "boolean"}),
    "ModelReady": object_of({"name": "string", "ready": "boolean"}),
    "ModelMetadata": object_of(
        {
            "name": "string",
            "versions": array_of("string"),
            "platform": "string",
            "inputs": array_of(_TENSOR),
            "outputs": array_of(_TENSOR),
            "parameters": {"type": "object", "additionalProperties": {"type": "string"}},
        }
    ),
    "ModelConfig": {"type": "object"},
    "RepositoryIndex": array_of(
        object_of({"name": "string", "version": "string", "state": "string", "reason": "string"})
    ),
    "Duration": object_of(
        {"count": "integer", "ns": "integer"},
        description="Number of events and their total duration.",
    ),
    "ModelStatistics": object_of(
        {
            "model_stats": array_of(
                object_of(
                    {
                        "name": "string",
                        "version": "string",
                        "last_inference": "integer",
                        "inference_count": "integer",
                        "execution_count": "integer",
                        "inference_stats": object_of(
                            {
                                "success": _DURATION,
                                "fail": _DURATION,
                                "queue": _DURATION,
                                **_COMPUTE,
                                "cache_hit": _DURATION,
                                "cache_miss": _DURATION,
                            }
                        ),
                        "batch_stats": array_of(object_of({"batch_size": "integer", **_COMPUTE})),
                        "memory_usage": array_of("object"),
                    }
                )
            )
        }
    ),
}
"""Schemas of the protocol's documents, by name."""
