"""The Fourier neural operator as a torch module, in physical units at both ends."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Self, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from models.blocks import FourierBlock, PointwiseMLP, broadcast
from models.config import FieldNormalization, FNOArchitecture, Normalization, Precision
from models.spectrum import is_plain
from turbofno_ops import ChainRefused, FNODescription, Scaling


class FNO(nn.Module):
    """Fourier neural operator: lift, Fourier blocks, project (Li et al. 2020, Figure 2).

    Takes and gives physical units: [batch, in_channels, *grid] -> [batch, out_channels, *grid],
    float32 (float64 after `.double()`), any grid that holds the kept modes.
    """

    input_mean: torch.Tensor
    input_std: torch.Tensor
    output_mean: torch.Tensor
    output_std: torch.Tensor

    def __init__(
        self,
        arch: FNOArchitecture,
        normalization: Normalization | FieldNormalization | None = None,
    ) -> None:
        super().__init__()
        self.arch = arch
        self.normalization = normalization
        self.normalized = normalization is not None
        if isinstance(normalization, FieldNormalization):
            for side, channels in (("input", arch.in_channels), ("output", arch.out_channels)):
                self.register_buffer(f"{side}_mean", torch.zeros(channels, *normalization.grid))
                self.register_buffer(f"{side}_std", torch.ones(channels, *normalization.grid))
        elif normalization is not None:
            for name, values in normalization:
                # Not part of the state dict: config.json holds them, in one place.
                self.register_buffer(name, torch.tensor(values), persistent=False)
        grid_channels = 0 if arch.positional_grid == "none" else arch.n_dim
        width = arch.hidden_channels
        lifting = (arch.in_channels + grid_channels, *arch.lifting_channels, width)
        self.lifting = PointwiseMLP(lifting, arch.lifting_activation or arch.activation)
        self.blocks = nn.ModuleList(FourierBlock(arch, layer) for layer in range(arch.n_layers))
        projection = (width, *arch.projection_channels, arch.out_channels)
        self.projection = PointwiseMLP(projection, arch.projection_activation or arch.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalized:
            x = (x - broadcast(self.input_mean, x)) / broadcast(self.input_std, x)
        if self.arch.positional_grid != "none":
            grid = positions(self.arch, x.shape[2:], x.dtype, x.device)
            x = torch.cat([x, grid.expand(x.shape[0], *grid.shape)], dim=1)
        x = self.lifting(x)
        padding = padding_points(self.arch, x.shape[2:])
        x = _pad(x, self.arch, padding)
        for block in self.blocks:
            x = block(x)
        x = _crop(x, padding)
        x = self.projection(x)
        if self.normalized:
            x = x * broadcast(self.output_std, x) + broadcast(self.output_mean, x)
        return x

    def double(self) -> Self:
        """Cast to float64, the complex weights too (which `nn.Module.double` leaves alone)."""
        to_precision(self, torch.float64)
        if isinstance(self.normalization, Normalization):
            for name, values in self.normalization:
                # as config.json has them, not rounded to float32 first
                self.get_buffer(name).copy_(torch.tensor(values, dtype=torch.float64))
        return self

    def float(self) -> Self:
        """Cast to float32, the complex weights too."""
        return to_precision(self, torch.float32)

    def compute_in(self, precision: Precision) -> Self:
        """Have the Fourier layers compute in a precision as `fourier_layer` takes it; all else stays float32."""
        for block in self.modules():
            if isinstance(block, FourierBlock):
                block.precision = precision
        return self

    def description(self) -> FNODescription:
        """This network for `turbofno_ops.compile_fno`, its own weights.

        Raises:
            ChainRefused: it is no plain chain of layers; the message says what stands in the way.
        """
        arch = self.arch
        unusual = _unusual(arch)
        if isinstance(self.normalization, FieldNormalization):
            unusual = "its normalisation is a field"
        if unusual is not None:
            raise ChainRefused(unusual)
        blocks = [block for block in self.blocks if isinstance(block, FourierBlock)]
        inputs = outputs = None
        if self.normalized:
            inputs = Scaling(self.input_mean, self.input_std)
            outputs = Scaling(self.output_mean, self.output_std)
        return FNODescription(
            in_channels=arch.in_channels,
            lifting=self.lifting.maps(),
            layers=tuple(block.linear_part() for block in blocks),
            projection=self.projection.maps(),
            activation=arch.activation,
            lifting_activation=arch.lifting_activation,
            projection_activation=arch.projection_activation,
            inputs=inputs,
            outputs=outputs,
            positions=partial(positions, arch) if arch.positional_grid != "none" else None,
            padding=partial(padding_points, arch) if arch.domain_padding is not None else None,
            refusal=partial(moved_modes, arch),
        )


def _unusual(arch: FNOArchitecture) -> str | None:
    """What keeps a network from being a plain chain on any grid."""
    if arch.norm != "none":
        return f"its layers have a norm ({arch.norm})"
    if arch.channel_mlp is not None:
        return "its layers have a channel MLP"
    if arch.resolution_scaling:
        return "its layers change the resolution"
    if arch.domain_padding is not None and arch.domain_padding.mode != "zeros":
        return f"its domain padding is not zeros ({arch.domain_padding.mode})"
    plain = arch.model_copy(update={"block": (), "last_block": ()})
    for last in (False, True):
        if arch.steps(last=last) != plain.steps(last=last):
            return f"its layers are {', '.join(arch.steps(last=last))}"
    return None


M = TypeVar("M", bound=nn.Module)


def to_precision(module: M, dtype: torch.dtype) -> M:
    """Cast every parameter and buffer of a module to `dtype`, complex ones to its complex twin."""
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.to(dtype.to_complex() if tensor.is_complex() else dtype)
    return module


def positions(
    arch: FNOArchitecture,
    size: Sequence[int],
    dtype: torch.dtype = torch.float64,
    device: torch.device | None = None,
) -> torch.Tensor:
    """The coordinates of every grid point in [0, 1], one channel an axis: [n_dim, *size]."""
    included = arch.positional_grid == "endpoint_included"
    start = 0.5 if arch.positional_grid == "cell_centres" else 0.0
    axes = [
        (torch.arange(n, dtype=dtype, device=device) + start) / max(n - 1 if included else n, 1)
        for n in size
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


def moved_modes(arch: FNOArchitecture, padded: Sequence[int]) -> str | None:
    """Why the layers of a network are not `spectral_conv` with its weights on a padded grid, or None."""
    if is_plain(arch, padded):
        return None
    grid = "x".join(map(str, padded))
    return f"on the grid {grid} its library keeps other modes or moves them (models/spectrum.py)"


def padding_points(arch: FNOArchitecture, size: tuple[int, ...]) -> list[tuple[int, int]]:
    """Points of domain padding before and after each axis of a grid of `size`; empty if there is none."""
    padding = arch.domain_padding
    if padding is None:
        return []
    if padding.points is not None:
        amounts = list(padding.points)
    else:
        assert padding.fraction is not None
        amounts = [round(f * n) for f, n in zip(padding.fraction, size, strict=True)]
    return [(amount if padding.sides == "both" else 0, amount) for amount in amounts]


def _pad(x: torch.Tensor, arch: FNOArchitecture, padding: list[tuple[int, int]]) -> torch.Tensor:
    if arch.domain_padding is None:
        return x
    mode = arch.domain_padding.mode
    # F.pad counts from the last axis
    amounts = [p for pair in reversed(padding) for p in pair]
    return F.pad(x, amounts, mode="constant" if mode == "zeros" else mode)


def _crop(x: torch.Tensor, padding: list[tuple[int, int]]) -> torch.Tensor:
    for axis, (before, after) in enumerate(padding, start=2):
        x = x.narrow(axis, before, x.shape[axis] - before - after)
    return x
