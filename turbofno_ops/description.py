"""Description of a trained Fourier neural operator, independent of its framework: the input of `compile_fno`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch

Size = tuple[int, ...]

PRECISIONS = ("fp32", "tf32", "bf16")

PaddingMode = Literal["zeros", "replicate", "reflect", "circular"]


class ChainRefused(ValueError):
    """Raised for a network, grid or setting that `compile_fno` does not support; the message gives the reason.

    Run the PyTorch module instead.
    """


@dataclass(frozen=True, eq=False)
class PointwiseMap:
    """A linear map of the channels, the same at every grid point (a 1x1 convolution).

    Attributes:
        weight: [c_out, c_in].
        bias: [c_out], or None.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None


class SpectralTerm(NamedTuple):
    """One term of a spectral step on a grid: Re(exp(i phase) G), where Re(G) = spectral_conv(y, weight).

    Attributes:
        weight: Complex [c_in, c_out, *modes].
        phase: Float64 [*output grid without its last axis] in radians, or None for 0.
    """

    weight: torch.Tensor
    phase: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Spectral:
    """y = spectral_conv(y, weight).

    Attributes:
        weight: Complex [c_in, c_out, *modes], as in `spectral_conv`.
        terms: Function of (weight, grid of y, output grid) that returns the terms of the step on these grids; their sum is
            the result. All terms have the same modes. It may select, repeat and drop modes, but must treat all
            channels alike. None: the weight is the only term.
        out_size: Function from the grid of y to the output grid; None: the same grid.
    """

    weight: torch.Tensor
    terms: Callable[[torch.Tensor, Size, Size], Sequence[SpectralTerm]] | None = None
    out_size: Callable[[Size], Size] | None = None


@dataclass(frozen=True, eq=False)
class AddMap:
    """y = y + weight . x.

    Attributes:
        weight: [channels of y, channels of x].
    """

    weight: torch.Tensor


@dataclass(frozen=True, eq=False)
class AddGate:
    """y = y + weight * x.

    Attributes:
        weight: [channels].
    """

    weight: torch.Tensor


@dataclass(frozen=True, eq=False)
class Affine:
    """y = scale * y + shift.

    Attributes:
        scale: [channels], or None for 1.
        shift: [channels], or None for 0.
    """

    scale: torch.Tensor | None
    shift: torch.Tensor | None


@dataclass(frozen=True, eq=False)
class Normalize:
    """y = scale * (z - mean) / sqrt(variance + eps) + shift, with z = y + offset.

    Mean and (biased) variance are over the grid and a group of channels.

    Attributes:
        groups: Groups of channels; as many as channels for an instance norm.
        eps: Added to the variance.
        scale: [channels], or None for 1.
        shift: [channels], or None for 0.
        offset: [channels], or None for 0.
    """

    groups: int
    eps: float
    scale: torch.Tensor | None = None
    shift: torch.Tensor | None = None
    offset: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Activate:
    """y = activation(y).

    Attributes:
        activation: A name of `ACTIVATIONS`, with its parameter if it has one: 'gelu', 'leaky_relu(0.2)'.
    """

    activation: str


@dataclass(frozen=True, eq=False)
class MLP:
    """y = second(activation(first(y))), at each grid point.

    Attributes:
        first: Map with weight [hidden, channels].
        activation: A name of `ACTIVATIONS`.
        second: Map with weight [channels out, hidden].
    """

    first: PointwiseMap
    activation: str
    second: PointwiseMap


@dataclass(frozen=True, eq=False)
class Branch:
    """x = y: later steps of the block read this value as x."""


BlockStep = Spectral | AddMap | AddGate | Affine | Normalize | Activate | MLP | Branch
Block = tuple[BlockStep, ...]
"""The steps of a hidden layer in order. y is its field; x is the layer's input, or the value of y at the last `Branch`."""


@dataclass(frozen=True, eq=False)
class Scaling:
    """Normalisation: physical value = normalised value * std + mean.

    Attributes:
        mean: [channels], or [channels, *grid] for a network on one grid only.
        std: Of the same shape.
    """

    mean: torch.Tensor
    std: torch.Tensor


@dataclass(frozen=True, eq=False)
class FNODescription:
    """A Fourier neural operator: project(blocks(pad(lift([normalised x, positions])))).

    The architecture of Li et al. 2020 (arXiv 2010.08895), Figure 2, from and to physical units. All tensors have one
    dtype and its complex counterpart (float32 and complex64, or float64 and complex128). Any number of grid axes.

    Attributes:
        in_channels: Channels of x, without positions.
        lifting: At least one map; the first takes the channels of x, then those of `positions`.
        blocks: At least one, each with exactly one `Spectral`.
        projection: At least one map.
        lifting_activation: Activation between the maps of the lifting.
        projection_activation: Activation between the maps of the projection.
        inputs: Normalisation of x, or None.
        outputs: Normalisation of the result, or None.
        positions: Function from a grid to the channels that depend on it only: float64 [channels, *grid] on the CPU.
        padding: Function from a grid to padding points (before, after) each axis, added to the lifted field and
            cropped before the projection.
        padding_mode: Values of the padding: 'zeros', or a mode of torch.nn.functional.pad.
        resample: Function of (x, output grid) for a `Spectral` with an `out_size`. It must be linear, treat all channels
            alike, and keep constants on axes of two points or more.
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
