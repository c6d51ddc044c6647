"""Health, readiness, metrics, and the models with their descriptions, cards and pictures."""

from __future__ import annotations

import logging
import re
from asyncio import to_thread
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Struct
from prometheus_client import CONTENT_TYPE_LATEST

from turbofno.models.core.config import PDE, Channel, GridSpec, Metric, ModelConfig
from turbofno.models.core.files import FileRefused, read_inside
from turbofno.models.core.registry import discover
from turbofno.models.core.statistics import Statistics
from turbofno.service.demo.sample_parameters import SampleParameter, parameters_of
from turbofno.service.engine.interface import ModelStatus, status_of
from turbofno.service.errors import BadRequest, NotFound
from turbofno.service.http.call import Call, Operation, Reply
from turbofno.service.http.openapi import errors
from turbofno.service.http.route import json_content, json_reply, route
from turbofno.service.http.trust import trust_status

if TYPE_CHECKING:
    from turbofno.service.context import AppContext

CARD_FILE = "card.md"
_CARD_BYTES = 16 << 20
"""Size limit of a card and of each of its pictures."""
_PICTURE = re.compile(r"[A-Za-z0-9_-]{1,64}\.png")

_OF_CONFIG = ("grid", "time_step", "pde", "statistics", "evaluation", "sha256")
"""Members of a model's configuration that are part of its description."""

logger = logging.getLogger(__name__)

OPERATIONS: list[Operation] = []
_health = partial(route, OPERATIONS, "GET", tag="health")
_models = partial(route, OPERATIONS, "GET", tag="models")
_ERRORS = {
    **errors(401),
    404: "No such model, or it has no such file.",
    503: "The model is not ready; the error says why.",
}


class Health(Struct):
    """The process responds."""

    live: bool = True


class Readiness(Struct):
    """True if this instance should get traffic; otherwise the reasons."""

    ready: bool
    reasons: list[str]


class Signature(Struct):
    """One tensor: float32 [batch, channels, *grid] in physical units; -1 is any size within the grid limits."""

    name: str
    datatype: str
    shape: list[int]
    channels: tuple[Channel, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSummary(ModelStatus):
    """One version of a model."""

    description: str = ""
    trust: str = ""
    """The trust signals of a READY model's answers, if any, and whether it was evaluated."""


class ModelList(Struct):
    """All models of this service."""

    models: list[ModelSummary]


class Reference(Struct):
    """Routes that draw and solve random inputs of a model, and the sampler's parameters."""

    sample: str
    solve: str
    parameters: tuple[SampleParameter, ...]


@dataclass(frozen=True, kw_only=True)
class ModelDescription(ModelSummary):
    """A model's signature, limits and measured errors."""

    input: Signature
    output: Signature
    grid: GridSpec
    smallest_grid: tuple[int, ...]
    """Fewest points that resolve the model's modes; `grid.minimum` is the smallest grid accepted."""
    time_step: float | None
    pde: PDE | None
    """The equation, and the range of each parameter seen in training."""
    statistics: Statistics | None
    evaluation: tuple[Metric, ...]
    sha256: str
    predict: str
    card: str
    reference: Reference | None
    """The service's sampler and PDE solver for this model, if any."""


@_health("/healthz", summaries=("Is the process alive?",))
async def health(_: Call) -> Health:
    """Live: the event loop runs."""
    return Health()


@_health(
    "/readyz",
    summaries=("Should this instance get traffic?",),
    responses={
        200: {"description": "Ready.", "content": json_content(Readiness)},
        503: {
            "description": "Loading, draining, or a model is broken.",
            "content": json_content(Readiness),
        },
    },
)
async def readiness(call: Call) -> Reply:
    """Ready: every start-up model is loaded and warm, and the service is not shutting down."""
    context = call.context
    reasons = ["shutting down"] if context.admission.draining else []
    if context.engine.failure:
        reasons.append(context.engine.failure)
    elif not context.engine.ready:
        statuses = context.engine.statuses()
        reasons += [
            f"model {one.name} version {one.version} is {one.state}"
            + (f": {one.reason}" if one.reason else "")
            for one in statuses
            if one.state != "READY"
        ]
        reasons = reasons or ["no model is loaded"]
    return json_reply(Readiness(not reasons, reasons), 503 if reasons else 200)


@_health(
    "/metrics",
    summaries=("Metrics",),
    responses={200: {"description": "Success.", "content": {"text/plain": {}}}},
)
async def metrics(call: Call) -> Reply:
    """Prometheus metrics, in the text format."""
    return _reply(await call.context.scrape(), CONTENT_TYPE_LATEST)


@_models("/v1/models", summaries=("All models",))
async def list_models(call: Call) -> ModelList:
    """All models, ready or not."""
    context = call.context
    return ModelList([_summary(context, status) for status in context.engine.statuses()])


@_models("/v1/models/{name}", summaries=("Describe a model",), errors=_ERRORS)
async def describe_model(call: Call) -> ModelDescription:
    """The newest version's full signature: channels, units, grid limits, parameter ranges, measured errors."""
    context = call.context
    config = context.engine.config(call.target.model)
    base = f"/v1/models/{config.name}"
    parameters = parameters_of(config.pde) if context.solver else None
    return ModelDescription(
        **asdict(_summary(context, status_of(config, context.engine))),
        input=_signature("input", config.inputs, config),
        output=_signature("output", config.outputs, config),
        smallest_grid=config.architecture.smallest_grid,
        **{name: getattr(config, name) for name in _OF_CONFIG},
        predict=f"{base}:predict",
        card=f"{base}/card",
        reference=None
        if parameters is None
        else Reference(f"{base}/sample", f"{base}:solve", parameters),
    )


@_models(
    "/v1/models/{name}/card",
    summaries=("A model's card",),
    errors=_ERRORS,
    responses={200: {"description": "Success.", "content": {"text/markdown": {}}}},
)
async def model_card(call: Call) -> Reply:
    """The model card as Markdown: purpose, training, measured errors."""
    return _reply(await to_thread(_file_of, call, CARD_FILE), "text/markdown; charset=utf-8")


@_models(
    "/v1/models/{name}/{picture}.png",
    summaries=("A picture of the card",),
    errors={**_ERRORS, 400: "Not a picture's name."},
    responses={200: {"description": "Success.", "content": {"image/png": {}}}},
)
async def model_picture(call: Call) -> Reply:
    """A picture of the card, whose relative links lead here."""
    file = call.path.rpartition("/")[2]
    if not _PICTURE.fullmatch(file):
        raise BadRequest(
            f"{file[:80]!r} is not a picture's name, expected up to 64 of A-Z a-z 0-9 _ - and '.png'"
        )
    return _reply(await to_thread(_file_of, call, file), "image/png")


def _reply(body: bytes, media_type: str) -> Reply:
    return Reply(200, [(b"content-type", media_type.encode())], (body,))


def _file_of(call: Call, file: str) -> bytes:
    context, name = call.context, call.target.model
    config = context.engine.config(name)
    root = context.settings.model_repository
    for location in discover(root):
        if (location.name, location.version) == (name, config.version):
            try:
                return read_inside(location.path / file, location.path, root, limit=_CARD_BYTES)
            except (OSError, FileRefused) as error:
                logger.info("model %s has no %s to show: %s", name, file, error)
    raise NotFound(f"model {name!r} version {config.version} has no {file}")


def _summary(context: AppContext, status: ModelStatus) -> ModelSummary:
    if status.state != "READY":
        return ModelSummary(**asdict(status))
    config = context.engine.config(status.name, status.version)
    return ModelSummary(
        **asdict(status),
        description=config.description,
        trust=trust_status(config, enabled=context.settings.trust),
    )


def _signature(name: str, channels: tuple[Channel, ...], config: ModelConfig) -> Signature:
    shape = [-1, len(channels), *[-1] * config.architecture.n_dim]
    return Signature(name, "FP32", shape, channels)
