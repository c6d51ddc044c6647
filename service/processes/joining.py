"""Predictions of one turn of a front end's event loop, joined: many requests of a field each then cost the engine what one
request of many fields costs.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import numpy as np

from turbofno.service.engine.interface import Joined

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from turbofno.service.engine.interface import PredictRequest, PredictResult
    from turbofno.service.engine.turn import Asked
    from turbofno.service.processes.memory import SlotMemory
    from turbofno.service.settings import Settings

MOST_BYTES = 128 * 1024
"""Larger fields are not joined, since their copy here would take long, and their request costs little beside their work."""

MOST_JOINED_BYTES = 1024 * 1024
"""Most bytes of joined fields, and of their outputs: a client that reads its answer slowly keeps those of all."""
DEADLINES_APART = 0.25
"""Seconds within which deadlines of joined requests lie: the first to pass has the others run apart."""


def most_joined(settings: Settings) -> int:
    """Most fields of joined requests: a small part of a batch, since large requests, which stay whole, leave batches unfilled."""
    return max(1, settings.max_batch_size // 4)


def alike(turn: Sequence[Asked[int]], most: int) -> Iterator[Sequence[Asked[int]]]:
    """Divide the predictions of a turn into those that can be joined, up to `most` fields together and MOST_JOINED_BYTES."""
    if len(turn) == 1:
        yield turn
        return
    groups: dict[object, list[Asked[int]]] = {}
    sizes: dict[object, int] = {}
    for asked in turn:
        request = asked.request
        fields = request.fields
        size, *shape = fields.shape
        if not _can_be_joined(request):
            yield (asked,)
            continue
        key = (
            request.model, request.version, id(request.config), *shape, request.priority, request.vjp, request.client,
            request.deadline and request.deadline // DEADLINES_APART,
        )  # fmt: skip
        outputs = fields.nbytes // shape[0] * _output_channels(request)
        room = min(most, MOST_JOINED_BYTES * size // max(fields.nbytes, outputs))
        if sizes.get(key, room) + size > room:
            if key in groups:
                yield groups[key]
            groups[key], sizes[key] = [], 0
        groups[key].append(asked)
        sizes[key] += size
    yield from groups.values()


def _can_be_joined(request: PredictRequest) -> bool:
    # A trace has one request; without fields there is nothing to run.
    return 0 < request.fields.nbytes <= MOST_BYTES and not request.trace


def _output_channels(request: PredictRequest) -> int:
    if request.vjp is not None:
        return request.fields.shape[1]
    assert request.config is not None
    return request.config.architecture.out_channels


def join(several: Sequence[Asked[int]], memory: SlotMemory) -> PredictRequest:
    """One request for all, with its arrays in `memory`: fields are copied there, unless there is one request that has them there.

    Raises:
        Unavailable, PayloadTooLarge: as `SlotMemory.array`.
    """
    request, *others = [asked.request for asked in several]
    fields = request.fields
    size, _, *grid = fields.shape
    if others:
        sizes = [size, *[len(other.fields) for other in others]]
        size = sum(sizes)
        request = _joined([request, *others], sizes)
    request.output_buffer = memory.array((size, _output_channels(request), *grid))
    if others or not memory.contains(fields):
        request.fields = memory.array((size, *fields.shape[1:]))
        np.concatenate([fields, *[other.fields for other in others]], out=request.fields)
    return request


def _joined(requests: Sequence[PredictRequest], sizes: Sequence[int]) -> PredictRequest:
    request = copy(requests[0])
    deadlines = [one.deadline for one in requests]
    request.deadline = min([one for one in deadlines if one is not None], default=None)
    request.joined = tuple(
        [
            Joined(one.request_id, size, deadline)
            for one, size, deadline in zip(requests, sizes, deadlines, strict=True)
        ]
    )
    return request


def part_of(result: PredictResult, part: slice) -> PredictResult:
    """The result of one of several joined requests, without its fields: `part` are those among all."""
    own = copy(result)
    own.trust = {name: values[part] for name, values in result.trust.items()}
    return own
