"""A Fourier neural operator as numbers, whoever trained it: what `compile_fno` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Size = tuple[int, ...]

PRECISIONS = ("fp32", "tf32", "bf16")

PaddingMode = Literal["zeros", "replicate", "reflect", "circular"]


class ChainRefused(ValueError):
    """A network, grid or setting that does not run as one chain of stages; the message says why.

    Whoever catches it runs the module itself.
    """


@dataclass(frozen=True, eq=False)
class PointwiseMap:
    """A linear map of the channels, the same at every grid point: weight [c_out, c_in], bias [c_out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


class SpectralTerm(NamedTuple):
    """One term of a spectral step on some grid: Re(exp(i phase) G), where Re(G) is spectral_conv(y, weight).

    weight complex [c_in, c_out, *modes], phase float64 [*grid of the result without its last axis] in
    radians, or None for 0.
    """

    weight: torch.Tensor
    phase: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Spectral:
    """y = spectral_conv(y, weight), weight complex [c_in, c_out, *modes].

    Attributes:
        weight: As `spectral_conv` takes it.
        terms: For a weight, the grid of y and that of the result, the terms whose sum the step is there,
            all with the same modes. It may select, repeat and drop modes, and treats all channels alike.
            None is the weight as it stands.
        out_size: For the grid of y, that of the result; None is the same grid.
    """

    weight: torch.Tensor
    terms: Callable[[torch.Tensor, Size, Size], Sequence[SpectralTerm]] | None = None
    out_size: Callable[[Size], Size] | None = None


@dataclass(frozen=True, eq=False)
class AddMap:
    """y = y + weight . x, weight [channels of y, channels of x]."""

    weight: torch.Tensor


@dataclass(frozen=True, eq=False)
class AddGate:
    """y = y + weight * x, weight [channels]."""

    weight: torch.Tensor


@dataclass(frozen=True, eq=False)
class Affine:
    """y = scale * y + shift, both [channels], either may be None (1 and 0)."""

    scale: torch.Tensor | None
    shift: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Normalize:
    """y = scale * (z - mean) / sqrt(variance + eps) + shift, z = y + offset, scale, shift and offset [channels].

    Mean and variance (biased) are over the grid and a group of channels; `groups` = channels is an instance
    norm. None is a scale of 1, a shift and an offset of 0.
    """

    groups: int
    eps: float
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    offset: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Activate:
    """y = activation(y), as `ACTIVATIONS` names it: 'gelu', 'leaky_relu(0.2)'."""

    activation: str


@dataclass(frozen=True, eq=False)
class MLP:
    """y = second(activation(first(y))), pointwise: first [hidden, channels], second [channels out, hidden]."""

    first: PointwiseMap
    activation: str
    second: PointwiseMap


@dataclass(frozen=True, eq=False)
class Branch:
    """x = y."""


BlockStep = Spectral | AddMap | AddGate | Affine | Normalize | Activate | MLP | Branch
Block = tuple[BlockStep, ...]
"""The steps of a hidden layer on its field y, in order; x is the field it was given, or y as it stood at `Branch`."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Physical = normalised * std + mean, both [channels], or both [channels, *grid] for one grid alone."""

    mean: torch.Tensor
    std: torch.Tensor


@dataclass(frozen=True, eq=False)
class FNODescription:
    """project(blocks(pad(lift([normalised x, positions])))) of Li et al. 2020, Figure 2, in physical units.

    All tensors are of one dtype and its complex twin, on any number of grid axes.

    Attributes:
        in_channels: Of x, without positions.
        lifting: At least one map; the first takes x's channels, then those of `positions`.
        blocks: At least one, with one `Spectral` each.
        projection: At least one map.
        lifting_activation: Between the maps of the lifting.
        projection_activation: Between the maps of the projection.
        inputs: How x is normalised, or None.
        outputs: How the result is brought back to physical units, or None.
        positions: For a grid, the channels that depend on it alone: float64 [channels, *grid] on the CPU.
        padding: For a grid, points (before, after) each axis around the lifted field, cut off again before
            the projection.
        padding_mode: Their values, as torch.nn.functional.pad has them.
        resample: x on the grid of the result of a `Spectral` that has an `out_size`: linear, all channels
            alike, constants unchanged (on axes of two points or more).
    """

    in_channels: int
    lifting: tuple[PointwiseMap, ...]
    blocks: tuple[Block, ...]
    projection: tuple[PointwiseMap, ...]
    lifting_activation: str = "gelu"
    projection_activation: str = "gelu"
    inputs: Scaling | None = None
    outputs: Scaling | None = None
    positions: Callable[[Size], torch.Tensor] | None = None
    padding: Callable[[Size], Sequence[tuple[int, int]]] | None = None
    padding_mode: PaddingMode = "zeros"
    resample: Callable[[torch.Tensor, Size], torch.Tensor] | None = None
