"""Random inputs of a model, and solutions by the zoo's PDE solver for them or for a field in the body."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import msgspec

from turbofno.models.core.config import Channel
from turbofno.service.codec.fields import (
    INPUT,
    OUTPUT,
    ResponseData,
    arrays_from_fields,
    check_shape,
)
from turbofno.service.codec.negotiate import NPY, Codec, codec_for_answer
from turbofno.service.demo.messages import Job
from turbofno.service.demo.sample_parameters import PARAMETER_NAMES, complete, sampler_of
from turbofno.service.demo.solver_process import SolverProcess
from turbofno.service.engine.interface import Fields
from turbofno.service.errors import BadRequest, Forbidden, InvalidField, NotFound
from turbofno.service.http.call import Call, Operation, Reply
from turbofno.service.http.openapi import ANSWER, REQUEST_BODY, errors
from turbofno.service.http.parameters import Parameter, integer, read_query
from turbofno.service.http.predict import codecs, fields_reply, read_fields
from turbofno.service.http.route import route
from turbofno.service.settings import env_name

SEEDS = 1 << 20
_MAX_STEPS = 1000
_MAX_SECONDS = 1e8
"""Timers take no more, and messages no infinity, which the setting may be."""

_ERRORS = {
    **errors(400, 401, 406, 408, 413, 415, 422, 503),
    403: "The web page and what belongs to it are switched off on this server.",
    404: "No such model, or no sampler and solver for its PDE.",
    429: "Too many wait for the solver: come back after Retry-After seconds.",
    504: "The solver exceeded its time limit.",
}
_SUCCESS = {
    "description": "One field [channels, *grid], in the form that Accept asks for: by default .npy.",
    "content": ANSWER["content"],
}
_SEED = integer("seed", "which sample", most=SEEDS - 1, default=0)
_SEED_OR_BODY = integer("seed", "solve this sample; without, the field in the body", most=SEEDS - 1)
_GRID = integer("grid", "points along each axis; 0: as the model was trained on", default=0)
_STEPS = integer(
    "steps", "of a model with a time step: how many", least=1, most=_MAX_STEPS, default=1
)
_SAMPLER = tuple(
    Parameter(
        name,
        "a parameter of the sampler, which the model's description lists with its range",
        {"type": "number"},
        "a number",
        float,
    )
    for name in sorted(PARAMETER_NAMES)
)
_OF_SOLVE = (_SEED_OR_BODY, _GRID, _STEPS)


class Parameters(NamedTuple):
    job: Job
    reader: Codec | None
    """Of the field to solve in the body; None: the job draws a sample."""
    writer: Codec


def _parse_sample(call: Call, _: Mapping[str, Any]) -> Parameters:
    _solver(call)
    return _of_sample(call, (_SEED, _GRID))


def _parse_solve(call: Call, given: Mapping[str, Any]) -> Parameters:
    _solver(call)
    config = call.served.config
    steps = given["steps"]
    if steps > 1 and config.time_step is None:
        raise BadRequest(f"model {config.name!r} has no time step, so 'steps' can only be 1")
    if given["seed"] is not None:
        return _of_sample(call, _OF_SOLVE, steps=steps)
    read_query(call, _OF_SOLVE, hint=" for a field in the body")
    if given["grid"]:
        raise BadRequest(
            "the parameter 'grid' is of a sample, and a field in the body has a grid: leave it out"
        )
    if not _has_body(call):
        raise BadRequest(
            "the request has neither the seed of a sample nor a body: give the parameter 'seed' to solve a sample, or send the "
            "field to solve"
        )
    return Parameters(_job(call, solve=True, steps=steps), *codecs(call))


def _has_body(call: Call) -> bool:
    # A size is not declared of chunked and compressed bodies.
    return bool(
        call.declared_bytes or call.headers.keys() & {b"transfer-encoding", b"content-encoding"}
    )


OPERATIONS: list[Operation] = []
_route = partial(
    route, OPERATIONS, tag="solver", errors=_ERRORS, responses={200: _SUCCESS},
    protocol="solver", queued=False, of_model=False,
    # The parsers refuse unknown parameters: which are known depends on the model.
    hint=None,
)  # fmt: skip


@_route(
    "GET", "/v1/models/{name}/sample",
    summaries=("Draw a random input",),
    parameters=(_SEED, _GRID, *_SAMPLER),
    parse=_parse_sample,
)  # fmt: skip
async def sample(call: Call) -> Reply:
    """A field that the model takes; with no more parameters, from the distribution that it was trained on."""
    call.skip_body()
    field = await _solved(call, call.parameters.job)
    return await _answer(call, {INPUT: field}, call.served.config.inputs)


@_route(
    "POST", "/v1/models/{name}:solve",
    summaries=("Solve with the PDE solver",),
    parameters=(*_OF_SOLVE, *_SAMPLER),
    body={**REQUEST_BODY, "required": False},
    parse=_parse_solve,
)  # fmt: skip
async def solve(call: Call) -> Reply:
    """The solution that the model approximates: for a sample (`seed` and the sampler's parameters), or for a field in the body.

    A sample is solved as the function that it is, on the solver's own grid; a field is first interpolated.
    """
    parameters, config = call.parameters, call.served.config
    if parameters.reader is None:
        if _has_body(call):
            raise BadRequest(
                "the request has both the seed of a sample and a body: leave out the parameter 'seed' to solve the field "
                "in the body, or the body to solve the sample"
            )
        call.skip_body()
        return await _answer(call, {OUTPUT: await _solved(call, parameters.job)}, config.outputs)
    fields, form = await read_fields(call, parameters.reader)
    if len(fields) != 1:
        raise InvalidField(f"the solver takes one field a request, the body has {len(fields)}")
    job = msgspec.structs.replace(parameters.job, shape=fields.shape[1:])
    field = await _solved(call, job, fields[0])
    return await _answer(call, arrays_from_fields(field[None], config, form), config.outputs)


def _solver(call: Call) -> SolverProcess:
    solver, config = call.context.solver, call.served.config
    if solver is None:
        raise Forbidden(
            "samples and solutions are switched off, with the web page: start the server with "
            f"{env_name('ui')}=true to allow them"
        )
    if sampler_of(config) is None:
        raise NotFound(
            f"there is no sampler and no solver for model {config.name!r}: only the zoo's problems have them"
        )
    return solver


def _of_sample(call: Call, known: tuple[Parameter, ...], *, steps: int = 0) -> Parameters:
    """The parameters to draw a sample, and to solve it if `steps` is above 0. Raises BadRequest, InvalidField, NotAcceptable.

    The query may have the `known` parameters and those of the model's sampler.
    """
    config = call.served.config
    sampler = sampler_of(config) or ()
    names = {one.name for one in sampler}
    given = read_query(call, (*known, *(one for one in _SAMPLER if one.name in names)), hint="")
    points = given["grid"] or config.grid.training[0]
    shape = [1, config.architecture.in_channels, *[points] * config.architecture.n_dim]
    check_shape(shape, config, max_fields=1, name="grid")
    try:
        values = complete(sampler, {name: given[name] for name in names if given[name] is not None})
    except ValueError as error:
        raise BadRequest(str(error)) from None
    job = _job(call, solve=steps > 0, seed=given["seed"], points=points, values=values, steps=steps)
    return Parameters(job, None, codec_for_answer(call.header(b"accept"), request=NPY))


def _job(call: Call, **options: Any) -> Job:
    pde = call.served.config.pde
    assert pde is not None
    seconds = min(call.context.settings.solver_seconds, _MAX_SECONDS)
    return Job(pde.model_dump_json(), seconds, **options)


async def _solved(call: Call, job: Job, field: Fields | None = None) -> Fields:
    started = time.perf_counter()
    served = call.served
    try:
        return await _solver(call).run(job, field)
    finally:
        taken = time.perf_counter() - started
        call.context.metrics.solver.labels(served.name, served.version).observe(taken)


async def _answer(call: Call, outputs: dict[str, Fields], channels: tuple[Channel, ...]) -> Reply:
    units = {channel.name: channel.units for channel in channels}
    served = call.served
    answer = ResponseData(served.name, served.version, outputs, units, "solver", "fp32")
    return await fields_reply(call, answer)
