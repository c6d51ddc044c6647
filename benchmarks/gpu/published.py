"""The peer: Fourier layers and whole models in plain PyTorch, as published FNO codes write them."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from turbofno.models.core.architecture import Activation
from turbofno.models.core.blocks import Pointwise
from turbofno.models.core.fno import FNO
from turbofno_ops._activations import activate


def _corners(rows: Sequence[int]) -> list[tuple[slice, ...]]:
    """Slices of the kept frequencies on every axis but the last: all combinations of low and high ones."""
    each = [(slice(0, (count + 1) // 2), slice(-(count // 2), None)) for count in rows]
    return list(itertools.product(*each))


def corners_of(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A weight [c_in, c_out, *modes] as a contiguous tensor for each corner of frequencies."""
    return tuple(weight[:, :, *corner].contiguous() for corner in _corners(weight.shape[2:-1]))


def spectral_conv(x: torch.Tensor, corners: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """rfftn, an einsum for each corner, irfftn."""
    axes = list(range(2, x.ndim))
    modes = corners[0].shape[-1]
    rows = [
        low + high
        for low, high in zip(corners[0].shape[2:-1], corners[-1].shape[2:-1], strict=True)
    ]
    spectrum = torch.fft.rfftn(x, dim=axes)
    out = spectrum.new_zeros(x.shape[0], corners[0].shape[1], *spectrum.shape[2:])
    for corner, weight in zip(_corners(rows), corners, strict=True):
        place = (slice(None), slice(None), *corner, slice(0, modes))
        out[place] = torch.einsum("bi...,io...->bo...", spectrum[place], weight)
    return torch.fft.irfftn(out, s=x.shape[2:], dim=axes)


def pointwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A linear map of the channels as a 1x1 convolution, for which cuDNN uses TF32 by default."""
    convolve = (F.conv1d, F.conv2d, F.conv3d)[x.ndim - 3]
    return convolve(x, weight.view(*weight.shape, *[1] * (x.ndim - 2)), bias)


def fourier_layer(
    x: torch.Tensor,
    corners: tuple[torch.Tensor, ...],
    skip: torch.Tensor,
    bias: torch.Tensor | None,
    activation: Activation = "gelu",
) -> torch.Tensor:
    """activation(spectral convolution + 1x1 convolution)."""
    return activate(spectral_conv(x, corners) + pointwise(x, skip, bias), activation)


class _Block(nn.Module):
    corners: nn.ParameterList

    def __init__(self, block: Any) -> None:
        super().__init__()
        skip = block.skip
        if not isinstance(skip, Pointwise) or not block.joined or block.before or block.after:
            raise ValueError("the published network has linear skips, no norms and no channel MLPs")
        if block.spectral_bias is not None:
            raise ValueError("the published network has no spectral bias")
        self.corners = nn.ParameterList(corners_of(block.spectral_weight.detach()))
        self.skip = skip
        self.activation = block.activation

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        corners = tuple(self.corners)
        return fourier_layer(x, corners, self.skip.weight, self.skip.bias, self.activation)


class _Pointwise(nn.Module):
    def __init__(self, linear: Any) -> None:
        super().__init__()
        self.weight, self.bias = linear.weight, linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return pointwise(x, self.weight, self.bias)


def published(model: FNO) -> FNO:
    """The same network with the same weights, every layer as published codes write it.

    Raises:
        ValueError: the network has a layer that published ones do not have.
    """
    twin = copy.deepcopy(model)
    twin.blocks = nn.ModuleList(_Block(block) for block in twin.blocks)
    for part in (twin.lifting, twin.projection):
        part.linears = nn.ModuleList(_Pointwise(linear) for linear in part.linears)
    return twin.eval().requires_grad_(False)
