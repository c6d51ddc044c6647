"""The same network in neuraloperator 2.0 with the same weights: a peer in benchmarks, a reference in tests."""

from __future__ import annotations

from typing import Any

import torch
from neuralop.models import FNO as NeuralopFNO

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.fno import FNO, to_precision


def twin(ours: FNO) -> torch.nn.Module:
    """A neuraloperator model that computes what `ours` does.

    Raises:
        ValueError: the architecture uses something that neuraloperator 2.0 does differently.
    """
    arch = ours.arch
    _check(arch)
    padding = arch.domain_padding
    mlp = arch.channel_mlp
    theirs = NeuralopFNO(
        # theirs counts both signs of the last axis and keeps m // 2 + 1 columns
        n_modes=(*arch.modes[:-1], 2 * (arch.modes[-1] - 1)),
        in_channels=arch.in_channels,
        out_channels=arch.out_channels,
        hidden_channels=arch.hidden_channels,
        n_layers=arch.n_layers,
        lifting_channel_ratio=arch.lifting_channels[0] / arch.hidden_channels,
        projection_channel_ratio=arch.projection_channels[0] / arch.hidden_channels,
        positional_embedding=None if arch.positional_grid == "none" else "grid",
        domain_padding=list(padding.fraction) if padding and padding.fraction else None,
        norm=None if arch.norm == "none" else arch.norm,
        fno_skip=arch.skip,
        use_channel_mlp=mlp is not None,
        channel_mlp_skip=mlp.skip if mlp is not None else "soft-gating",
        channel_mlp_expansion=mlp.hidden_channels / arch.hidden_channels if mlp else 0.5,
    )
    to_precision(theirs, next(ours.projection.parameters()).dtype)
    state = theirs.state_dict()
    state.pop("_metadata", None)
    filled = _weights(ours)
    if set(filled) != set(state):
        raise ValueError(f"keys differ: {sorted(set(filled) ^ set(state))}")
    shaped = {name: value.reshape(state[name].shape) for name, value in filled.items()}
    theirs.load_state_dict(shaped)
    return theirs.eval()


def _check(arch: FNOArchitecture) -> None:
    wrong = {
        # without a channel MLP, neuraloperator 2.0 applies the activation twice in a block
        "channel_mlp": arch.channel_mlp is None,
        "skip_bias": arch.skip_bias and arch.skip == "linear",
        "spectral_bias": not arch.spectral_bias,
        "lifting_channels": len(arch.lifting_channels) != 1,
        "projection_channels": len(arch.projection_channels) != 1,
        "positional_grid": arch.positional_grid == "endpoint_included",
        "activation": arch.activation != "gelu",
        "domain_padding": arch.domain_padding is not None and arch.domain_padding.sides != "both",
    }
    for name in ("block", "last_block", "lifting_activation", "projection_activation"):
        wrong[name] = bool(getattr(arch, name))
    wrong["resolution_scaling"] = bool(arch.resolution_scaling)
    if any(wrong.values()):
        raise ValueError(
            f"no twin in neuraloperator for {[name for name, bad in wrong.items() if bad]}"
        )


def _weights(ours: FNO) -> dict[str, torch.Tensor]:
    """Our parameters under neuraloperator's names, in our shapes."""
    filled: dict[str, torch.Tensor] = {}
    for part in ("lifting", "projection"):
        for i, linear in enumerate(getattr(ours, part).linears):
            filled[f"{part}.fcs.{i}.weight"] = linear.weight.data
            filled[f"{part}.fcs.{i}.bias"] = linear.bias.data
    block: Any
    for i, block in enumerate(ours.blocks):
        spectral = block.spectral_weight.data
        shifted = tuple(range(2, spectral.ndim - 1))
        # theirs counts frequencies from the most negative one up
        filled[f"fno_blocks.convs.{i}.weight.tensor"] = (
            torch.fft.fftshift(spectral, dim=shifted) if shifted else spectral
        )
        filled[f"fno_blocks.convs.{i}.bias"] = block.spectral_bias.data
        if ours.arch.skip == "linear":
            filled[f"fno_blocks.fno_skips.{i}.conv.weight"] = block.skip.weight.data
        elif ours.arch.skip == "soft-gating":
            filled[f"fno_blocks.fno_skips.{i}.weight"] = block.skip.weight.data
        if block.mlp is not None:
            for j, linear in enumerate(block.mlp.linears):
                filled[f"fno_blocks.channel_mlp.{i}.fcs.{j}.weight"] = linear.weight.data
                filled[f"fno_blocks.channel_mlp.{i}.fcs.{j}.bias"] = linear.bias.data
            if ours.arch.channel_mlp is not None and ours.arch.channel_mlp.skip == "linear":
                filled[f"fno_blocks.channel_mlp_skips.{i}.conv.weight"] = block.mlp_skip.weight.data
            elif ours.arch.channel_mlp is not None and ours.arch.channel_mlp.skip == "soft-gating":
                filled[f"fno_blocks.channel_mlp_skips.{i}.weight"] = block.mlp_skip.weight.data
        for j, norm in enumerate((block.norm, block.mlp_norm)):
            if isinstance(norm, torch.nn.GroupNorm):
                filled[f"fno_blocks.norm.{2 * i + j}.weight"] = norm.weight.data
                filled[f"fno_blocks.norm.{2 * i + j}.bias"] = norm.bias.data
    return filled
