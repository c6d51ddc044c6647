"""Zero channels for networks that the kernels compute faster with more channels.

The kernels compute 16, 32 or 64 channels at once, and those for common networks (is_common in csrc/plan/tile_programs.h)
need exactly so many, or 20 in plain layers. A common network of a few channels less takes them with zero weights: its
further channels are zero everywhere.
"""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F

from turbofno_ops.description import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Block,
    BlockStep,
    Branch,
    FNODescription,
    Normalize,
    PointwiseMap,
    Spectral,
)

_PLAIN = (Spectral, AddMap)
"""The steps of a common block besides activations and affine steps: of the original networks."""
_DEFAULT = (Spectral, AddMap, MLP, AddGate)
"""The same of neuraloperator's default."""
_FEWEST: dict[tuple[type[BlockStep], ...], dict[int, int]] = {
    _PLAIN: {16: 12, 32: 24, 64: 56},
    _DEFAULT: {16: 12, 32: 20, 64: 48},
}
"""For each of them channels -> the fewest of a network that is faster with so many, over batches, grids and modes. Plain
layers were measured on an H200, the default's on an H100."""
_MOST_HIDDEN = 32
"""Hidden channels of a common channel MLP."""


def with_zero_channels(description: FNODescription) -> FNODescription:
    """Return a checked description with zero channels up to the kernels' next number, if it is faster with them on Hopper."""
    channels = len(description.lifting[-1].weight)
    kinds = {_kind(block) for block in description.blocks}
    fewest = _FEWEST.get(kinds.pop(), {}) if len(kinds) == 1 else {}
    wanted = next((most for most in fewest if channels <= most), channels)
    if channels >= wanted or channels < fewest[wanted]:
        return description
    if not all(_keeps_zeros(step, channels) for block in description.blocks for step in block):
        return description
    *lifting, last = description.lifting
    first, *projection = description.projection
    return replace(
        description,
        lifting=(*lifting, _map(last, rows=wanted)),
        blocks=tuple(tuple(_step(s, wanted) for s in block) for block in description.blocks),
        projection=(_map(first, columns=wanted), *projection),
    )


def _kind(block: Block) -> tuple[type[BlockStep], ...]:
    """Return the steps of a block besides activations and affine steps; () for a plain one that takes several kernels."""
    steps = tuple(map(type, block))
    found = tuple(step for step in steps if step not in (Activate, Affine, Normalize))
    before = steps[: -1 if steps[-1] is Activate else None]
    one_kernel = Affine in before and not {Activate, Normalize} & {*before}
    return found if one_kernel or found != _PLAIN else ()


def _keeps_zeros(step: BlockStep, channels: int) -> bool:
    """True for a step that leaves further channels zero, the others as they are, and as many of them."""
    match step:
        case Spectral(weight):
            return weight.shape[1] == channels
        case MLP(first, activation, second):
            common = activation == "gelu" and len(first.weight) <= _MOST_HIDDEN
            return common and len(second.weight) == channels
        case Normalize(groups, eps):
            # a group's moments would count the zeros, whose variance is 0
            return groups == channels and eps >= torch.finfo(torch.float32).tiny
        case Activate(activation):
            return activation == "gelu"
    return True


def _step(step: BlockStep, channels: int) -> BlockStep:
    match step:
        case Spectral(weight):
            return replace(step, weight=_spectral(weight, channels))
        case MLP(first, activation, second):
            return MLP(_map(first, columns=channels), activation, _map(second, rows=channels))
        case AddMap(weight):
            return AddMap(_matrix(weight, channels, channels))
        case AddGate(weight):
            return AddGate(_vector(weight, channels))
        case Affine(scale, shift):
            return Affine(_optional(scale, channels), _optional(shift, channels))
        case Normalize(_, eps, scale, shift, offset):
            vectors = (_optional(vector, channels) for vector in (scale, shift, offset))
            return Normalize(channels, eps, *vectors)
        case Activate() | Branch():
            return step


def _map(
    linear: PointwiseMap, *, rows: int | None = None, columns: int | None = None
) -> PointwiseMap:
    out, given = linear.weight.shape
    rows, columns = rows or out, columns or given
    return PointwiseMap(_matrix(linear.weight, rows, columns), _optional(linear.bias, rows))


def _matrix(weight: torch.Tensor, rows: int, columns: int) -> torch.Tensor:
    out, given = weight.shape
    return F.pad(weight, (0, columns - given, 0, rows - out))


def _vector(vector: torch.Tensor, channels: int) -> torch.Tensor:
    return F.pad(vector, (0, channels - len(vector)))


def _optional(vector: torch.Tensor | None, channels: int) -> torch.Tensor | None:
    return None if vector is None else _vector(vector, channels)


def _spectral(weight: torch.Tensor, channels: int) -> torch.Tensor:
    """Return [channels, channels, *modes], in memory with the modes first as the kernels read it."""
    c_in, c_out, *modes = weight.shape
    padded = weight.new_zeros(*modes, channels, channels)
    padded[..., :c_in, :c_out] = weight.permute(*range(2, weight.ndim), 0, 1)
    return padded.permute(-2, -1, *range(len(modes)))
