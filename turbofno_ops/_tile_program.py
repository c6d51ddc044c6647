"""Tile programs as the CUDA kernels take them: their shape, their operands, where a long one is cut in two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from turbofno_ops import _cuda_tables, _native
from turbofno_ops._activations import parse_activation
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Analyze,
    Held,
    Hold,
    Normalize,
    Project,
    Source,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops.description import PRECISIONS, PointwiseMap, Size

_WORD = 16  # bytes that points are made up of
_PAIR = 16  # channels of two fragments
_HIDDEN = 32  # channels of an MLP at once
_PROJECTED = 16
# Channels times modes up to which a program also analyses its result: beyond, the sums leave room for few warps, and
# an analysis of its own is faster (H200).
_MOST_SUMS = 1024
_KINDS = {
    Source: 0,
    Held: 0,
    Synthesis: 1,
    Affine: 2,
    Normalize: 2,
    AddMap: 3,
    AddGate: 4,
    Activate: 5,
    MLP: 6,
    Store: 7,
    Hold: 7,
    Analyze: 8,
    Project: 9,
}
"""turbofno_step_kind in csrc/api/turbofno.h"""


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """A field [batch, *grid, channels rounded up to whole 16 bytes]."""

    data: torch.Tensor
    channels: int

    @classmethod
    def empty(
        cls, batch: int, grid: Size, channels: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        pitch = round_up(channels, _WORD // dtype.itemsize)
        return cls(torch.empty(batch, *grid, pitch, dtype=dtype, device=device), channels)


class Shape(NamedTuple):
    """The shape that a program runs on: sizes that its steps do not tell."""

    batch: int
    grid: Size
    channels: int  # of y after its first step
    x_channels: int
    modes: int  # of the mixed spectra
    next_modes: int
    precision: str
    multiprocessors: int
    shared_bytes: int


def kernel_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Those that a kernel takes, in its favourite order.

    A `Store` right after `Source` leaves the buffer where it is. An offset goes before the maps and gates that stand
    right before it: they commute, and one program serves both orders (csrc/kernels/tile.h).
    """
    taken: list[Step] = []
    for step in steps:
        if isinstance(step, Store) and taken and isinstance(taken[-1], Source):
            continue
        at = len(taken)
        if isinstance(step, Affine) and step.scale is None:
            while at > 1 and isinstance(taken[at - 1], AddMap | AddGate):
                at -= 1
        taken.insert(at, step)
    return tuple(taken)


def widths(steps: tuple[Step, ...], channels: int) -> list[int]:
    """Channels of y after each step; `channels` after the first, if that is no map."""
    found = []
    for step in steps:
        if isinstance(step, AddMap):
            channels = step.weight.shape[0]
        elif isinstance(step, MLP):
            channels = step.second.weight.shape[0]
        found.append(channels)
    return found


def encode(steps: tuple[Step, ...], shape: Shape) -> _native.Tile:
    """The program as the kernels' structure, without pointers. The steps are `kernel_steps`."""
    after = widths(steps, shape.channels)
    width = round_up(max(after), _PAIR)
    *outer, points = shape.grid
    tile = _native.Tile(
        batch=shape.batch,
        outer=math.prod(outer),
        points=points,
        width=width,
        channels=after[0] if isinstance(steps[0], Synthesis) else after[-1],
        modes=shape.modes if isinstance(steps[0], Synthesis) else 0,
        next_modes=shape.next_modes if any(isinstance(step, Analyze) for step in steps) else 0,
        precision=PRECISIONS.index(shape.precision),
        multiprocessors=shape.multiprocessors,
        shared_bytes=shape.shared_bytes,
        steps=min(len(steps), _native.MOST_STEPS + 1),
    )
    for i, (step, channels) in enumerate(zip(steps[: _native.MOST_STEPS], after, strict=False)):
        to = tile.step[i]
        to.kind = _KINDS[type(step)]
        to.channels = channels
        match step:
            case AddMap(weight):
                to.channels, to.terms = shape.x_channels, weight.shape[1]
            case AddGate():
                to.channels = shape.x_channels
            case Activate(activation):
                _, to.parameter, to.activation = parse_activation(activation)
            case Normalize():
                to.per_sample = 1
            case MLP(first, activation, _):
                _, to.parameter, to.activation = parse_activation(activation)
                to.terms = first.weight.shape[1]
                to.hidden = round_up(first.weight.shape[0], _HIDDEN)
            case Project(maps, activation):
                to.channels = maps[-1].weight.shape[0]
                to.terms = maps[0].weight.shape[1]
                to.channel_first = 1
                if len(maps) > 1:
                    _, to.parameter, to.activation = parse_activation(activation)
                    to.hidden = round_up(maps[0].weight.shape[0], _HIDDEN)
    return tile


def round_up(count: int, to: int) -> int:
    """The next multiple."""
    return -(-count // to) * to


class Prepared(NamedTuple):
    """A step's operands and vectors on the device, in the kernels' order."""

    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    second_shift: torch.Tensor | None = None


_prepared: WeakKeyDictionary[Step, dict[tuple[str, int], Prepared]] = WeakKeyDictionary()


def prepared(step: Step, width: int, precision: str) -> Prepared:
    """The operands of a step of a tile of `width` channels needs; made once for as long as the step lives."""
    made = _prepared.setdefault(step, {})
    key = (precision, width)
    if key not in made:
        with torch.inference_mode(False), torch.no_grad():
            made[key] = _prepare(step, width, precision)
    return made[key]


def _prepare(step: Step, width: int, precision: str) -> Prepared:
    match step:
        case AddMap(weight):
            return Prepared(first=_operand(weight, width, 1, precision))
        case AddGate(weight):
            return Prepared(scale=_vector(weight, width))
        case Affine(scale, shift):
            return Prepared(scale=_vector(scale, width), shift=_vector(shift, width))
        case MLP(first, _, second):
            return _prepare_maps((first, second), width, precision)
        case Project(maps, _):
            return _prepare_maps(maps, _PROJECTED, precision)
    return Prepared()


def _prepare_maps(maps: tuple[PointwiseMap, ...], out: int, precision: str) -> Prepared:
    *before, last = maps
    hidden = _HIDDEN if before else 1
    of_first = Prepared()
    for first in before:
        of_first = Prepared(
            first=_operand(first.weight, _HIDDEN, 1, precision),
            shift=_vector(first.bias, round_up(first.weight.shape[0], _HIDDEN)),
        )
    return of_first._replace(
        second=_operand(last.weight, out, hidden, precision), second_shift=_vector(last.bias, out)
    )


def _operand(weight: torch.Tensor, rows: int, columns: int, precision: str) -> torch.Tensor:
    """A B operand of the matrix with zeros up to multiples of so many rows and columns."""
    out, terms = weight.shape
    return _cuda_tables.operand(F.pad(weight, (0, -terms % columns, 0, -out % rows)), precision)


def _vector(values: torch.Tensor | None, width: int) -> torch.Tensor | None:
    if values is None:
        return None
    return F.pad(values.detach().float(), (0, -len(values) % width)).contiguous()


def refusal(steps: tuple[Step, ...], shape: Shape) -> str | None:
    """Why a program does not run as one kernel, in words, or None if it does."""
    return _native.unsupported("tile", encode(steps, shape))


class Piece(NamedTuple):
    """A part of a program that is one kernel; what its first step starts from; None as refusal if it runs."""

    steps: tuple[Step, ...]
    refusal: str | None


def pieces(steps: tuple[Step, ...], shape: Shape) -> Iterator[Piece]:
    """The program as few kernels: cut, where it has to be, before its last map or analysis, y passing through memory."""
    rest, channels = kernel_steps(steps), shape.channels
    while rest:
        cut = _longest(rest, shape._replace(channels=channels))
        piece = rest[:cut]
        if cut == len(rest):
            yield Piece(piece, refusal(piece, shape._replace(channels=channels)))
            return
        # what it stores last is the next one's beginning too
        held = () if isinstance(piece[-1], Store) else (Hold(moments=False),)
        yield Piece((*piece, *held), None)
        channels = widths(piece, channels)[-1]
        rest = (Held(), *rest[cut:])


def _longest(steps: tuple[Step, ...], shape: Shape) -> int:
    """The number of steps that the first kernel takes: all, or as many as fit and put the value by in front of a costly one."""
    after = widths(steps, shape.channels)
    many = after[-1] * shape.next_modes > _MOST_SUMS
    # mixed spectra and those of a result have the same channels within a kernel
    other = isinstance(steps[0], Synthesis) and after[-1] != after[0]
    if (many or other) and isinstance(steps[-1], Analyze) and len(steps) > 2:
        return min(len(steps) - 1, _longest(steps[:-1], shape))
    if refusal(steps, shape) is None:
        return len(steps)
    for cut in reversed(range(1, len(steps))):
        costly = isinstance(steps[cut], MLP | Project | Analyze | AddMap)
        started = not isinstance(steps[cut - 1], Source | Held)
        if costly and started and refusal((*steps[:cut], Hold(moments=False)), shape) is None:
            return cut
    return len(steps)
