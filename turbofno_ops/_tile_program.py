"""Tile programs for the CUDA kernels: encoding, plans, packed operands, and splitting of long programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple, Self
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F

from turbofno_ops import _native
from turbofno_ops._activations import parse_activation
from turbofno_ops._channels import bias_of
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Analyze,
    Normalize,
    Project,
    Restore,
    Save,
    Source,
    Step,
    Store,
    Synthesis,
    Window,
)
from turbofno_ops._wide_maps import blocks_of, steps_with_blocks
from turbofno_ops.description import PRECISIONS, PointwiseMap, Size

_WORD = 16  # bytes: size granularity of points, alignment of tensors
_FRAGMENT_PAIR = 16  # channels of two fragments
TILE_POINTS = 16
_HIDDEN = 32  # hidden channels of an MLP are a multiple of this
_PROJECTED = 16
# Most channels times modes for which a program also analyses its result. Beyond, the sums leave shared memory for few
# warps, and a separate analysis kernel is faster (H200).
_MAX_FUSED_SUMS = 1024
# channels of a field that a kernel stores split (stores_split in csrc/plan/tile_plan.cpp)
_MOST_SPLIT = 64
_WORTH_A_CUT = 0.8  # of the cost of one kernel; costs do not count that y passes through memory
_KINDS = {
    Source: 0,
    Restore: 0,
    Synthesis: 1,
    Affine: 2,
    Normalize: 2,
    AddMap: 3,
    AddGate: 4,
    Activate: 5,
    MLP: 6,
    Store: 7,
    Save: 7,
    Analyze: 8,
    Project: 9,
}
"""turbofno_step_kind in csrc/api/turbofno.h"""


@dataclass(frozen=True, slots=True)
class ChannelsLast:
    """A field [batch, *grid, channels rounded up to whole 16 bytes].

    With `scales` [batch, *grid but the last axis, tiles of 16 points] it is split: a value is the sum of two float16 times
    the scale of its tile. Four channels of a point are their four high parts, then their four low parts.
    """

    data: torch.Tensor
    channels: int
    scales: torch.Tensor | None = None

    @classmethod
    def empty(
        cls, batch: int, grid: Size, channels: int, dtype: torch.dtype, device: torch.device
    ) -> Self:
        pitch = round_up(channels, _WORD // dtype.itemsize)
        return cls(torch.empty(batch, *grid, pitch, dtype=dtype, device=device), channels)

    @classmethod
    def empty_split(cls, batch: int, grid: Size, channels: int, device: torch.device) -> Self:
        field = cls.empty(batch, grid, channels, torch.float32, device)
        tiles = -(-grid[-1] // TILE_POINTS)
        return replace(field, scales=torch.empty(batch, *grid[:-1], tiles, device=device))

    def values(self) -> torch.Tensor:
        """Return the values [batch, *grid, channels]."""
        if self.scales is None:
            return self.data[..., : self.channels]
        parts = self.data.view(torch.float16).unflatten(-1, (-1, 2, _WORD // 4))
        high, low = parts.unbind(-2)
        values = high.float().add_(low).flatten(-2)
        scales = self.scales.repeat_interleave(TILE_POINTS, -1)
        values *= scales[..., : self.data.shape[-2], None]
        return values[..., : self.channels]

    def unsplit(self) -> torch.Tensor:
        """Return `data` for kernels that do not read split fields. Raises ValueError if it is split."""
        if self.scales is not None:
            raise ValueError("this kernel reads values, not their float16 parts")
        return self.data


class Shape(NamedTuple):
    """Sizes that a program runs on and that its steps do not determine.

    `grid` may be that of a `window` of a larger grid, that of the fields and spectra that are read.
    """

    batch: int
    grid: Size
    channels: int  # of y after its first step
    x_channels: int
    modes: int  # of the mixed spectra
    next_modes: int
    precision: str
    multiprocessors: int
    shared_bytes: int
    warpgroups: bool
    x_channel_first: bool = False
    window: Window = ()

    @property
    def read_grid(self) -> Size:
        """The grid of the fields and spectra that are read."""
        return tuple(rows.points for rows in self.window) or self.grid

    def part(self, window: Window) -> Shape | None:
        """Return the shape of a window of the grid, or None if it is none that the kernels compute (turbofno_window)."""
        if window[-1].first or any(rows.count < rows.points for rows in window[1:-2]):
            return None
        return self._replace(grid=tuple(rows.count for rows in window), window=window)


def kernel_steps(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps in the canonical order of the kernels.

    A `Store` directly after `Source` is removed: the buffer itself is x. An offset is moved before the maps and gates
    that precede it, with which it commutes, so that one compiled program serves both orders (csrc/kernels/tile.h).
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
    """Return the channels of y after each step; `channels` applies until the first map."""
    found = []
    for step in steps:
        if isinstance(step, AddMap):
            channels = step.weight.shape[0]
        elif isinstance(step, MLP):
            channels = step.second.weight.shape[0]
        found.append(channels)
    return found


def encode(steps: tuple[Step, ...], shape: Shape) -> _native.Tile:
    """Encode `kernel_steps` as the kernels' structure, without pointers."""
    after = widths(steps, shape.channels)
    width = round_up(max(after), _FRAGMENT_PAIR)
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
        warpgroups=shape.warpgroups,
        steps=min(len(steps), _native.MAX_STEPS + 1),
        window=_window(shape),
    )
    for i, (step, channels) in enumerate(zip(steps[: _native.MAX_STEPS], after, strict=False)):
        to = tile.step[i]
        to.kind = _KINDS[type(step)]
        to.channels = channels
        match step:
            case Source():
                to.channel_first = 1
            case AddMap(weight):
                to.channels, to.terms = shape.x_channels, weight.shape[1]
                to.channel_first = shape.x_channel_first
            case AddGate():
                to.channels = shape.x_channels
                to.channel_first = shape.x_channel_first
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


def _window(shape: Shape) -> _native.Window:
    """Return the grid that is read, and where in it the rows of `shape.grid` are."""
    *outer, points = shape.read_grid
    rows = pitch = math.prod(outer)
    first = 0
    if shape.window and outer:
        rows, pitch = shape.grid[-2], outer[-1]
        for axis in shape.window[:-1]:
            first = first * axis.points + axis.first
    return _native.Window(
        outer=math.prod(outer), points=points, rows=rows, pitch=pitch, first=first
    )


def round_up(count: int, to: int) -> int:
    """Round up to a multiple of `to`."""
    return -(-count // to) * to


def readable(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor contiguous, aligned and with resolved conjugation, as kernels read it."""
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor.clone() if tensor.data_ptr() % _WORD else tensor


Weighted = AddMap | AddGate | Affine | MLP | Project
"""Steps with weights."""


class StepOperands(NamedTuple):
    """Packed operands and vectors of a step on the device, named as in turbofno_step."""

    first: torch.Tensor | None = None
    second: torch.Tensor | None = None
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    second_shift: torch.Tensor | None = None


_kept: WeakKeyDictionary[Weighted, dict[tuple[str, int, bool], StepOperands]] = WeakKeyDictionary()


def cached_operands(step: Weighted, width: int, precision: str, *, maps_few: bool) -> StepOperands:
    """Return the operands of a step, as `operands_of` packs them, cached for the lifetime of the step."""
    made = _kept.setdefault(step, {})
    key = (precision, width, maps_few)
    if key not in made:
        with torch.inference_mode(False), torch.no_grad():
            made[key] = operands_of(step, width, precision, maps_few=maps_few)
    return made[key]


def cached_operand_bytes(steps: Iterable[Step]) -> int:
    """Return the bytes of all cached operands of these steps."""
    return sum(
        tensor.nbytes
        for step in steps_with_blocks(tuple(steps))
        if isinstance(step, Weighted)
        for operands in _kept.get(step, {}).values()
        for tensor in operands
        if tensor is not None
    )


def operands_of(step: Weighted, width: int, precision: str, *, maps_few: bool) -> StepOperands:
    """Pack the current weights of a step for a tile of `width` channels, on the current stream.

    `maps_few` is that of the plan (turbofno_tile_plan): the weights of a map are not packed.
    """
    match step:
        case AddMap(weight) if maps_few:
            return StepOperands(first=_rows(weight.T, width))
        case AddMap(weight):
            return StepOperands(first=_packed(weight, width, precision))
        case AddGate(weight):
            return StepOperands(scale=_vector(weight, width))
        case Affine(scale, shift):
            return StepOperands(scale=_vector(scale, width), shift=_vector(shift, width))
        case MLP(first, _, second):
            return _operands_of_maps((first, second), width, precision)
        case Project(maps, _):
            dots = len(maps) > 1 and len(maps[-1].weight) <= _native.DOT_OUTPUTS
            return _operands_of_maps(maps, _PROJECTED, precision, dots=dots)


def _operands_of_maps(
    maps: tuple[PointwiseMap, ...], out: int, precision: str, *, dots: bool = False
) -> StepOperands:
    """Return the operands of one or two maps; with `dots` the weight of the second is not packed."""
    *before, last = maps
    of_first = StepOperands()
    for first in before:
        of_first = StepOperands(
            first=_packed(first.weight, _HIDDEN, precision),
            shift=_vector(bias_of(first), round_up(first.weight.shape[0], _HIDDEN)),
        )
    second = _rows(last.weight, _HIDDEN) if dots else _packed(last.weight, out, precision)
    return of_first._replace(second=second, second_shift=_vector(bias_of(last), out))


def _packed(weight: torch.Tensor, multiple: int, precision: str) -> torch.Tensor:
    """Pack a matrix [channels out, channels in] as a B operand, columns padded to a multiple. Returns uint8."""
    columns, terms = weight.shape
    matrix = readable(weight.detach().float())
    shape = _native.Operand(
        columns=columns,
        terms=terms,
        padded_columns=round_up(columns, multiple),
        precision=PRECISIONS.index(precision),
        matrix=matrix.data_ptr(),
    )
    packed = torch.empty(
        _native.bytes_of("operand_bytes", shape), dtype=torch.uint8, device=weight.device
    )
    shape.operand = packed.data_ptr()
    _native.launch("pack_operand", shape)
    return packed


def _vector(values: torch.Tensor | None, width: int) -> torch.Tensor | None:
    return None if values is None else _rows(values, width)


def _rows(values: torch.Tensor, width: int) -> torch.Tensor:
    """Return float32 values, their last axis padded with zeros to a multiple of `width`."""
    values = values.detach().float()
    missing = -values.shape[-1] % width
    return readable(F.pad(values, (0, missing)) if missing else values)


class Planned(NamedTuple):
    """A program planned as one kernel: its structure without pointers, its block layout.

    `refusal` is the reason why the kernels do not support it, or None if they do.
    """

    tile: _native.Tile
    plan: _native.TilePlan
    refusal: str | None


def plan_kernel(steps: tuple[Step, ...], shape: Shape) -> Planned:
    """Plan `kernel_steps` as one kernel."""
    tile, plan = encode(steps, shape), _native.TilePlan()
    return Planned(tile, plan, _native.refusal("tile_prepare", tile, plan))


class Piece(NamedTuple):
    """A part of a program that is one kernel, the sizes that it runs on, and its refusal or None.

    Fields between pieces have names. "x" is that of the program, "saved" what the next piece restores. A channel MLP or
    projection too wide for a kernel is cut into blocks of "hidden" channels, whose parts of the result add up to a "sum".

    Attributes:
        x: The field that maps and gates read.
        y: The field that `Restore` reads.
        to: The field that `Save` writes, or "out" if `Store` writes the network's result.
    """

    steps: tuple[Step, ...]
    shape: Shape
    refusal: str | None
    x: str = "x"
    y: str = "saved"
    to: str = "saved"


def pieces(steps: tuple[Step, ...], shape: Shape) -> Iterator[Piece]:
    """Split a program into as few kernels as possible, before a map or analysis. y is saved in memory in between."""
    rest = kernel_steps(steps)
    while rest:
        cut = _first_piece_length(rest, shape)
        piece = _piece(rest[:cut], shape, ends=cut == len(rest))
        if piece.refusal is not None and _is_wide(rest):
            yield from _pieces_of_wide(rest, shape)
            return
        yield piece
        shape = shape._replace(channels=widths(piece.steps, shape.channels)[-1])
        rest = (Restore(), *rest[cut:]) if cut < len(rest) else ()


def _piece(steps: tuple[Step, ...], shape: Shape, *, ends: bool, **fields: str) -> Piece:
    """Return steps as a piece. It saves y if it does not end the program."""
    if not ends:
        steps = _saving(steps)
    return Piece(steps, shape, plan_kernel(steps, shape).refusal, **fields)


def _saving(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return steps that also save y, unless they end with storing it."""
    return steps if isinstance(steps[-1], Store) else (*steps, Save(moments=False))


def _is_wide(steps: tuple[Step, ...]) -> bool:
    """True if the steps begin with a channel MLP or projection of a stored field."""
    return (
        len(steps) > 1
        and isinstance(steps[0], Source | Restore)
        and isinstance(steps[1], MLP | Project)
    )


def _pieces_of_wide(steps: tuple[Step, ...], shape: Shape) -> Iterator[Piece]:
    """Split a program that begins with a channel MLP or projection of a stored field: blocks of it, then what follows.

    A gate directly behind the MLP comes first, where the kernels can load x: y begins as the gate times x.
    """
    first, wide, *after = steps
    assert isinstance(wide, MLP | Project)
    of_input = isinstance(first, Source)
    field = "x" if of_input else "saved"
    of_field = shape._replace(x_channels=shape.channels, x_channel_first=of_input)
    blocks = blocks_of(wide)
    begin: tuple[Step, ...] = ()
    loads_x = not shape.x_channel_first and shape.x_channels > _MOST_SPLIT
    match after:
        case [AddGate(gate), *rest_of_after] if loads_x:
            begin, after = (Restore(), Affine(gate, None)), rest_of_after
    for i, block in enumerate(blocks):
        x, of_x = field, of_field
        if block.hidden:
            yield _piece(block.hidden, of_field, ends=False, x=field, to="hidden")
            hidden = widths(block.hidden, 0)[-1]
            x, of_x = "hidden", shape._replace(x_channels=hidden, x_channel_first=False)
        out: tuple[Step, ...] = (Restore(), *block.out) if i else (*begin, *block.out)
        y = "x" if begin and i == 0 else "sum"
        of_x = of_x._replace(channels=widths(block.out, 0)[-1])
        if i < len(blocks) - 1:
            yield _piece(out, of_x, ends=False, x=x, y=y, to="sum")
        elif isinstance(wide, Project):
            yield _piece((*out, Store()), of_x, ends=True, x=x, y=y, to="out")
        else:
            # what reads the program's x is for later pieces
            reads = (k for k, step in enumerate(after) if isinstance(step, AddMap | AddGate))
            own = (*out, *after[: next(reads, len(after))])
            cut = max(_first_piece_length(own, of_x), len(out))
            rest = (*out, *after)[cut:]
            yield _piece(own[:cut], of_x, ends=not rest, x=x, y=y)
            if rest:
                saved = widths(own[:cut], of_x.channels)[-1]
                yield from pieces((Restore(), *rest), shape._replace(channels=saved))


def _first_piece_length(steps: tuple[Step, ...], shape: Shape) -> int:
    """Return the number of steps of the first kernel: all, or as many as fit before a costly step.

    Fewer if two kernels take less time than one.
    """
    after = widths(steps, shape.channels)
    many = after[-1] * shape.next_modes > _MAX_FUSED_SUMS
    # within a kernel, mixed spectra and the result's spectra have the same channels
    other = isinstance(steps[0], Synthesis) and after[-1] != after[0]
    if (many or other) and isinstance(steps[-1], Analyze) and len(steps) > 2:
        return min(len(steps) - 1, _first_piece_length(steps[:-1], shape))
    whole = plan_kernel(steps, shape)
    if whole.refusal is None:
        return _cheapest_cut(steps, shape, whole.plan.cost)
    for cut in _cuts(steps, (MLP, Project, Analyze, AddMap)):
        first = _saving(steps[:cut])
        planned = plan_kernel(first, shape)
        if planned.refusal is None:
            return min(cut, _cheapest_cut(first, shape, planned.plan.cost))
    return len(steps)


def _cuts(steps: tuple[Step, ...], before: tuple[type[Step], ...]) -> Iterator[int]:
    """Yield the places where a program may be cut before such steps, the last first."""
    for cut in reversed(range(1, len(steps))):
        if isinstance(steps[cut], before) and not isinstance(steps[cut - 1], Source | Restore):
            yield cut


def _cheapest_cut(steps: tuple[Step, ...], shape: Shape, cost: float) -> int:
    """Return the number of steps of the first of two kernels that cost less than the one of all steps, or all.

    The weights of a wide channel MLP may leave shared memory for few warps.
    """
    least, best = _WORTH_A_CUT * cost, len(steps)
    after = widths(steps, shape.channels)
    for cut in _cuts(steps, (MLP, Project)):
        first = plan_kernel(_saving(steps[:cut]), shape)
        rest = plan_kernel((Restore(), *steps[cut:]), shape._replace(channels=after[cut - 1]))
        both = first.plan.cost + rest.plan.cost
        if first.refusal is None and rest.refusal is None and both < least:
            least, best = both, cut
    return best
