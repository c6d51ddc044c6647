"""The layers of a Fourier neural operator: pointwise maps, norms, the Fourier block."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn

from turbofno.models.core.architecture import Activation, BlockStep, FNOArchitecture
from turbofno.models.core.config import Precision
from turbofno.models.core.resample import resample
from turbofno.models.core.spectrum import is_plain, spectral
from turbofno_ops import PointwiseMap, fourier_layer
from turbofno_ops._activations import activate


def broadcast(per_channel: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Reshape [channels] to [channels, 1, ..] to broadcast over the grid axes of `like`; leave [channels, *grid] as it is."""
    return per_channel.view(*per_channel.shape, *[1] * (like.ndim - 1 - per_channel.ndim))


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
            # one kernel for product and bias
            y = torch.baddbmm(self.bias[:, None], weight, flat)
        return y.view(x.shape[0], len(self.weight), *x.shape[2:])


class SoftGate(nn.Module):
    """A learned factor for each channel: weight [channels]."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * broadcast(self.weight, x)


def _skip(kind: str, channels: int, *, bias: bool) -> nn.Module | None:
    if kind == "linear":
        return Pointwise(channels, channels, bias=bias)
    if kind == "soft-gating":
        return SoftGate(channels)
    return nn.Identity() if kind == "identity" else None


class PointwiseMLP(nn.Module):
    """Pointwise linear maps with an activation between them."""

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
    """Instance normalisation over the grid, without parameters."""

    eps = 1e-5

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.instance_norm(x, eps=self.eps)


class Affine(nn.Module):
    """A factor and an offset for each channel (a batch norm whose statistics are fixed)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * broadcast(self.weight, x) + broadcast(self.bias, x)


def _norm(arch: FNOArchitecture) -> nn.Module:
    if arch.norm == "instance_norm":
        return InstanceNorm()
    if arch.norm == "affine":
        return Affine(arch.hidden_channels)
    return nn.GroupNorm(arch.norm_groups, arch.hidden_channels)


def scaled(scales: Sequence[float], size: Sequence[int]) -> tuple[int, ...]:
    """The output grid of a layer that scales the resolution by `scales`, one factor per axis."""
    return tuple(round(n * scale) for n, scale in zip(size, scales, strict=True))


def _distinct(steps: tuple[BlockStep, ...]) -> tuple[str, ...]:
    """The steps, with the second norm renamed to its module, "mlp_norm"."""
    norms = [i for i, step in enumerate(steps) if step == "norm"]
    return tuple("mlp_norm" if i in norms[1:] else step for i, step in enumerate(steps))


class FourierBlock(nn.Module):
    """One hidden layer: the steps of `FNOArchitecture.block` (or `last_block`), in order.

    `spectral_weight` is complex [c_in, c_out, *modes], stored in the order [*modes, c_in, c_out] that the ops read.
    Where the steps allow it, one op computes spectral convolution, skip and activation. `steps` names the second
    norm "mlp_norm".
    """

    def __init__(self, arch: FNOArchitecture, layer: int) -> None:
        super().__init__()
        self.arch = arch
        width = arch.hidden_channels
        n = arch.n_dim
        weight = torch.empty(*arch.modes, width, width, dtype=torch.complex64)
        # On the meta device PyTorch imports sympy to draw nothing, which takes as long as a third of its own import.
        if not weight.is_meta:
            torch.view_as_real(weight).normal_(std=math.sqrt(0.5))
            weight *= math.sqrt(2.0) / width
        self.spectral_weight = nn.Parameter(weight.permute(n, n + 1, *range(n)))
        self.spectral_bias = nn.Parameter(torch.zeros(width)) if arch.spectral_bias else None
        self.skip = _skip(arch.skip, width, bias=arch.skip_bias)
        self.steps = _distinct(arch.steps(last=layer == arch.n_layers - 1))
        norms = self.steps.count("norm") + self.steps.count("mlp_norm")
        self.norm = _norm(arch) if norms > 0 else None
        self.mlp: PointwiseMLP | None = None
        self.mlp_skip: nn.Module | None = None
        mlp = arch.channel_mlp
        if mlp is not None:
            widths = (width, mlp.hidden_channels, width)
            self.mlp = PointwiseMLP(widths, mlp.activation or arch.activation)
            self.mlp_skip = _skip(mlp.skip, width, bias=False)
        self.mlp_norm = _norm(arch) if norms > 1 else None
        self.precision: Precision = "fp32"
        self.scaling = arch.resolution_scaling[layer] if arch.resolution_scaling else None
        self._split(self.steps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, y = self._run(self.before, x, x)
        if self.joined and is_plain(self.arch, x.shape[2:]):
            y = self._fourier_layer(x)
        else:
            x, y = self._run(self.layer, x, y)
        return self._run(self.after, x, y)[1]

    def _split(self, steps: tuple[str, ...]) -> None:
        """Split the steps into those before, inside and after one call of `fourier_layer`."""
        start = steps.index("spectral")
        end = start + 1
        linear_skip = isinstance(self.skip, Pointwise) and steps[end : end + 1] == ("skip",)
        end += linear_skip
        end += steps[end : end + 1] == ("activation",)
        self.before, self.layer, self.after = steps[:start], steps[start:end], steps[end:]
        # the op has one input for its spectral and its skip branch
        one_field = start == 0 or steps[start - 1] == "branch"
        self.activation: Activation = (
            self.arch.activation if self.layer[-1] == "activation" else "none"
        )
        self.joined = one_field and (linear_skip or self.skip is None)

    def _bias(self) -> torch.Tensor | None:
        biases = [self.spectral_bias, self.skip.bias if isinstance(self.skip, Pointwise) else None]
        given: list[torch.Tensor] = [bias for bias in biases if bias is not None]
        return reduce(torch.add, given) if given else None

    def _fourier_layer(self, x: torch.Tensor) -> torch.Tensor:
        return fourier_layer(
            x,
            self.spectral_weight,
            skip_weight=self.skip.weight if isinstance(self.skip, Pointwise) else None,
            bias=self._bias(),
            activation=self.activation,
            precision=self.precision,
        )

    def _run(
        self, steps: tuple[str, ...], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Run some steps on the fields x and y; `FNOArchitecture` defines the steps."""
        for step in steps:
            if step == "branch":
                x = y
            elif step == "spectral":
                y = self._spectral(y)
            elif step in ("skip", "mlp_skip"):
                y = y + self._at_size(self.get_submodule(step)(x), y)
            elif step == "activation":
                y = activate(y, self.arch.activation)
            elif step == "tanh":
                y = torch.tanh(y)
            else:
                y = self.get_submodule(step)(y)
        return x, y

    def _spectral(self, x: torch.Tensor) -> torch.Tensor:
        size: Sequence[int] | None = None
        if self.scaling is not None:
            size = scaled(self.scaling, x.shape[2:])
        y = spectral(x, self.spectral_weight, self.arch, size, precision=self.precision)
        return y if self.spectral_bias is None else y + broadcast(self.spectral_bias, y)

    def _at_size(self, skipped: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return skipped if self.scaling is None else resample(skipped, like.shape[2:])
