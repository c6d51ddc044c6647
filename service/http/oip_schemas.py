"""The Open Inference Protocol's JSON answers other than infer's, for FastAPI and its docs."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict


class _Schema(BaseModel):
    model_config = ConfigDict(protected_namespaces=(), frozen=True)


class Error(_Schema):
    """Every answer but 200 on /v2."""

    error: str


class ServerMetadata(_Schema):
    """Who serves, and which extensions of the protocol."""

    name: str
    version: str
    extensions: list[str]


class Live(_Schema):
    """The process answers."""

    live: bool


class Ready(_Schema):
    """The server takes inference requests."""

    ready: bool


class ModelReady(_Schema):
    """One model takes inference requests."""

    name: str
    ready: bool


class TensorMetadata(_Schema):
    """One tensor: -1 stands for a size that the request chooses."""

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
    """How often something happened, and how long that took in all."""

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


class Statistics(_Schema):
    """Statistics of every model asked for."""

    model_stats: list[ModelStatistics]
