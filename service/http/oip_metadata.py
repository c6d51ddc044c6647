"""A model's metadata, configuration and statistics in the Open Inference Protocol's schemas."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict
from pydantic.json_schema import models_json_schema

from turbofno.service.codec.fields import INPUT, OUTPUT, grid_limits
from turbofno.service.codec.oip_binary import DATATYPE
from turbofno.service.http.trust import trust_status

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import ModelCounters, ModelStatus
    from turbofno.service.settings import Settings


class _Schema(BaseModel):
    model_config = ConfigDict(protected_namespaces=(), frozen=True)


class Error(_Schema):
    """An error on any /v2 path."""

    error: str


class ServerMetadata(_Schema):
    """The server's name, version and protocol extensions."""

    name: str
    version: str
    extensions: list[str]


class Live(_Schema):
    """The process responds."""

    live: bool


class Ready(_Schema):
    """The server accepts inference requests."""

    ready: bool


class ModelReady(_Schema):
    """The model accepts inference requests."""

    name: str
    ready: bool


class TensorMetadata(_Schema):
    """One tensor; -1 is an axis of any size."""

    name: str
    datatype: str
    shape: list[int]


class ModelMetadata(_Schema):
    """One model's tensors and versions."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]
    parameters: dict[str, str]


class RepositoryEntry(_Schema):
    """One version of a model in the repository."""

    name: str
    version: str
    state: str
    reason: str


class Duration(_Schema):
    """Number of events and their total duration."""

    count: int
    ns: int


class InferenceStatistics(_Schema):
    """Totals of all requests since the model was loaded."""

    success: Duration
    fail: Duration
    queue: Duration
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration
    cache_hit: Duration
    cache_miss: Duration


class BatchStatistics(_Schema):
    """Totals of all batches of one size."""

    batch_size: int
    compute_input: Duration
    compute_infer: Duration
    compute_output: Duration


class ModelStatistics(_Schema):
    """Statistics of one version of a model."""

    name: str
    version: str
    last_inference: int
    inference_count: int
    execution_count: int
    inference_stats: InferenceStatistics
    batch_stats: list[BatchStatistics]
    memory_usage: list[dict[str, Any]]


class StatisticsList(_Schema):
    """Statistics of every model asked for."""

    model_stats: list[ModelStatistics]


SCHEMAS: dict[str, Any] = models_json_schema(
    [(schema, "serialization") for schema in _Schema.__subclasses__()],
    ref_template="#/components/schemas/{model}",
)[1]["$defs"]
"""JSON schemas of the classes above, by name."""

PLATFORM = "turbofno_safetensors"
_NONE = Duration(count=0, ns=0)


def metadata(
    config: ModelConfig, versions: list[str], status: ModelStatus, *, judged: bool
) -> ModelMetadata:
    """One input and one output tensor, [batch, channels, *grid]; parameters say what the model runs on and in."""
    architecture = config.architecture
    grid = [-1] * architecture.n_dim
    return ModelMetadata(
        name=config.name,
        versions=versions,
        platform=PLATFORM,
        inputs=[_tensor(INPUT, [-1, architecture.in_channels, *grid])],
        outputs=[_tensor(OUTPUT, [-1, architecture.out_channels, *grid])],
        parameters=_execution(status) | {"trust": trust_status(config, judged=judged)},
    )


def configuration(config: ModelConfig, status: ModelStatus, settings: Settings) -> dict[str, Any]:
    """Triton's ModelConfig, as its performance tools read it; dims leave the batch axis out."""
    architecture = config.architecture
    grid = [-1] * architecture.n_dim
    lowest, highest = grid_limits(config)
    facts = {
        "input_channels": ",".join(channel.name for channel in config.inputs),
        "output_channels": ",".join(channel.name for channel in config.outputs),
        "grid_minimum": ",".join(map(str, lowest)),
        "grid_maximum": ",".join(map(str, highest)),
        "grid_training": ",".join(map(str, config.grid.training)),
        "trust": trust_status(config, judged=settings.trust),
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


def statistics(name: str, version: str, counters: ModelCounters) -> ModelStatistics:
    """Every member is given, zero or not, because clients read them unasked."""
    answered = counters.success_count
    return ModelStatistics(
        name=name,
        version=version,
        last_inference=counters.last_inference_ms,
        inference_count=counters.inference_count,
        execution_count=counters.execution_count,
        inference_stats=InferenceStatistics(
            success=Duration(count=answered, ns=counters.success_ns),
            fail=Duration(count=counters.fail_count, ns=counters.fail_ns),
            queue=Duration(count=answered, ns=counters.queue_ns),
            compute_input=Duration(count=answered, ns=counters.compute_input_ns),
            compute_infer=Duration(count=answered, ns=counters.compute_infer_ns),
            compute_output=Duration(count=answered, ns=counters.compute_output_ns),
            cache_hit=_NONE,
            cache_miss=_NONE,
        ),
        batch_stats=[
            BatchStatistics(
                batch_size=size,
                compute_input=Duration(count=count, ns=0),
                compute_infer=Duration(count=count, ns=ns),
                compute_output=Duration(count=count, ns=0),
            )
            for size, (count, ns) in sorted(counters.batches.items())
        ],
        memory_usage=[],
    )


def _execution(status: ModelStatus) -> dict[str, str]:
    return {
        "backend": status.backend,
        "precision": status.precision,
        "asked_precision": status.asked_precision,
        "execution": status.execution,
    }


def _tensor(name: str, shape: list[int]) -> TensorMetadata:
    return TensorMetadata(name=name, datatype=DATATYPE, shape=shape)
