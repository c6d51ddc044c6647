"""Channel MLPs and projections that no kernel holds, as maps from field to field through blocks of their hidden channels."""

from __future__ import annotations

from typing import NamedTuple
from weakref import WeakKeyDictionary

import torch

from turbofno_ops._stages import MLP, Activate, AddMap, Affine, Project, Step

_BLOCK = 256
"""Hidden channels of a block: the most that a tile has."""
_ALWAYS_HELD = 128
"""Most channels that kernels hold with as many hidden ones; of fewer channels more hidden ones, with no larger weights."""
_MAY_BEGIN = 8192
"""Hidden channels times others from which a channel MLP may begin a kernel."""


class Block(NamedTuple):
    """Steps of a block of hidden channels.

    Attributes:
        hidden: From y = 0, which read the step's input as x and make the hidden channels; empty if the step is one map.
        out: From the sum of the blocks before, which read the hidden channels as x and add their part of the result.
    """

    hidden: tuple[Step, ...]
    out: tuple[Step, ...]


_kept: WeakKeyDictionary[MLP | Project, tuple[Block, ...]] = WeakKeyDictionary()


def blocks_of(step: MLP | Project) -> tuple[Block, ...]:
    """Return the blocks of a step. They are made once, because packed weights are kept by step."""
    if step not in _kept:
        _kept[step] = tuple(_blocks(step))
    return _kept[step]


def steps_with_blocks(steps: tuple[Step, ...]) -> tuple[Step, ...]:
    """Return the steps, and those of blocks that have been made of them."""
    blocks = [
        block for step in steps if isinstance(step, MLP | Project) for block in _kept.get(step, ())
    ]
    return (*steps, *(step for block in blocks for step in (*block.hidden, *block.out)))


def stored_channels(step: MLP | Project) -> int:
    """Return the most channels of fields stored for a step at a time, besides its layer's input and result; 0 for most steps.

    Several blocks have a sum that is read and one that is written. A kernel that holds a wide channel MLP may begin with it:
    then what it takes is stored.
    """
    maps = (step.first, step.second) if isinstance(step, MLP) else step.maps
    (hidden, channels), out = maps[0].weight.shape, len(maps[-1].weight)
    widest = max(channels, out)
    # kernels hold whole chunks of 32 channels
    held, held_hidden = (-(-count // 32) * 32 for count in (widest, hidden))
    if held <= _ALWAYS_HELD and held_hidden * held <= _ALWAYS_HELD**2:
        return channels if isinstance(step, MLP) and hidden * channels >= _MAY_BEGIN else 0
    return min(hidden, _BLOCK) + (2 if hidden > _BLOCK else 1) * out


def _blocks(step: MLP | Project) -> list[Block]:
    maps = (step.first, step.second) if isinstance(step, MLP) else step.maps
    *before, last = maps
    blocks = []
    if not before:
        blocks.append(Block((), (AddMap(last.weight),)))
    for first in before:
        for at in range(0, len(first.weight), _BLOCK):
            part = slice(at, at + _BLOCK)
            hidden: list[Step] = [AddMap(first.weight[part])]
            hidden += _offset(None if first.bias is None else first.bias[part])
            hidden.append(Activate(step.activation))
            blocks.append(Block(tuple(hidden), (AddMap(last.weight[:, part]),)))
    final = blocks[-1]
    blocks[-1] = final._replace(out=(*final.out, *_offset(last.bias)))
    return blocks


def _offset(bias: torch.Tensor | None) -> list[Step]:
    return [] if bias is None else [Affine(None, bias)]
