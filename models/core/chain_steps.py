"""A Fourier block as the steps of a chain, for `turbofno_ops.compile_fno`."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from turbofno.models.core import blocks
from turbofno.models.core.spectrum import spectral_terms
from turbofno_ops import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Branch,
    ChainRefused,
    Normalize,
    Spectral,
)
from turbofno_ops.description import Block, BlockStep


def chain_steps(block: blocks.FourierBlock) -> Block:
    """The steps of a block; they share its weights.

    Raises:
        ChainRefused: a 3D block that changes the resolution adds a skip of the same grid.
    """
    steps: list[BlockStep] = []
    resampled = False
    # In 1D and 2D, resampling to the same grid is the identity (models/core/resample.py).
    filters = block.scaling is not None and block.arch.n_dim > 2
    for step in block.steps:
        if step == "spectral":
            resampled = True
        elif step == "branch":
            resampled = False
        elif step in ("skip", "mlp_skip") and filters and not resampled:
            raise ChainRefused(
                f"a layer changes the resolution, but its step {step!r} adds a field of the same grid"
            )
        steps += _step(block, step)
    return tuple(steps)


def _step(block: blocks.FourierBlock, step: str) -> list[BlockStep]:
    if step == "spectral":
        return [_spectral(block), *_shift(block.spectral_bias)]
    if step == "activation":
        return [Activate(block.arch.activation)]
    if step == "tanh":
        return [Activate("tanh")]
    if step == "branch":
        return [Branch()]
    return _of_module(block.get_submodule(step), block.arch.hidden_channels)


def _of_module(module: nn.Module, channels: int) -> list[BlockStep]:
    match module:
        case blocks.Pointwise():
            return [AddMap(module.weight), *_shift(module.bias)]
        case blocks.SoftGate():
            return [AddGate(module.weight)]
        case nn.Identity():
            return [AddGate(torch.ones(channels))]
        case blocks.PointwiseMLP():
            first, second = module.maps()
            return [MLP(first, module.activation, second)]
        case blocks.InstanceNorm():
            return [Normalize(channels, module.eps)]
        case nn.GroupNorm():
            return [Normalize(module.num_groups, module.eps, module.weight, module.bias)]
        case blocks.Affine():
            return [Affine(module.weight, module.bias)]
    raise TypeError(f"a block holds an unknown module, {type(module).__name__}")


def _spectral(block: blocks.FourierBlock) -> Spectral:
    scaling = block.scaling
    return Spectral(
        block.spectral_weight,
        terms=partial(spectral_terms, block.arch),
        out_size=None if scaling is None else partial(blocks.scaled, scaling),
    )


def _shift(bias: torch.Tensor | None) -> list[BlockStep]:
    return [] if bias is None else [Affine(None, bias)]
