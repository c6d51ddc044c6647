"""The Fourier neural operator as a torch module, in physical units at both ends."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial, reduce
from itertools import pairwise
from typing import Self, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from models.config import Activation, FNOArchitecture, Normalization
from turbofno_ops import (
    ChainRefused,
    FNODescription,
    FourierMap,
    PointwiseMap,
    Scaling,
    fourier_layer,
    spectral_conv,
)
from turbofno_ops._activations import ACTIVATION_FUNCTIONS


def activate(x: torch.Tensor, name: Activation) -> torch.Tensor:
    """Apply the named activation (the names of `turbofno_ops.ACTIVATIONS`)."""
    return ACTIVATION_FUNCTIONS[name](x)


def _broadcast(per_channel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """[channels] -> [channels, 1, ..] so that it broadcasts over the grid axes of `like`."""
    return per_channel.view(-1, *[1] * (like.ndim - 2))


class Pointwise(nn.Module):
    """A linear map of the channels, the same at every grid point (a 1x1 convolution).

    weight [c_out, c_in], bias [c_out]. Input [batch, c_in, *grid], output [batch, c_out, *grid].
    """

    def __init__(self, c_in: int, c_out: int, *, bias: bool = True) -> None:
        super().__init__()
        bound = 1 / math.sqrt(c_in)
        self.weight = nn.Parameter(torch.empty(c_out, c_in).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(c_out).uniform_(-bound, bound)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        flat = x.flatten(2)
        weight = self.weight.expand(x.shape[0], -1, -1)
        if self.bias is None:
            y = torch.bmm(weight, flat)
        else:
            # one pass over y instead of two
            y = torch.baddbmm(self.bias[:, None], weight, flat)
        return y.view(x.shape[0], -1, *x.shape[2:])


class SoftGate(nn.Module):
    """A learnt factor for each channel: weight [channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * _broadcast(self.weight, x)


def _skip(kind: str, channels: int, *, bias: bool) -> nn.Module | None:
    if kind == "linear":
        return Pointwise(channels, channels, bias=bias)
    if kind == "soft-gating":
        return SoftGate(channels)
    return nn.Identity() if kind == "identity" else None


class PointwiseMLP(nn.Module):
    """Pointwise linear maps with an activation between them, none after the last."""

    def __init__(self, widths: tuple[int, ...], activation: Activation) -> None:
        super().__init__()
        pairs = pairwise(widths)
        self.linears = nn.ModuleList(Pointwise(c_in, c_out) for c_in, c_out in pairs)
        self.activation: Activation = activation

    def maps(self) -> tuple[PointwiseMap, ...]:
        """The linear maps."""
        linears = [linear for linear in self.linears if isinstance(linear, Pointwise)]
        return tuple(PointwiseMap(linear.weight, linear.bias) for linear in linears)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for i, linear in enumerate(self.linears):
            x = linear(x if i == 0 else activate(x, self.activation))
        return x


class InstanceNorm(nn.Module):
    """Zero mean and unit variance for each sample and channel over the grid, no parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(x)


def _norm(arch: FNOArchitecture) -> nn.Module | None:
    if arch.norm == "none":
        return None
    if arch.norm == "instance_norm":
        return InstanceNorm()
    return nn.GroupNorm(arch.norm_groups, arch.hidden_channels)


class FourierBlock(nn.Module):
    """One hidden layer: spectral convolution, skip, norm, activation, then the optional channel MLP.

    `spectral_weight` is complex [c_in, c_out, *modes]; its memory is ordered [*modes, c_in, c_out], which
    is how the ops read it. The last block of a network applies no activation.
    """

    def __init__(self, arch: FNOArchitecture, *, last: bool) -> None:
        super().__init__()
        width = arch.hidden_channels
        n = arch.n_dim
        weight = torch.randn(*arch.modes, width, width, dtype=torch.complex64)
        weight *= math.sqrt(2.0) / width
        self.spectral_weight = nn.Parameter(weight.permute(n, n + 1, *range(n)))
        self.spectral_bias = nn.Parameter(torch.zeros(width)) if arch.spectral_bias else None
        self.skip = _skip(arch.skip, width, bias=arch.skip_bias)
        self.norm = _norm(arch)
        self.activation: Activation = "none" if last else arch.activation
        mlp = arch.channel_mlp
        self.mlp: PointwiseMLP | None = None
        self.mlp_skip: nn.Module | None = None
        self.mlp_norm: nn.Module | None = None
        if mlp is not None:
            self.mlp = PointwiseMLP((width, mlp.hidden_channels, width), arch.activation)
            self.mlp_skip = _skip(mlp.skip, width, bias=False)
            self.mlp_norm = _norm(arch)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self._spectral_part(x)
        if self.mlp is None:
            return y
        y = self.mlp(y)
        if self.mlp_skip is not None:
            y = y + self.mlp_skip(x)
        if self.mlp_norm is not None:
            y = self.mlp_norm(y)
        return activate(y, self.activation)

    def linear_part(self) -> FourierMap:
        """What stands before the activation of a block without norm and channel MLP, any skip as a matrix."""
        skip = self.skip
        matrix: torch.Tensor | None = None
        if isinstance(skip, Pointwise):
            matrix = skip.weight
        elif isinstance(skip, SoftGate):
            matrix = skip.weight.diag()
        elif skip is not None:
            matrix = torch.eye(self.spectral_weight.shape[1])
        return FourierMap(self.spectral_weight, matrix, self._bias())

    def _bias(self) -> torch.Tensor | None:
        biases = [self.spectral_bias, self.skip.bias if isinstance(self.skip, Pointwise) else None]
        given: list[torch.Tensor] = [bias for bias in biases if bias is not None]
        return reduce(torch.add, given) if given else None

    def _spectral_part(self, x: torch.Tensor) -> torch.Tensor:
        skip = self.skip
        if self.norm is None and (skip is None or isinstance(skip, Pointwise)):
            return fourier_layer(
                x,
                self.spectral_weight,
                skip_weight=skip.weight if skip is not None else None,
                bias=self._bias(),
                activation=self.activation,
            )
        y = spectral_conv(x, self.spectral_weight)
        if self.spectral_bias is not None:
            y = y + _broadcast(self.spectral_bias, y)
        if self.norm is not None:
            y = self.norm(y)
        if skip is not None:
            y = y + skip(x)
        return activate(y, self.activation)


class FNO(nn.Module):
    """Fourier neural operator: lift, Fourier blocks, project (Li et al. 2020, Figure 2).

    Takes and gives physical units: [batch, in_channels, *grid] -> [batch, out_channels, *grid],
    float32 (float64 after `.double()`), any grid that holds the kept modes.
    """

    input_mean: torch.Tensor
    input_std: torch.Tensor
    output_mean: torch.Tensor
    output_std: torch.Tensor

    def __init__(self, arch: FNOArchitecture, normalization: Normalization | None = None) -> None:
        super().__init__()
        self.arch = arch
        self.normalized = normalization is not None
        if normalization is not None:
            for name, values in normalization:
                # Not part of the state dict: config.json holds them, in one place.
                self.register_buffer(name, torch.tensor(values), persistent=False)
        grid_channels = 0 if arch.positional_grid == "none" else arch.n_dim
        width = arch.hidden_channels
        lifting = (arch.in_channels + grid_channels, *arch.lifting_channels, width)
        self.lifting = PointwiseMLP(lifting, arch.activation)
        self.blocks = nn.ModuleList(
            FourierBlock(arch, last=i == arch.n_layers - 1) for i in range(arch.n_layers)
        )
        projection = (width, *arch.projection_channels, arch.out_channels)
        self.projection = PointwiseMLP(projection, arch.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.normalized:
            x = (x - _broadcast(self.input_mean, x)) / _broadcast(self.input_std, x)
        if self.arch.positional_grid != "none":
            grid = positions(self.arch, x.shape[2:], x.dtype, x.device)
            x = torch.cat([x, grid.expand(x.shape[0], *grid.shape)], dim=1)
        x = self.lifting(x)
        padding = padding_points(self.arch, x.shape[2:])
        x = _pad(x, padding)
        for block in self.blocks:
            x = block(x)
        x = _crop(x, padding)
        x = self.projection(x)
        if self.normalized:
            x = x * _broadcast(self.output_std, x) + _broadcast(self.output_mean, x)
        return x

    def double(self) -> Self:
        """Cast to float64, the complex weights too (which `nn.Module.double` leaves alone)."""
        return to_precision(self, torch.float64)

    def float(self) -> Self:
        """Cast to float32, the complex weights too."""
        return to_precision(self, torch.float32)

    def description(self) -> FNODescription:
        """This network for `turbofno_ops.compile_fno`, its own weights.

        Raises:
            ChainRefused: it is no plain chain of layers; the message says what stands in the way.
        """
        arch = self.arch
        if arch.norm != "none":
            raise ChainRefused(f"its layers have a norm ({arch.norm})")
        if arch.channel_mlp is not None:
            raise ChainRefused("its layers have a channel MLP")
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
            inputs=inputs,
            outputs=outputs,
            positions=partial(positions, arch) if arch.positional_grid != "none" else None,
            padding=partial(padding_points, arch) if arch.domain_padding is not None else None,
        )


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
    axes = [
        torch.arange(n, dtype=dtype, device=device) / max(n - 1 if included else n, 1) for n in size
    ]
    return torch.stack(torch.meshgrid(*axes, indexing="ij"))


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


def _pad(x: torch.Tensor, padding: list[tuple[int, int]]) -> torch.Tensor:
    # F.pad counts from the last axis
    return F.pad(x, [p for pair in reversed(padding) for p in pair]) if padding else x


def _crop(x: torch.Tensor, padding: list[tuple[int, int]]) -> torch.Tensor:
    for axis, (before, after) in enumerate(padding, start=2):
        x = x.narrow(axis, before, x.shape[axis] - before - after)
    return x
