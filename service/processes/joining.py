"""Predictions of one turn of a front end's event loop, joined: many requests of a field each then cost the engine what one
request of many fields costs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace

from turbofno.service.codec.fields import answered_grid
from turbofno.service.engine.interface import Fields, Joined, PredictRequest, PredictResult
from turbofno.service.engine.turn import Asked
from turbofno.service.processes.memory import SlotMemory

MOST_BYTES = 128 * 1024
"""Larger fields are not joined, since their copy here would take long, and their request costs little beside their work."""

MOST_JOINED_BYTES = 1024 * 1024
"""Most bytes of joined fields, and of their outputs: a client that reads its answer slowly keeps those of all."""
DEADLINES_APART = 0.25
"""Seconds within which deadlines of joined requests lie: the first to pass has the others run apart."""


@dataclass(slots=True)
class _Group:
    """Predictions that can be joined."""

    members: list[Asked[int]]
    room: int
    """Number of fields that it can still take."""


def alike(turn: Sequence[Asked[int]], most: int) -> Iterator[Sequence[Asked[int]]]:
    """Divide the predictions of a turn into those that can be joined, up to `most` fields together and MOST_JOINED_BYTES."""
    if len(turn) == 1:
        yield turn
        return
    groups: dict[object, _Group] = {}
    for asked in turn:
        request = asked.request
        fields = request.fields
        # A trace has one request; without fields there is nothing to run.
        if not 0 < fields.nbytes <= MOST_BYTES or request.trace:
            yield (asked,)
            continue
        shape = fields.shape
        size = shape[0]
        key = (
            request.model, request.version, id(request.config), shape[1:], request.priority, request.vjp, request.client,
            request.deadline and request.deadline // DEADLINES_APART,
        )  # fmt: skip
        group = groups.get(key)
        if group is None or size > group.room:
            if group is not None:
                yield group.members
            largest = max(fields.nbytes, fields.itemsize * size * math.prod(_output_shape(request)))
            group = groups[key] = _Group([], min(most, MOST_JOINED_BYTES * size // largest))
        group.members.append(asked)
        group.room -= size
    for group in groups.values():
        yield group.members


def _output_shape(request: PredictRequest) -> tuple[int, ...]:
    """The shape of the output of one field, whose grid is another one if the model's layers change the resolution."""
    _, channels, *grid = request.fields.shape
    if request.vjp is not None:
        return channels, *grid
    assert request.config is not None
    return request.config.architecture.out_channels, *answered_grid(tuple(grid), request.config)


def join(several: Sequence[Asked[int]], memory: SlotMemory) -> PredictRequest:
    """One request for all, with its arrays in `memory`: fields are copied there; those too large to be joined are there already.

    Raises:
        Unavailable, PayloadTooLarge: as `SlotMemory.array`.
    """
    requests = [asked.request for asked in several]
    parts = [request.fields for request in requests]
    request = requests[0] if len(requests) == 1 else _joined(requests)
    size = sum(map(len, parts))
    request.output_buffer = memory.array((size, *_output_shape(request)))
    if parts[0].nbytes <= MOST_BYTES:
        request.fields = memory.array((size, *parts[0].shape[1:]))
        np.concatenate(parts, out=request.fields)
    return request


def _joined(requests: Sequence[PredictRequest]) -> PredictRequest:
    request = copy(requests[0])
    request.joined = tuple(
        [Joined(one.request_id, len(one.fields), one.deadline) for one in requests]
    )
    deadlines = [one.deadline for one in requests if one.deadline is not None]
    request.deadline = min(deadlines, default=None)
    return request


def part_of(result: PredictResult, part: slice, outputs: Fields) -> PredictResult:
    """The result of one of several joined requests: `part` are its fields among `outputs`."""
    trust = {name: values[part] for name, values in result.trust.items()}
    return replace(result, fields=outputs[part], trust=trust)
