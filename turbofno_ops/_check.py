"""Validation of an FNODescription: shapes, dtypes and activation names."""

from __future__ import annotations

from typing import get_args

import torch

from turbofno_ops._activations import parse_activation
from turbofno_ops.description import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    BlockStep,
    Branch,
    ChainRefused,
    FNODescription,
    Normalize,
    PaddingMode,
    PointwiseMap,
    Scaling,
    Spectral,
)


def check(description: FNODescription) -> None:
    """Check all parts of a description.

    Raises:
        TypeError: It is no FNODescription.
        ChainRefused: Its parts are not consistent.
    """
    if not isinstance(description, FNODescription):
        raise TypeError(
            f"the network must be an FNODescription, got {type(description).__name__}; turbofno's FNO makes one by "
            "description()"
        )
    spectral = [s for block in description.blocks for s in block if isinstance(s, Spectral)]
    counts = [sum(isinstance(s, Spectral) for s in block) for block in description.blocks]
    if not counts or set(counts) != {1}:
        raise ChainRefused(f"its blocks have {counts} spectral convolutions, expected one each")
    _check_spectral(description, spectral)
    _check_activation(description.lifting_activation)
    _check_activation(description.projection_activation)
    if description.padding_mode not in get_args(PaddingMode):
        raise ChainRefused(
            f"its padding mode is {description.padding_mode!r}, not one of {get_args(PaddingMode)}"
        )
    # the number of positions is known on a grid only
    given = description.in_channels if description.positions is None else None
    width = _through(description.lifting, given)
    for block in description.blocks:
        x_width = width
        for step in block:
            if isinstance(step, Branch):
                x_width = width
            width = _after_step(step, width, x_width)
    width = _through(description.projection, width)
    for what, scaling, channels in (
        ("inputs", description.inputs, description.in_channels),
        ("outputs", description.outputs, width),
    ):
        if scaling is not None:
            _check_scaling(what, scaling, channels)
    scalings = [of for of in (description.inputs, description.outputs) if of is not None]
    one_grid = all(step.out_size is None for step in spectral)
    if one_grid and len({of.mean.shape[1:] for of in scalings if of.mean.ndim > 1}) > 1:
        raise ChainRefused("the means of its inputs and outputs are fields on different grids")


def _check_spectral(description: FNODescription, spectral: list[Spectral]) -> None:
    for step in spectral:
        if step.weight.ndim < 3 or not step.weight.numel():
            raise ChainRefused(
                f"a spectral weight must be [c_in, c_out, *modes] without empty axes, got shape {tuple(step.weight.shape)}"
            )
    if len({step.weight.ndim for step in spectral}) > 1:
        raise ChainRefused("its layers have different numbers of grid axes")
    dtypes = {step.weight.dtype for step in spectral}
    if dtypes not in ({torch.complex64}, {torch.complex128}):
        raise ChainRefused(
            f"its spectral weights are {', '.join(sorted(map(str, dtypes)))}, expected all complex64 or all complex128; "
            "convert them with weight.to(torch.complex64)"
        )
    scaled = any(step.out_size is not None for step in spectral)
    if scaled and description.resample is None:
        raise ChainRefused("its layers change the grid but `resample` is None")
    if scaled and description.padding is not None:
        raise ChainRefused(
            "its layers change the grid and its domain is padded; only one of these is supported"
        )


def _through(maps: tuple[PointwiseMap, ...], width: int | None) -> int:
    if not maps:
        raise ChainRefused("its lifting and its projection need at least one map each")
    for linear in maps:
        width = _after_map(linear, width)
    assert width is not None
    return width


def _after_map(linear: PointwiseMap, width: int | None) -> int:
    if linear.weight.ndim != 2:
        raise ChainRefused(
            f"the weight of a map must be [c_out, c_in], got shape {tuple(linear.weight.shape)}"
        )
    c_out, c_in = linear.weight.shape
    if width is not None and c_in != width:
        raise ChainRefused(f"a map takes {c_in} channels but gets {width}")
    _check_shape("a bias", linear.bias, (c_out,))
    return c_out


def _after_step(step: BlockStep, width: int, x_width: int) -> int:
    """Check a step and return the channels of y after it."""
    match step:
        case Spectral(weight):
            if weight.shape[0] != width:
                raise ChainRefused(f"a map takes {weight.shape[0]} channels but gets {width}")
            return weight.shape[1]
        case MLP(first, activation, second):
            _check_activation(activation)
            return _after_map(second, _after_map(first, width))
        case AddMap(weight):
            _check_shape("a skip", weight, (width, x_width))
        case AddGate(weight):
            if x_width != width:
                raise ChainRefused(f"a gate adds {x_width} channels to {width}")
            _check_shape("a gate", weight, (width,))
        case Affine(scale, shift):
            _check_shape("a scale", scale, (width,))
            _check_shape("a shift", shift, (width,))
        case Normalize(groups, _, scale, shift, offset):
            if groups < 1 or width % groups:
                raise ChainRefused(f"a norm cannot split {width} channels into {groups} groups")
            for tensor in (scale, shift, offset):
                _check_shape("a parameter of a norm", tensor, (width,))
        case Activate(activation):
            _check_activation(activation)
        case Branch():
            pass
        case _:
            kinds = ", ".join(kind.__name__ for kind in get_args(BlockStep))
            raise ChainRefused(f"a block has the step {step!r:.80}; steps are objects of {kinds}")
    return width


def _check_activation(activation: str) -> None:
    try:
        parse_activation(activation)
    except ValueError as error:
        raise ChainRefused(str(error)) from None


def _check_scaling(what: str, scaling: Scaling, channels: int) -> None:
    grid = scaling.mean.shape[1:]
    _check_shape(f"the mean of its {what}", scaling.mean, (channels, *grid))
    _check_shape(f"the standard deviation of its {what}", scaling.std, (channels, *grid))


def _check_shape(what: str, tensor: torch.Tensor | None, shape: tuple[int, ...]) -> None:
    # folding a tensor of a broadcast shape would change the network
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ChainRefused(f"{what} has shape {tuple(tensor.shape)}, expected {shape}")
