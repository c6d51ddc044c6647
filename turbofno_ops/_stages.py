"""The interface of the stages that execute a network, independent of the backend.

    tile      field, mixed spectra -> field, spectra    the steps between two spectral products, in one pass
    mix       spectra -> mixed spectra                  DFTs along the other axes, one channel matrix per mode, inverse

A tile is all channels of some neighbouring grid points. A tile program is a list of steps that run on it on chip. It has
one value y, which each step changes, and reads two fields at the same points: x, which skips add, and `saved`, the value
that an earlier tile program saved. The steps of description.py keep their meaning, with these rules:

- `AddMap` and `AddGate` read the x that the program gets, not one that it stores.
- `AddMap` may be the first step; y is 0 before it.
- `Normalize` follows directly after `Synthesis`, with moments of the mixed spectra by Parseval, or after `Restore`, with
  moments from `Save`.

Spectra are complex [batch, channels, *other axes, modes of the last axis], transformed along the last axis only. The
memory layout of fields is private to the stages; only `Source` and `Project` have [batch, channels, *grid].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from turbofno_ops._modes import Rows
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
    "Normalize",
    "Operands",
    "Project",
    "Restore",
    "Results",
    "Save",
    "Source",
    "Stages",
    "Step",
    "Store",
    "Synthesis",
    "Window",
    "part_of",
]

Field = Any
"""A real field in the stages' private layout."""
Window = tuple[Rows, ...]
"""A part of a grid: its rows on every axis."""


def part_of(field: torch.Tensor, window: Sequence[Rows]) -> torch.Tensor:
    """Return the part of a field [batch, channels, *grid, ..], as a view."""
    for axis, rows in enumerate(window, start=2):
        field = rows.of(field, axis)
    return field


@dataclass(frozen=True, eq=False)
class Source:
    """y = x = the network's input buffer, real [batch, channels, *grid]. First step only."""


@dataclass(frozen=True, eq=False)
class Restore:
    """y = `saved`. First step only."""


@dataclass(frozen=True, eq=False)
class Synthesis:
    """y = inverse DFT of the mixed spectra along the last axis. First step only."""


@dataclass(frozen=True, eq=False)
class Store:
    """Store y as the x of later tile programs. Directly after `Source` it may be the buffer itself."""


@dataclass(frozen=True, eq=False)
class Save:
    """Save y for the next tile program, with its moments if a `Normalize` follows there. Last step only."""

    moments: bool


@dataclass(frozen=True, eq=False)
class Analyze:
    """Compute the spectra of y along the last axis. Last step only."""


@dataclass(frozen=True, eq=False)
class Project:
    """Compute the network's result, real [batch, out, *grid], by one or two maps of y. Last step only."""

    maps: tuple[PointwiseMap, ...]
    activation: str


Step = (
    Source
    | Restore
    | Synthesis
    | Affine
    | Normalize
    | AddMap
    | AddGate
    | Activate
    | MLP
    | Store
    | Save
    | Analyze
    | Project
)


@dataclass(frozen=True, eq=False)
class Operands:
    """Inputs of a tile program; those that its steps do not read are None."""

    x: Field | None = None  # the buffer, for Source
    saved: Field | None = None
    moments: torch.Tensor | None = None  # of `saved`, in the stages' private layout
    mixed: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Results:
    """Outputs of a tile program; those that its steps do not write are None."""

    x: Field | None = None  # by Store
    saved: Field | None = None  # by Save
    moments: torch.Tensor | None = None
    spectra: torch.Tensor | None = None  # by Analyze
    out: torch.Tensor | None = None  # by Project


class Stages(Protocol):
    """The stages on a grid: tile programs on it, and the mix from it to the next grid.

    `Analyze` keeps the modes of the mix that follows. `Synthesis` takes the modes of its mixed spectra, which differ if
    the previous layer keeps another number of modes.
    """

    def tile(
        self, steps: tuple[Step, ...], operands: Operands, window: Window | None = None
    ) -> Results:
        """Run a tile program at every grid point, or at those of a window: only the last one, of which `out` or `saved` remains."""

    def mix(self, spectra: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        """Multiply complex [batch, c_in, *others, modes] by weight [*modes, c_in, c_out] -> [batch, c_out, *others, modes]."""

    @property
    def peer_bytes(self) -> int:
        """Bytes of this device that the stages share with other processes."""

    def convert(self, x: torch.Tensor) -> Field:
        """Convert a real [batch, channels, *grid] from plain torch (padding, resampling) to a field."""

    def plain(self, field: Field) -> torch.Tensor:
        """Convert a field to a real [batch, channels, *grid] with any strides."""
