"""The Open Inference Protocol's JSON documents about server and models; their schemas in OpenAPI follow from these types."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from msgspec import Struct

from turbofno.service.codec.fields import INPUT, OUTPUT, grid_limits
from turbofno.service.codec.oip_binary import DATATYPE
from turbofno.service.http.trust import trust_status

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import ModelCounters, ModelStatus
    from turbofno.service.settings import Settings

PLATFORM = "turbofno_safetensors"


class Error(Struct):
    error: str


class ServerMetadata(Struct):
    name: str
    version: str
    extensions: list[str]


class Live(Struct):
    live: bool


class Ready(Struct):
    ready: bool


class ModelReady(Struct):
    name: str
    ready: bool


class Tensor(Struct):
    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(Struct):
    """Tensors [batch, channels, *grid]; the parameters give backend, precision and trust status."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[Tensor]
    outputs: list[Tensor]
    parameters: dict[str, str]


class IndexedModel(Struct):
    name: str
    version: str
    state: str
    reason: str


class Duration(Struct):
    """Number of events and their total duration."""

    count: int
    ns: int


class InferenceStatistics(Struct):
    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(Struct):
    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class VersionStatistics(Struct):
    """Every member is present, zero or not: clients read them unconditionally."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: list[dict[str, Any]]


class ModelStatistics(Struct):
    model_stats: list[VersionStatistics]


def metadata(
    config: ModelConfig, versions: list[str], status: ModelStatus, *, enabled: bool
) -> ModelMetadata:
    """The metadata of a model; `enabled` is False if the server computes no trust signals."""
    architecture = config.architecture
    grid = [-1] * architecture.n_dim
    return ModelMetadata(
        config.name,
        versions,
        PLATFORM,
        inputs=[Tensor(INPUT, DATATYPE, [-1, architecture.in_channels, *grid])],
        outputs=[Tensor(OUTPUT, DATATYPE, [-1, architecture.out_channels, *grid])],
        parameters=_execution(status) | {"trust": trust_status(config, enabled=enabled)},
    )


def configuration(config: ModelConfig, status: ModelStatus, settings: Settings) -> dict[str, Any]:
    """Triton's ModelConfig, for its performance tools; `dims` omits the batch axis."""
    architecture = config.architecture
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
        "input": [{**_tensor(INPUT, architecture.in_channels, config), "optional": False}],
        "output": [_tensor(OUTPUT, architecture.out_channels, config)],
        "dynamic_batching": {
            "preferred_batch_size": [settings.max_batch_size],
            "max_queue_delay_microseconds": round(settings.max_queue_delay_seconds * 1e6),
        },
        "instance_group": [{"name": config.name, "count": 1}],
        "model_transaction_policy": {"decoupled": False},
        "response_cache": {"enable": False},
        "parameters": {name: {"string_value": value} for name, value in facts.items()},
    }


def statistics(name: str, version: str, counters: ModelCounters) -> VersionStatistics:
    answered = counters.success_count
    return VersionStatistics(
        name,
        version,
        counters.last_inference_ms,
        counters.inference_count,
        counters.execution_count,
        InferenceStatistics(
            success=Duration(answered, counters.success_ns),
            fail=Duration(counters.fail_count, counters.fail_ns),
            queue=Duration(answered, counters.queue_ns),
            compute_input=Duration(answered, counters.compute_input_ns),
            compute_infer=Duration(answered, counters.compute_infer_ns),
            compute_output=Duration(answered, counters.compute_output_ns),
            cache_hit=Duration(0, 0),
            cache_miss=Duration(0, 0),
        ),
        [
            BatchStatistics(size, Duration(count, 0), Duration(count, ns), Duration(count, 0))
            for size, (count, ns) in sorted(counters.batches.items())
        ],
        memory_usage=[],
    )


def _tensor(name: str, channels: int, config: ModelConfig) -> dict[str, Any]:
    dims = [channels, *[-1] * config.architecture.n_dim]
    return {"name": name, "data_type": f"TYPE_{DATATYPE}", "dims": dims, "is_shape_tensor": False}


def _execution(status: ModelStatus) -> dict[str, str]:
    return {
        "backend": status.backend,
        "precision": status.precision,
        "asked_precision": status.asked_precision,
        "execution": status.execution,
    }
