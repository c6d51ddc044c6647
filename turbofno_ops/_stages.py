"""The stages that a network runs as: what they take and give, whatever runs them.

    tile      field, mixed spectra -> field, spectra    the steps between two spectral products, in one pass
    mix       spectra -> mixed spectra                  DFTs along the other axes, a matrix of channels a mode, back

A tile is all channels of some neighbouring grid points; a program of steps runs on it while it is on chip. It has one
value y, changed by each step, and reads two fields at the same points: x, which skips add, and `held`, a value that an
earlier tile program put by. The steps of description.py mean here what they mean there, with these rules: `AddMap` and
`AddGate` read the x that the program was given, not one that it stores; `AddMap` may stand first, and y is 0 before it;
`Normalize` stands right after `Synthesis`, where the moments come from the mixed spectra by Parseval, or right after
`Held`, where they come from `Hold`.

Spectra are complex [batch, channels, *other axes, modes of the last axis]: analysed along the last axis alone. How a
field is laid out in memory is the stages' own affair: only `Source` and `Project` have [batch, channels, *grid].
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from turbofno_ops.description import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Normalize,
    PointwiseMap,
)

__all__ = [
    "MLP",
    "Activate",
    "AddGate",
    "AddMap",
    "Affine",
    "Analyze",
    "Field",
    "Held",
    "Hold",
    "Normalize",
    "Operands",
    "Project",
    "Results",
    "Source",
    "Stages",
    "Step",
    "Store",
    "Synthesis",
]

Field = Any
"""A real field in the order that the stages like best; nobody else looks inside."""


@dataclass(frozen=True, eq=False)
class Source:
    """y = the network's input buffer, real [batch, channels, *grid]. Only first; x is the buffer too."""


@dataclass(frozen=True, eq=False)
class Held:
    """y = `held`. Only first."""


@dataclass(frozen=True, eq=False)
class Synthesis:
    """y = inverse DFT of the mixed spectra along the last axis. Only first."""


@dataclass(frozen=True, eq=False)
class Store:
    """y becomes the field that later tile programs read as x. Right after `Source` it may be the buffer itself."""


@dataclass(frozen=True, eq=False)
class Hold:
    """y becomes the next tile program's `held`, with its moments if a `Normalize` follows there. Only last."""

    moments: bool


@dataclass(frozen=True, eq=False)
class Analyze:
    """The spectra of y along the last axis. Only last."""


@dataclass(frozen=True, eq=False)
class Project:
    """The network's result, maps [out, channels] of y (one or two, `activation` between), real [batch, out, *grid]. Only last."""

    maps: tuple[PointwiseMap, ...]
    activation: str


Step = (
    Source
    | Held
    | Synthesis
    | Affine
    | Normalize
    | AddMap
    | AddGate
    | Activate
    | MLP
    | Store
    | Hold
    | Analyze
    | Project
)


@dataclass(frozen=True, eq=False)
class Operands:
    """The inputs of a tile program: the parts that its steps name."""

    x: Field | None = None  # with Source the buffer
    held: Field | None = None
    moments: torch.Tensor | None = None  # of `held`, in the stages' own form
    mixed: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Results:
    """The outputs of a tile program: the parts that its steps name."""

    x: Field | None = None  # of Store
    held: Field | None = None  # of Hold
    moments: torch.Tensor | None = None
    spectra: torch.Tensor | None = None  # of Analyze
    out: torch.Tensor | None = None  # of Project


class Stages(Protocol):
    """The stages on the grid `size`, with their tables: tiles on it, the mix from it to `out_size`.

    `Analyze` keeps as many modes of the last axis as the mix that follows; `Synthesis` takes those that the
    mixed spectra have, which are others where the layer before keeps others.
    """

    def tile(self, steps: tuple[Step, ...], operands: Operands) -> Results:
        """Run a tile program at every grid point."""

    def mix(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """complex [batch, c_in, *others, modes] by weight [*modes, c_in, c_out] -> [batch, c_out, *others, modes]."""

    def convert(self, x: torch.Tensor) -> Field:
        """A real [batch, channels, *grid] as a field (for what plain torch has computed: padding, resampling)."""

    def plain(self, field: Field) -> torch.Tensor:
        """A field as a real [batch, channels, *grid], any strides."""
