"""The models, with their descriptions, cards and pictures."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel

from turbofno.models.core.config import PDE, Channel, GridSpec, Metric, ModelConfig
from turbofno.models.core.files import FileRefused, read_inside
from turbofno.models.core.registry import CARD_FILE, discover
from turbofno.models.core.statistics import Statistics
from turbofno.service.context import AppContext, context_of
from turbofno.service.demo.sample_parameters import SampleParameter, sampler_of
from turbofno.service.engine.interface import ModelStatus, status_of
from turbofno.service.errors import NotFound
from turbofno.service.http.openapi import errors
from turbofno.service.http.route import error_responses
from turbofno.service.http.trust import trust_status

_CARD_BYTES = 16 << 20
"""Size limit of a card and of each of its pictures."""

_OF_CONFIG = ("grid", "time_step", "past_steps", "pde", "statistics", "evaluation", "sha256")
"""Members of a model's configuration that are part of its description."""

logger = logging.getLogger(__name__)

router = APIRouter(tags=["models"])

_ERRORS = {
    **errors(401),
    404: "No such model, or it has no such file.",
    503: "The model is not ready; the error says why.",
}
_RESPONSES = error_responses("/v1/models", _ERRORS)
_Name = Annotated[str, Path(description="name of a model", examples=["burgers-1d"])]
_Version = Annotated[str, Path(description="version of the model", examples=["1"])]


class Signature(BaseModel):
    """One tensor: float32 [batch, channels, *grid] in physical units; -1 is any size within the grid limits."""

    name: str
    datatype: str = "FP32"
    shape: list[int]
    channels: tuple[Channel, ...]


@dataclass(frozen=True, kw_only=True)
class ModelSummary(ModelStatus):
    """One version of a model."""

    description: str = ""
    trust: str = ""
    """The trust signals of a READY model's answers, if any, and whether it was evaluated."""


class ModelList(BaseModel):
    """All models of this service."""

    models: list[ModelSummary]


class Reference(BaseModel):
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
    past_steps: int | None
    pde: PDE | None
    """The equation, and the range of each parameter seen in training."""
    statistics: Statistics | None
    evaluation: tuple[Metric, ...]
    sha256: str
    predict: str
    card: str
    reference: Reference | None
    """The service's sampler and PDE solver for this model, if any."""


@router.get(
    "/v1/models", summary="List the models", responses=error_responses("/v1/models", errors(401))
)
async def list_models(request: Request) -> ModelList:
    """All models, ready or not."""
    context = context_of(request)
    return ModelList(models=[_summary(context, status) for status in context.engine.statuses()])


@router.get("/v1/models/{name}", summary="Describe the newest version", responses=_RESPONSES)
async def describe_model(request: Request, name: _Name) -> ModelDescription:
    """The newest version's full signature: channels, units, grid limits, parameter ranges, measured errors."""
    return _description(request, name)


@router.get(
    "/v1/models/{name}/versions/{version}", summary="Describe one version", responses=_RESPONSES
)
async def describe_version(request: Request, name: _Name, version: _Version) -> ModelDescription:
    """One version's full signature; `card` and `reference` are those of the newest."""
    return _description(request, name, version)


@router.get(
    "/v1/models/{name}/card",
    summary="The model's card",
    response_class=Response,
    responses={200: {"content": {"text/markdown": {"schema": {"type": "string"}}}}, **_RESPONSES},
)
def model_card(request: Request, name: _Name) -> Response:
    """The model card as Markdown: purpose, training, measured errors."""
    return Response(_file_of(request, name, CARD_FILE), media_type="text/markdown; charset=utf-8")


@router.get(
    "/v1/models/{name}/{picture}.png",
    summary="A picture of the card",
    response_class=Response,
    responses={
        200: {"content": {"image/png": {"schema": {"type": "string", "format": "binary"}}}},
        **_RESPONSES,
        **error_responses("/v1/models", {400: "Not a picture's name."}),
    },
)
def model_picture(
    request: Request,
    name: _Name,
    picture: Annotated[
        str,
        Path(
            pattern=r"^[A-Za-z0-9_-]{1,64}$",
            description="name of the picture's file, without .png",
            examples=["card"],
        ),
    ],
) -> Response:
    """A picture of the card, whose relative links lead here."""
    return Response(_file_of(request, name, f"{picture}.png"), media_type="image/png")


def _file_of(request: Request, name: str, file: str) -> bytes:
    context = context_of(request)
    config = context.engine.config(name)
    root = context.settings.model_repository
    try:
        for location in discover(root, name):
            if location.version == config.version:
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


def _description(request: Request, name: str, version: str | None = None) -> ModelDescription:
    """The description of the model that the request's path names."""
    context, base = context_of(request), f"/v1/models/{name}"
    config = context.engine.config(name, version)
    parameters = sampler_of(config) if context.solver else None
    return ModelDescription(
        **asdict(_summary(context, status_of(config, context.engine))),
        input=_signature("input", config.inputs, config),
        output=_signature("output", config.outputs, config),
        smallest_grid=config.architecture.smallest_grid,
        **{name: getattr(config, name) for name in _OF_CONFIG},
        predict=f"{request.scope['path']}:predict",
        card=f"{base}/card",
        reference=None
        if parameters is None
        else Reference(sample=f"{base}/sample", solve=f"{base}:solve", parameters=parameters),
    )


def _signature(name: str, channels: tuple[Channel, ...], config: ModelConfig) -> Signature:
    return Signature(
        name=name, shape=[-1, len(channels), *[-1] * config.architecture.n_dim], channels=channels
    )
