"""The peer: Fourier layers and whole models in plain PyTorch, as the published FNO codes write them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from models.blocks import Pointwise
from models.config import Activation
from models.fno import FNO
from turbofno_ops._activations import activate


def corners_of(weight: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """A weight [c_in, c_out, *modes] as those codes store it: contiguous, one tensor a corner of frequencies."""
    if weight.ndim == 3:
        return (weight.contiguous(),)
    half = (weight.shape[2] + 1) // 2
    return weight[:, :, :half].contiguous(), weight[:, :, half:].contiguous()


def spectral_conv(x: torch.Tensor, corners: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """rfftn, einsum a corner into zeros, irfftn; 1D and 2D."""
    if x.ndim == 3:
        (low,) = corners
        spectrum = torch.fft.rfft(x)
        out = spectrum.new_zeros(x.shape[0], low.shape[1], spectrum.shape[-1])
        modes = low.shape[-1]
        out[:, :, :modes] = torch.einsum("bix,iox->box", spectrum[:, :, :modes], low)
        return torch.fft.irfft(out, n=x.shape[-1])
    low, high = corners
    (rows, columns), below = low.shape[-2:], high.shape[-2]
    spectrum = torch.fft.rfft2(x)
    out = spectrum.new_zeros(x.shape[0], low.shape[1], *spectrum.shape[-2:])
    out[:, :, :rows, :columns] = torch.einsum(
        "bixy,ioxy->boxy", spectrum[:, :, :rows, :columns], low
    )
    out[:, :, -below:, :columns] = torch.einsum(
        "bixy,ioxy->boxy", spectrum[:, :, -below:, :columns], high
    )
    return torch.fft.irfft2(out, s=x.shape[-2:])


def pointwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """A linear map of the channels as a 1x1 convolution, which cuDNN runs in TF32 unless told otherwise."""
    if x.ndim == 3:
        return F.conv1d(x, weight[:, :, None], bias)
    return F.conv2d(x, weight[:, :, None, None], bias)


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
    """The same network with the same weights, every layer as the published codes write it.

    Raises:
        ValueError: a layer that the published network does not have.
    """
    twin = copy.deepcopy(model)
    twin.blocks = nn.ModuleList(_Block(block) for block in twin.blocks)
    for part in (twin.lifting, twin.projection):
        part.linears = nn.ModuleList(_Pointwise(linear) for linear in part.linears)
    return twin.eval().requires_grad_(False)
