"""Predictions of one turn of a front end's event loop, joined: many requests of a field each then cost the engine what one
request of many fields costs.
"""

from __future__ import annotations

from copy import copy
from typing import TYPE_CHECKING

import msgspec
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
"""Most bytes of joined fields: a client that reads its answer slowly keeps those of all."""


def most_joined(settings: Settings) -> int:
    """Most fields of joined requests: a small part of a batch, because a request is split only if it is larger than a batch,
    and large ones would leave batches unfilled.
    """
    return max(1, settings.max_batch_size // 4)


class Sent(msgspec.Struct, eq=False):
    """A message with one prediction or several."""

    number: int
    """The id of the first."""
    wanted: int
    """Number of its predictions that were not cancelled."""


def alike(turn: Sequence[Asked[Sent]], most: int) -> Iterator[Sequence[Asked[Sent]]]:
    """Divide the predictions of a turn into those that can be joined, up to `most` fields together and MOST_JOINED_BYTES."""
    if len(turn) == 1:
        yield turn
        return
    groups: dict[object, list[Asked[Sent]]] = {}
    sizes: dict[object, int] = {}
    for asked in turn:
        request = asked.request
        fields = request.fields
        size, *shape = fields.shape
        if not _can_be_joined(request):
            yield (asked,)
            continue
        key = (
            request.model, request.version, id(request.config), *shape,
            request.priority, request.vjp, request.client,
        )  # fmt: skip
        room = min(most, MOST_JOINED_BYTES * size // fields.nbytes)
        if sizes.get(key, room) + size > room:
            if key in groups:
                yield groups[key]
            groups[key], sizes[key] = [], 0
        groups[key].append(asked)
        sizes[key] += size
    yield from groups.values()


def _can_be_joined(request: PredictRequest) -> bool:
    # A trace has one request; without fields there is nothing to run; an output buffer is the caller's.
    return (
        0 < request.fields.nbytes <= MOST_BYTES
        and request.output_buffer is None
        and not request.trace
    )


def join(several: Sequence[Asked[Sent]], memory: SlotMemory) -> PredictRequest:
    """One request for all, with its arrays in `memory`. Fields of more than MOST_BYTES must be there already.

    Raises:
        Unavailable, PayloadTooLarge: as `SlotMemory.array`.
    """
    request, *others = [asked.request for asked in several]
    if request.output_buffer is not None:
        return request
    fields = request.fields
    size, channels, *grid = fields.shape
    if others:
        sizes = [size, *[len(other.fields) for other in others]]
        size = sum(sizes)
        request = _joined([request, *others], sizes)
    if request.vjp is None:
        assert request.config is not None
        channels = request.config.architecture.out_channels
    request.output_buffer = memory.array((size, channels, *grid))
    if fields.nbytes <= MOST_BYTES:
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
