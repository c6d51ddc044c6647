"""Random inputs of a model, and what the zoo's own PDE solver makes of them or of a field sent along."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import WithJsonSchema

from models.sampling import PARAMETER_NAMES, complete, parameters_of
from service.codec.fields import INPUT, OUTPUT, Answer, arrays_from_fields, check_shape
from service.codec.negotiate import JSON, NPY, codec_for_answer, codec_for_body
from service.context import context_of, record_of
from service.errors import BadRequest, Forbidden, InvalidField, NotFound
from service.http.inference import admit, unless_disconnected
from service.http.offload import heavy_to_encode, offload
from service.http.openapi import ModelName, problem
from service.http.predict import REQUEST_BODY, RESPONSES, read_fields
from service.settings import env_name
from service.solver.messages import Job

if TYPE_CHECKING:
    from models.config import Channel, ModelConfig
    from service.codec.negotiate import Codec
    from service.pipeline.admission import Room
    from service.pipeline.engine import Fields
    from service.solver.process import SolverProcess

router = APIRouter(tags=["reference"])

SEEDS = 1 << 20
_MAX_STEPS = 1000

_CODES = (400, 401, 404, 406, 408, 413, 415, 422, 429, 503, 504)
_ERRORS: dict[int | str, dict[str, Any]] = {
    **{code: RESPONSES[code] for code in _CODES},
    403: problem("The web page and what belongs to it are switched off on this server."),
    404: problem("No such model, or no sampler and solver for its PDE."),
    429: problem("Too many wait for the solver: come back after Retry-After seconds."),
    504: problem("It took longer than the server allows."),
}
_SUCCESS = {
    "description": "One field [channels, *grid], in the form that Accept asks for: by default .npy.",
    "content": RESPONSES[200]["content"],
}

Seed = Annotated[int, Query(ge=0, lt=SEEDS, description="which sample")]
SeedOrBody = Annotated[
    int | None,
    Query(ge=0, lt=SEEDS, description="solve this sample; without, the field in the body"),
    WithJsonSchema({"type": "integer", "minimum": 0, "exclusiveMaximum": SEEDS}),
]
Grid = Annotated[
    int,
    Query(ge=0, lt=2**31, description="points along each axis; 0: as the model was trained on"),
]
Steps = Annotated[
    int, Query(ge=1, le=_MAX_STEPS, description="of a model with a time step: how many")
]
_KNOBS: list[dict[str, Any]] = [
    {
        "name": name,
        "in": "query",
        "description": "of the sampler, where the model's description lists it, with its range",
        "schema": {"type": "number"},
    }
    for name in sorted(PARAMETER_NAMES)
]


@router.get(
    "/v1/models/{name}/sample",
    summary="Draw a random input",
    openapi_extra={"parameters": _KNOBS},
    responses={200: _SUCCESS, **_ERRORS},
    response_class=Response,
)
async def sample(request: Request, name: ModelName, seed: Seed = 0, grid: Grid = 0) -> Response:
    """A field that the model takes; with no more parameters, from the distribution that it was trained on."""
    solver, config = _begin(request, name)
    job = _drawing(request, config, seed, grid, known={"seed", "grid"}, seconds=_seconds(request))
    writer = _writer(request, NPY)
    room = admit(request, config)
    field = await _run(request, solver, config, job)
    return await _answer(room, {INPUT: field}, config.inputs, config, writer)


@router.post(
    "/v1/models/{name}:solve",
    summary="Solve with the PDE solver",
    openapi_extra={"parameters": _KNOBS, "requestBody": {**REQUEST_BODY, "required": False}},
    responses={200: _SUCCESS, **_ERRORS},
    response_class=Response,
)
async def solve(
    request: Request, name: ModelName, seed: SeedOrBody = None, grid: Grid = 0, steps: Steps = 1
) -> Response:
    """What the model should have answered: for a sample (`seed` and the sampler's parameters), or for a field in the body.

    A sample is solved as the function that it is, on the solver's own grid; a field is first interpolated.
    """
    solver, config = _begin(request, name)
    if steps > 1 and config.time_step is None:
        raise BadRequest(f"model {config.name!r} has no time step, so 'steps' can only be 1")
    seconds = _seconds(request)
    if seed is not None:
        known = {"seed", "grid", "steps"}
        job = _drawing(request, config, seed, grid, known=known, seconds=seconds, steps=steps)
        writer = _writer(request, NPY)
        room = admit(request, config)
        field = await _run(request, solver, config, job)
        return await _answer(room, {OUTPUT: field}, config.outputs, config, writer)
    _refuse_unknown(request, {"seed", "steps"})
    reader = codec_for_body(", ".join(request.headers.getlist("content-type")) or None)
    writer = _writer(request, reader)
    room = admit(request, config)
    fields, form = await read_fields(request, room, reader, config)
    if len(fields) != 1:
        raise InvalidField(f"the solver takes one field a request, the body has {len(fields)}")
    job = Job(_pde(config), seconds, solve=True, steps=steps, shape=fields.shape[1:])
    field = await _run(request, solver, config, job, fields[0])
    outputs = arrays_from_fields(field[None], config, form)
    return await _answer(room, outputs, config.outputs, config, writer)


def _begin(request: Request, name: str) -> tuple[SolverProcess, ModelConfig]:
    context = context_of(request)
    # The request's record names no model: a solver's seconds are not to count as latency of the model.
    record_of(request).protocol = "solver"
    config = context.engine.config(name)
    if context.solver is None:
        raise Forbidden(
            "samples and solutions are switched off, with the web page: start the server with "
            f"{env_name('ui')}=true to allow them"
        )
    if parameters_of(config.pde) is None:
        raise NotFound(
            f"there is no sampler and no solver for model {config.name!r}: only the zoo's problems have them"
        )
    return context.solver, config


def _drawing(
    request: Request,
    config: ModelConfig,
    seed: int,
    grid: int,
    *,
    known: set[str],
    seconds: float,
    steps: int = 0,
) -> Job:
    """The job for a sample, solved if there are `steps`. Raises BadRequest, InvalidField."""
    _refuse_unknown(request, known | PARAMETER_NAMES)
    points = grid or config.grid.training[0]
    shape = [1, config.architecture.in_channels, *[points] * config.architecture.n_dim]
    check_shape(shape, config, max_fields=1, name="grid")
    try:
        given = {
            name: float(value)
            for name, value in request.query_params.items()
            if name in PARAMETER_NAMES
        }
        values = complete(parameters_of(config.pde) or (), given)
    except ValueError as error:
        raise BadRequest(str(error)) from None
    return Job(
        _pde(config), seconds, solve=steps > 0, seed=seed, points=points, values=values, steps=steps
    )


def _refuse_unknown(request: Request, known: set[str] | frozenset[str]) -> None:
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        raise BadRequest(
            f"unknown query parameter {unknown[0][:80]!r}, expected some of {', '.join(sorted(known))}"
        )


def _pde(config: ModelConfig) -> str:
    assert config.pde is not None
    return config.pde.model_dump_json()


def _seconds(request: Request) -> float:
    return context_of(request).settings.solver_seconds


def _writer(request: Request, form_of_body: Codec) -> Codec:
    return codec_for_answer(", ".join(request.headers.getlist("accept")), request=form_of_body)


async def _run(
    request: Request,
    solver: SolverProcess,
    config: ModelConfig,
    job: Job,
    field: Fields | None = None,
) -> Fields:
    started = time.perf_counter()
    try:
        return await unless_disconnected(request, asyncio.ensure_future(solver.run(job, field)))
    finally:
        taken = time.perf_counter() - started
        context_of(request).metrics.solver.labels(config.name, config.version).observe(taken)


async def _answer(
    room: Room,
    outputs: dict[str, Fields],
    channels: tuple[Channel, ...],
    config: ModelConfig,
    writer: Codec,
) -> Response:
    answer = Answer(
        model=config.name,
        version=config.version,
        outputs=outputs,
        units={channel.name: channel.units for channel in channels},
        backend="solver",
        precision="fp32",
    )
    values = sum(array.size for array in outputs.values())
    heavy = heavy_to_encode(values, as_json=writer is JSON)
    body = await offload(heavy, writer.encode, answer)
    room.hold_answer(len(body))
    headers = {"X-Model-Version": config.version}
    return Response(body, media_type=writer.media_type, headers=headers)
