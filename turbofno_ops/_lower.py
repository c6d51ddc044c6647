"""Lowering of a network's blocks to tile programs and spectral products.

A tile program (see _stages.py) transforms a value y at every grid point; its skip connections read a field x.

The steps of all blocks are concatenated and cut at each spectral convolution: the program before it ends with
`Analyze`, the one after it begins with `Synthesis`. A program also ends with `Save` before a `Normalize` that does not
directly follow `Synthesis`, because its moments need the whole field, and before a step that reads an x that the same
program stores, because a program reads only the x of earlier ones. x is stored only if a later step reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace

import torch

from turbofno_ops._channels import mode_major
from turbofno_ops._fold import Folded, fold, to_device
from turbofno_ops._stages import (
    Analyze,
    Project,
    Restore,
    Save,
    Source,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops.description import (
    MLP,
    AddGate,
    AddMap,
    Affine,
    Block,
    BlockStep,
    Branch,
    FNODescription,
    Normalize,
    PaddingMode,
    PointwiseMap,
    Scaling,
    Size,
    Spectral,
    SpectralTerm,
)


@dataclass(frozen=True, eq=False)
class Tile:
    """A tile program with its numbers of channels: y before it, y after it, and x (0 if it does not read x)."""

    steps: tuple[Step, ...]
    channels: int
    channels_after: int
    channels_of_x: int


@dataclass(frozen=True, eq=False)
class Mix:
    """A spectral product with weight [*modes, c_in, c_out]; `terms` and `out_size` as in `Spectral`.

    `resamples_x`: resample x to the output grid, because a later step adds it there. `sharded`: a process multiplies its
    share of the modes only; then the weight is in the host's memory.
    """

    weight: torch.Tensor
    terms: Callable[[torch.Tensor, Size, Size], Sequence[SpectralTerm]] | None
    out_size: Callable[[Size], Size] | None
    resamples_x: bool
    sharded: bool = False


@dataclass(frozen=True, eq=False)
class Chain:
    """A lowered network. "As in Folded" refers to `_fold.Folded`, "as in FNODescription" to description.py.

    Attributes:
        n_dim: Grid axes.
        in_channels: Channels of the network's input.
        out_channels: Channels of the network's output.
        dtype: Dtype of all real weights.
        positions: As in FNODescription.
        padding: As in FNODescription.
        padding_mode: As in FNODescription.
        resample: As in FNODescription.
        shift: As in Folded.
        scale: As in Folded.
        ones: As in Folded.
        lifting: As in Folded, with `lifting_activation` between its maps.
        items: Tile programs and products in order; the first and the last are tile programs.
        tail: As in Folded, with `tail_activation` between its maps.
        rescaling: As in Folded.
    """

    n_dim: int
    in_channels: int
    out_channels: int
    dtype: torch.dtype
    positions: Callable[[Size], torch.Tensor] | None
    padding: Callable[[Size], Sequence[tuple[int, int]]] | None
    padding_mode: PaddingMode
    resample: Callable[[torch.Tensor, Size], torch.Tensor] | None
    shift: torch.Tensor | None
    scale: torch.Tensor | None
    ones: bool
    lifting: tuple[PointwiseMap, ...]
    lifting_activation: str
    items: tuple[Tile | Mix, ...]
    tail: tuple[PointwiseMap, ...]
    tail_activation: str
    rescaling: Scaling | None

    @property
    def grid(self) -> Size | None:
        """The only supported grid if a mean or standard deviation is given per grid point, else None."""
        fields = [self.shift, None if self.rescaling is None else self.rescaling.mean]
        for field in fields:
            if field is not None and field.ndim > 1:
                return tuple(field.shape[1:])
        return None

    def nbytes(self, device: torch.device) -> int:
        """Return the bytes of all weights on a device."""
        parts = (self.shift, self.scale, self.lifting, self.items, self.tail, self.rescaling)
        return sum(tensor.nbytes for tensor in _tensors(parts) if tensor.device == device)


def lower(description: FNODescription, device: torch.device) -> Chain:
    """Lower a description that passed `check` to a chain on `device`."""
    real = next(_weights(description.blocks)).dtype.to_real()
    folded = fold(description, device)
    buffer_channels = description.lifting[0].weight.shape[1] + folded.ones
    items = to_device(_items(folded, buffer_channels), device, real)
    return Chain(
        n_dim=next(_weights(description.blocks)).ndim - 2,
        in_channels=description.in_channels,
        out_channels=description.projection[-1].weight.shape[0],
        dtype=real,
        positions=description.positions,
        padding=description.padding,
        padding_mode=description.padding_mode,
        resample=description.resample,
        shift=to_device(folded.shift, device, real),
        scale=to_device(folded.scale, device, real),
        ones=folded.ones,
        lifting=to_device(folded.lifting, device, real),
        lifting_activation=description.lifting_activation,
        items=items,
        tail=to_device(folded.tail, device, real),
        tail_activation=description.projection_activation,
        rescaling=to_device(folded.rescaling, device, real),
    )


def _weights(blocks: tuple[Block, ...]) -> Iterator[torch.Tensor]:
    return (step.weight for block in blocks for step in block if isinstance(step, Spectral))


def _tensors(part: object) -> Iterator[torch.Tensor]:
    if isinstance(part, torch.Tensor):
        yield part
    elif isinstance(part, tuple):
        for one in part:
            yield from _tensors(one)
    elif is_dataclass(part):
        for field in fields(part):
            yield from _tensors(getattr(part, field.name))


def _items(folded: Folded, buffer_channels: int) -> tuple[Tile | Mix, ...]:
    lowering = _Lowering(folded, buffer_channels)
    for block in folded.blocks:
        lowering.block(block)
    return lowering.close(folded.end)


def _reads_x(steps: Sequence[BlockStep]) -> bool:
    """True if a step reads x before a `Branch` replaces it."""
    for step in steps:
        if isinstance(step, Branch):
            return False
        if isinstance(step, AddMap | AddGate):
            return True
    return False


class _Lowering:
    """Builder of a chain's items.

    `_steps`, `_start_width` and `_stores` (True if it stores x) describe the current tile program; `_width` and
    `_x_width` are the channels of y and x.
    """

    def __init__(self, folded: Folded, buffer_channels: int) -> None:
        self._items: list[Tile | Mix] = []
        self._steps = list(folded.start)
        in_torch = len(folded.lifting[-1].weight) if folded.lifting else 0
        # after a lifting in plain torch, the lifted field is both y and x
        self._x_is_y, self._x_width = bool(in_torch), in_torch or buffer_channels
        self._stores = False
        first = folded.start[0]
        self._start_width = self._width = in_torch or (
            0 if isinstance(first, AddMap) else buffer_channels
        )
        for step in folded.start:
            self._width = _width_after(step, self._width)

    def block(self, block: Block) -> None:
        self._branch(block)
        for i, step in enumerate(block):
            rest = block[i + 1 :]
            match step:
                case Spectral():
                    self._product(step, reads_x=_reads_x(rest))
                case Branch():
                    self._branch(rest)
                case AddMap() | AddGate():
                    if self._stores:
                        self._save_and_restore(moments=False)
                    self._append(step)
                case Normalize():
                    self._normalize(step)
                case Affine():
                    self._affine(step)
                case _:
                    self._append(step)

    def close(self, end: Step | None) -> tuple[Tile | Mix, ...]:
        self._finish(Save(moments=False) if end is None else end)
        return tuple(self._items)

    def _append(self, step: Step) -> None:
        self._steps.append(step)
        self._width = _width_after(step, self._width)
        self._x_is_y = False

    def _branch(self, rest: Sequence[BlockStep]) -> None:
        """Store y as x if a later step reads it."""
        if not _reads_x(rest) or self._x_is_y:
            return
        self._steps.append(Store())
        self._x_is_y = self._stores = True
        self._x_width = self._width

    def _save_and_restore(self, *, moments: bool) -> None:
        self._finish(Save(moments))
        self._begin(Restore())

    def _product(self, step: Spectral, *, reads_x: bool) -> None:
        self._finish(Analyze())
        weight = mode_major(step.weight).contiguous()
        resamples = reads_x and step.out_size is not None
        self._items.append(Mix(weight, step.terms, step.out_size, resamples))
        self._width = step.weight.shape[1]
        self._x_is_y = False
        self._begin(Synthesis())

    def _normalize(self, step: Normalize) -> None:
        match self._steps:
            case [Synthesis(), Affine(None, torch.Tensor() as shift)]:
                self._steps.pop()
                # an instance norm subtracts each channel's mean, and with it the constant
                offset = None if step.groups == self._width else _sum(shift, step.offset)
                step = replace(step, offset=offset)
        if not isinstance(self._steps[-1], Synthesis):
            self._save_and_restore(moments=True)
        self._append(step)

    def _affine(self, step: Affine) -> None:
        at = len(self._steps) - 1
        while at > 0 and step.scale is None and isinstance(self._steps[at], AddMap | AddGate):
            at -= 1
        before = self._steps[at]
        if isinstance(before, Affine):
            self._steps[at] = _composed(before, step)
            self._x_is_y = False
        else:
            self._append(step)

    def _begin(self, step: Step) -> None:
        self._steps = [step]
        self._start_width = self._width
        self._stores = False

    def _finish(self, step: Step) -> None:
        self._steps.append(step)
        reads_x = any(isinstance(one, AddMap | AddGate) for one in self._steps)
        x_width = self._x_width if reads_x else 0
        if reads_x and isinstance(self._steps[0], Source):
            x_width = self._start_width
        width = _width_after(step, self._width)
        self._items.append(Tile(tuple(self._steps), self._start_width, width, x_width))


def _width_after(step: Step, width: int) -> int:
    match step:
        case AddMap(weight):
            return weight.shape[0]
        case MLP(_, _, second):
            return second.weight.shape[0]
        case Project(maps):
            return maps[-1].weight.shape[0]
    return width


def _composed(first: Affine, second: Affine) -> Affine:
    scale, shift = first.scale, first.shift
    if second.scale is not None:
        scale = second.scale if scale is None else scale * second.scale
        shift = None if shift is None else shift * second.scale
    return Affine(scale, shift if second.shift is None else _sum(second.shift, shift))


def _sum(value: torch.Tensor, other: torch.Tensor | None) -> torch.Tensor:
    return value if other is None else value + other
