"""The algebra that takes kernels out of a network: linear maps beside a Fourier layer become part of it.

A Fourier layer is linear before its activation, and every map of the channels commutes with transforms:

    lifting     layer(M . u) is a layer with weight M^T . weight and skip . M, so a lifted field of many
                channels never exists. u holds x less its mean, the positions and, for the bias of the
                lifting, a channel of ones; where domain padding zeros the lifted field, it zeros u.
    projection  P . layer(h) is a layer with weight . P^T, P . skip and P . bias, so neither the last
                hidden field nor the one inside the projection is written; what is left of the projection
                is applied to the layer's output while it is on chip.

A lifting or projection with a hidden layer runs on chip in front of or behind the block beside it; a longer or
wider one in plain torch.

Standard deviations at both ends fold into the nearest matrix. All products are made in float64 and cast
once. Only the mean of x is subtracted as it stands, because 300 K +- 1 K leaves no digits in a shorter format;
and where a standard deviation is far from 1, a power of two brings it there, because the kernels give all
channels of a tile one scale.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from turbofno_ops._activations import activate
from turbofno_ops._stages import Held, Project, Source, Step
from turbofno_ops.description import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Block,
    BlockStep,
    Branch,
    FNODescription,
    PointwiseMap,
    Scaling,
    Spectral,
)

_WIDEST_ON_CHIP = 256
_MOST_PROJECTED = 16
_NEAR_ONE = 6  # powers of two


@dataclass(frozen=True, eq=False)
class Folded:
    """A network whose ends are folded, all in float64.

    Attributes:
        shift: Subtracted from x, [in_channels] or [in_channels, *grid], or None.
        scale: Multiplies what is left, likewise.
        ones: Whether the buffer has a channel of ones after x and the positions.
        lifting: Maps that run in plain torch before the first step; then `start` is (Held,).
        start: How the first tile program begins.
        blocks: The hidden layers.
        end: The last step, or None if `tail` follows.
        tail: Maps that run in plain torch after the last step.
        rescaling: What is left of the output's scaling: a mean and deviation for each grid point, or None.
    """

    shift: torch.Tensor | None
    scale: torch.Tensor | None
    ones: bool
    lifting: tuple[PointwiseMap, ...]
    start: tuple[Step, ...]
    blocks: tuple[Block, ...]
    end: Project | None
    tail: tuple[PointwiseMap, ...]
    rescaling: Scaling | None


def fold(description: FNODescription, device: torch.device) -> Folded:
    """Fold a checked description, its tensors on `device`."""
    inputs, outputs, lifting, blocks, projection = on(
        (
            description.inputs,
            description.outputs,
            description.lifting,
            description.blocks,
            description.projection,
        ),
        device,
        torch.float64,
    )
    shift = scale = rescaling = None
    if inputs is not None:
        shift = inputs.mean
        lifting, scale = _undivided(lifting, inputs.std)
    if outputs is not None and outputs.std.ndim == 1:
        projection = (*projection[:-1], _in_physical_units(projection[-1], outputs))
    else:
        rescaling = outputs
    blocks = tuple(_without_first_branches(block) for block in blocks)
    padded = description.padding is not None and description.padding_mode == "zeros"
    lifted = _lift(lifting, description.lifting_activation, blocks[0], zeros_around=padded)
    *inner, last = lifted.first, *blocks[1:]
    last, end = _project(last, projection, description.projection_activation)
    return Folded(
        shift=shift,
        scale=scale,
        ones=lifted.ones,
        lifting=lifted.in_torch,
        start=lifted.start,
        blocks=(*inner, last),
        end=end,
        tail=projection if end is None else (),
        rescaling=rescaling,
    )


Tensors = TypeVar("Tensors")


def on(group: Tensors, device: torch.device, dtype: torch.dtype) -> Tensors:
    """The same tuples and dataclasses with their tensors contiguous on `device`, in `dtype` or its complex twin."""
    moved: Any = group
    if isinstance(group, torch.Tensor):
        if group.is_complex():
            # lowering brings these to the order of the modes, which is often theirs already
            moved = group.detach().to(device, dtype.to_complex())
        else:
            moved = group.detach().to(device, dtype).contiguous()
    elif isinstance(group, tuple):
        moved = tuple(on(one, device, dtype) for one in group)
    elif is_dataclass(group) and not isinstance(group, type):
        parts = {f.name: on(getattr(group, f.name), device, dtype) for f in fields(group)}
        moved = replace(group, **parts)
    result: Tensors = moved
    return result


def _undivided(
    lifting: tuple[PointwiseMap, ...], std: torch.Tensor
) -> tuple[tuple[PointwiseMap, ...], torch.Tensor | None]:
    """The lifting of x that was not divided by its standard deviation, and a factor for x, or None.

    Positions come after x's channels. A deviation for each grid point is a factor as it stands.
    """
    if std.ndim > 1:
        return lifting, 1 / std
    exponents = std.log2().round()
    scale = None if exponents.abs().max() <= _NEAR_ONE else (-exponents).exp2()
    weight = lifting[0].weight.clone()
    weight[:, : len(std)] /= std if scale is None else std * scale
    return (PointwiseMap(weight, lifting[0].bias), *lifting[1:]), scale


def _in_physical_units(last: PointwiseMap, outputs: Scaling) -> PointwiseMap:
    bias = outputs.mean if last.bias is None else last.bias * outputs.std + outputs.mean
    return PointwiseMap(last.weight * outputs.std[:, None], bias)


def _without_first_branches(block: Block) -> Block:
    """The same block: at its beginning x is y."""
    while isinstance(block[0], Branch):
        block = block[1:]
    return block


@dataclass(frozen=True, eq=False)
class _Lifted:
    start: tuple[Step, ...]
    first: Block
    ones: bool = False
    in_torch: tuple[PointwiseMap, ...] = ()


def _lift(
    lifting: tuple[PointwiseMap, ...], activation: str, first: Block, *, zeros_around: bool
) -> _Lifted:
    """The lifting as it runs, and the first block after it."""
    if len(lifting) == 1:
        columns = _with_bias_column(lifting[0])
        ones = lifting[0].bias is not None
        if isinstance(first[0], Spectral):
            return _Lifted((Source(),), _after(first, columns), ones)
        return _Lifted((AddMap(columns),), first, ones)
    if len(lifting) > 2 or lifting[0].weight.shape[0] > _WIDEST_ON_CHIP:
        return _Lifted((Held(),), first, in_torch=lifting)
    inner, outer = lifting
    if not zeros_around:
        return _Lifted((Source(), MLP(inner, activation, outer)), first)
    if activate(torch.zeros(1), activation).item() != 0:
        return _Lifted((Held(),), first, in_torch=lifting)
    # biases come through the channel of ones, which is zero where the lifted field has to be
    columns = _with_bias_column(PointwiseMap(inner.weight, _bias(inner)))
    lift = MLP(PointwiseMap(columns), activation, PointwiseMap(outer.weight))
    column = torch.zeros(len(outer.weight), columns.shape[1]).to(columns)
    column[:, -1] = _bias(outer)
    return _Lifted((Source(), lift, AddMap(column)), first, ones=True)


def _bias(linear: PointwiseMap) -> torch.Tensor:
    return linear.weight.new_zeros(len(linear.weight)) if linear.bias is None else linear.bias


def _with_bias_column(linear: PointwiseMap) -> torch.Tensor:
    """The matrix for a field with a channel of ones after the others, if there is a bias."""
    if linear.bias is None:
        return linear.weight
    return torch.cat([linear.weight, linear.bias[:, None]], dim=1)


def _after(block: Block, columns: torch.Tensor) -> Block:
    """The block of a lifted field as one of the field itself: a `Spectral`, then what may read x."""
    spectral, *rest = block
    assert isinstance(spectral, Spectral)
    steps: list[BlockStep] = [
        replace(spectral, weight=torch.tensordot(columns.T.to(spectral.weight), spectral.weight, 1))
    ]
    lifted = True
    for step in rest:
        lifted = lifted and not isinstance(step, Branch)
        if lifted and isinstance(step, AddMap):
            steps.append(AddMap(step.weight @ columns))
        elif lifted and isinstance(step, AddGate):
            steps.append(AddMap(step.weight[:, None] * columns))
        else:
            steps.append(step)
    return tuple(steps)


def _project(
    last: Block, projection: tuple[PointwiseMap, ...], activation: str
) -> tuple[Block, Project | None]:
    """The last block with what the projection leaves in it, and the step that ends the network."""
    hidden, out = projection[0].weight.shape[0], projection[-1].weight.shape[0]
    if len(projection) > 2 or hidden > _WIDEST_ON_CHIP or out > _MOST_PROJECTED:
        return last, None
    at = next(i for i, step in reversed(list(enumerate(last))) if isinstance(step, Spectral))
    if not all(isinstance(step, AddMap | AddGate | Affine) for step in last[at + 1 :]):
        return last, Project(projection, activation)
    first, *others = projection
    merged = (*last[:at], *_before(last[at:], first))
    if others:
        return (*merged, Activate(activation)), Project(tuple(others), "none")
    # nothing is left, but results are float32 in whatever precision fields are stored
    rest = PointwiseMap(torch.eye(out).to(first.weight))
    return merged, Project((rest,), "none")


def _before(block: Block, linear: PointwiseMap) -> Block:
    """A `Spectral` and the affine steps after it, with a map of their result in all of them."""
    spectral, *rest = block
    assert isinstance(spectral, Spectral)
    scale = linear.weight.new_ones(spectral.weight.shape[1])
    matrix: torch.Tensor | None = None
    shift = torch.zeros_like(scale)
    for step in rest:
        if isinstance(step, AddMap):
            matrix = step.weight if matrix is None else matrix + step.weight
        elif isinstance(step, AddGate):
            gate = step.weight.diag()
            matrix = gate if matrix is None else matrix + gate
        elif isinstance(step, Affine):
            if step.scale is not None:
                scale, shift = scale * step.scale, shift * step.scale
                matrix = None if matrix is None else matrix * step.scale[:, None]
            shift = shift if step.shift is None else shift + step.shift
    columns = (linear.weight * scale).T.to(spectral.weight)
    weight = torch.tensordot(spectral.weight, columns, dims=([1], [0])).movedim(-1, 1)
    bias = linear.weight @ shift + _bias(linear)
    skip = () if matrix is None else (AddMap(linear.weight @ matrix),)
    return (replace(spectral, weight=weight), *skip, Affine(None, bias))
