"""A Fourier neural operator as numbers, whoever trained it: what `compile_fno` takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Size = tuple[int, ...]

PRECISIONS = ("fp32", "tf32", "bf16")


class ChainRefused(ValueError):
    """A network, grid or setting that does not run as one chain of stages; the message says why.

    Whoever catches it runs the module itself.
    """


@dataclass(frozen=True, eq=False)
class PointwiseMap:
    """A linear map of the channels, the same at every grid point: weight [c_out, c_in], bias [c_out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class FourierMap:
    """spectral_conv(x, weight) + skip . x + bias, the linear part of a Fourier layer.

    weight complex [c_in, c_out, *modes] as `spectral_conv` takes it, skip [c_out, c_in], bias [c_out].
    """

    weight: torch.Tensor
    skip: torch.Tensor | None = None
    bias: torch.Tensor | None = None


@dataclass(frozen=True, eq=False)
class Scaling:
    """Physical = normalised * std + mean, an entry a channel."""

    mean: torch.Tensor
    std: torch.Tensor


@dataclass(frozen=True, eq=False)
class FNODescription:
    """project(layers(pad(lift([normalised x, positions])))) of Li et al. 2020, Figure 2, in physical units.

    Activations are of `ACTIVATIONS`. `activation` stands after every layer but the last, and between the maps
    of lifting and projection unless these have their own. All tensors are of one dtype and its complex twin.

    Attributes:
        in_channels: Of x, without positions.
        lifting: At least one map; the first takes x's channels, then those of `positions`.
        layers: At least one, all with the same modes.
        projection: At least one map.
        activation: Its name.
        lifting_activation: Another one between the maps of the lifting.
        projection_activation: Another one between the maps of the projection.
        inputs: How x is normalised, or None.
        outputs: How the result is brought back to physical units, or None.
        positions: For a grid, the channels that depend on it alone: float64 [channels, *grid] on the CPU.
        padding: For a grid, points of zeros (before, after) each axis around the lifted field, cut off
            again before the projection.
        refusal: For a padded grid, why the layers are something else there, in words, or None.
    """

    in_channels: int
    lifting: tuple[PointwiseMap, ...]
    layers: tuple[FourierMap, ...]
    projection: tuple[PointwiseMap, ...]
    activation: str
    lifting_activation: str | None = None
    projection_activation: str | None = None
    inputs: Scaling | None = None
    outputs: Scaling | None = None
    positions: Callable[[Size], torch.Tensor] | None = None
    padding: Callable[[Size], Sequence[tuple[int, int]]] | None = None
    refusal: Callable[[Size], str | None] | None = None
