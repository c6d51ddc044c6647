"""Products over channels: one matrix per mode, or one matrix for all grid points."""

from __future__ import annotations

import torch

from turbofno_ops._activations import activate_in_place
from turbofno_ops.description import PointwiseMap


def mode_major(weight: torch.Tensor) -> torch.Tensor:
    """Return a view of [c_in, c_out, *modes] as [*modes, c_in, c_out]."""
    return weight.permute(*range(2, weight.ndim), 0, 1)


def mix(z: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Multiply each mode by its matrix: [*modes, batch, c_in] by [*modes, c_in, c_out]."""
    *modes, batch, c_in = z.shape
    # a batched complex product of strided matrices is several times slower
    flat = z.reshape(-1, batch, c_in).contiguous()
    mixed = torch.bmm(flat, weight.reshape(-1, *weight.shape[-2:]))
    return mixed.view(*modes, batch, weight.shape[-1])


def pointwise(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """Return weight . x + bias as a new contiguous tensor: [batch, c_in, *grid] -> [batch, c_out, *grid]."""
    matrices = weight.expand(x.shape[0], -1, -1)
    flat = x.flatten(2)
    # baddbmm adds the bias in the same pass
    y = torch.bmm(matrices, flat) if bias is None else torch.baddbmm(bias[:, None], matrices, flat)
    return y.view(x.shape[0], len(weight), *x.shape[2:])


def apply_maps(x: torch.Tensor, maps: tuple[PointwiseMap, ...], activation: str) -> torch.Tensor:
    """Return the maps of x, one after another with the activation between them, as a new contiguous tensor."""
    for i, linear in enumerate(maps):
        x = pointwise(activate_in_place(x, activation) if i else x, linear.weight, linear.bias)
    return x


def bias_of(linear: PointwiseMap) -> torch.Tensor:
    """Return the bias of a map, zeros if it has none."""
    return linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias


def skip_and_bias(
    x: torch.Tensor | None,
    skip: torch.Tensor | None,
    bias: torch.Tensor | None,
    shape: tuple[int, ...],
) -> torch.Tensor | None:
    """Return skip . x + bias as a new contiguous tensor of `shape`, or None if both are None."""
    if skip is not None and x is not None:
        return pointwise(x, skip, bias)
    if bias is None:
        return None
    per_channel = bias.view(-1, *[1] * (len(shape) - 2))
    # a copy also where one field on a grid of one point is the bias itself, as callers write to the result
    return per_channel.expand(shape).clone(memory_format=torch.contiguous_format)
