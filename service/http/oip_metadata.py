"""The Open Inference Protocol's JSON documents about server, models and repository; their schemas in OpenAPI follow from these types."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType


class ServerMetadata(Struct):
    name: str
    version: str
    extensions: list[str]


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


class RepositoryIndexRequest(Struct):
    ready: Annotated[bool, Meta(description="list READY versions only")] = False


_NoParameters = Annotated[
    dict[str, Any],
    Meta(max_length=0, description="none is supported: a model is loaded as the repository has it"),
]


class LoadRequest(Struct):
    parameters: _NoParameters | UnsetType = UNSET


class UnloadParameters(Struct, forbid_unknown_fields=True):
    unload_dependents: (
        Annotated[bool, Meta(description="without effect: no model depends on another")] | UnsetType
    ) = UNSET


class UnloadRequest(Struct):
    parameters: UnloadParameters | UnsetType = UNSET


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
