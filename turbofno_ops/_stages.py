"""The three stages of a Fourier layer on one grid: what they take and give, whatever runs them.

Grids have two axes here, h and w; one axis is h = 1.

    analyze   field -> spectra         the kept modes of w
    mix       spectra -> spectra       DFT along h, a matrix of channels a mode, inverse DFT along h
    rows      spectra, field -> field  inverse DFT along w, skip, bias, activation; the next layer's spectra
    project   the same, but only a few linear combinations of its channels are written

Fields are real [batch, channels, h, w], spectra complex [batch, channels, h, modes_w].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


def two_axes(counts: Sequence[int]) -> tuple[int, int]:
    """(h, w) of a grid or of modes with one or two axes."""
    h, w = (1, *counts)[-2:]
    return h, w


@dataclass(frozen=True, eq=False)
class Layer:
    """weight complex [modes_h, modes_w, c_in, c_out], skip [c_out, c_in], bias [c_out], activation's name."""

    weight: torch.Tensor
    skip: torch.Tensor | None
    bias: torch.Tensor | None
    activation: str


@dataclass(frozen=True, eq=False)
class Projection:
    """weight [projected, c_out], bias [projected]: a pointwise map after a layer's activation."""

    weight: torch.Tensor
    bias: torch.Tensor | None


class Stages(Protocol):
    """The stages on one grid, with their tables."""

    def analyze(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, channels, h, w] -> complex [batch, channels, h, modes_w]."""

    def mix(self, spectra: torch.Tensor, layer: Layer) -> torch.Tensor:
        """complex [batch, c_in, h, modes_w] -> complex [batch, c_out, h, modes_w]."""

    def rows(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, *, last: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mixed spectra and the layer's input -> its output and, unless it is the last, the output's spectra."""

    def project(
        self, spectra: torch.Tensor, x: torch.Tensor, layer: Layer, projection: Projection
    ) -> torch.Tensor:
        """The layer's output, projected, in the precision of x or better: [batch, projected, h, w]."""
