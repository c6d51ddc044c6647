"""Folding: linear maps next to a Fourier layer are merged into its weights.

A Fourier layer is linear before its activation, and every channel map commutes with the transforms:

    lifting     layer(M . u) is a layer with weight M^T . weight and skip . M, so the wide lifted field is
                never computed. u holds x - mean, the positions and, for the bias of the lifting, a channel
                of ones. Where domain padding zeros the lifted field, it zeros u.
    projection  P . layer(h) is a layer with weight . P^T, P . skip and P . bias. The rest of the projection is
                applied to the layer's output on chip. Not where P widens: the spectral product would too.

A lifting or projection with one hidden layer is a step of the adjacent block's program. One that is longer, has more inputs or
outputs than a step takes, or does not keep the zeros of a padding, runs in plain torch.

Standard deviations at both ends are folded into the nearest matrix. All products are computed in float64 and cast
once. The mean of x is subtracted from x itself, because 300 K +- 1 K would lose its digits in a shorter format. A
standard deviation far from 1 is normalised by a power of two, because all channels of a tile share one scale.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch

from turbofno_ops._activations import activate
from turbofno_ops._channels import bias_of
from turbofno_ops._stages import Project, Restore, Source, Step
from turbofno_ops._wide_maps import stored_channels
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

_MAX_INPUTS = 256
_MAX_PROJECTED = 16
_MAX_UNSCALED_EXPONENT = 6  # powers of two


@dataclass(frozen=True, eq=False)
class Folded:
    """A network with folded ends, in float64.

    Attributes:
        shift: Subtracted from x, [in_channels] or [in_channels, *grid], or None.
        scale: Multiplies x - shift, of the same shape, or None.
        ones: True if the buffer has a channel of ones after x and the positions.
        lifting: Maps that run in plain torch before the first step; then `start` is (Restore,).
        start: First steps of the first tile program.
        blocks: The hidden layers.
        end: The last step, or None if `tail` follows.
        tail: Maps that run in plain torch after the last step.
        rescaling: Mean and standard deviation of the output per grid point, if not folded, or None.
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
    """Fold a checked description; the result is on `device`."""
    inputs, outputs, lifting, blocks, projection = to_device(
        (
            description.inputs,
            description.outputs,
            description.lifting,
            description.blocks,
            description.projection,
        ),
        device,
        torch.float64,
        copy=True,
    )
    shift = scale = rescaling = None
    if inputs is not None:
        shift = inputs.mean
        lifting, scale = _fold_input_std(lifting, inputs.std)
    if outputs is not None and outputs.std.ndim == 1:
        projection = (*projection[:-1], _fold_output_scaling(projection[-1], outputs))
    else:
        rescaling = outputs
    blocks = tuple(_strip_leading_branches(block) for block in blocks)
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


def to_device(
    group: Tensors, device: torch.device, dtype: torch.dtype, *, copy: bool = False
) -> Tensors:
    """Copy tuples and dataclasses with their tensors contiguous on `device`, in `dtype` or its complex counterpart.

    With `copy` none of the tensors shares memory with a given one; without, those may that are so already.
    """
    moved: Any = group
    if isinstance(group, torch.Tensor):
        if group.is_complex():
            # not made contiguous: lowering permutes them, often to their own memory order
            moved = group.detach().to(device, dtype.to_complex(), copy=copy)
        else:
            moved = group.detach().to(device, dtype, copy=copy).contiguous()
    elif isinstance(group, tuple):
        moved = tuple(to_device(one, device, dtype, copy=copy) for one in group)
    elif is_dataclass(group) and not isinstance(group, type):
        parts = {
            f.name: to_device(getattr(group, f.name), device, dtype, copy=copy)
            for f in fields(group)
        }
        moved = replace(group, **parts)
    result: Tensors = moved
    return result


def _fold_input_std(
    lifting: tuple[PointwiseMap, ...], std: torch.Tensor
) -> tuple[tuple[PointwiseMap, ...], torch.Tensor | None]:
    """Fold the division of x by `std` into the lifting. Returns the lifting and a factor for x, or None.

    A standard deviation per grid point cannot be folded and is returned as the factor.
    """
    if std.ndim > 1:
        return lifting, 1 / std
    exponents = std.log2().round()
    scale = None if exponents.abs().max() <= _MAX_UNSCALED_EXPONENT else (-exponents).exp2()
    weight = lifting[0].weight.clone()
    weight[:, : len(std)] /= std if scale is None else std * scale
    return (PointwiseMap(weight, lifting[0].bias), *lifting[1:]), scale


def _fold_output_scaling(last: PointwiseMap, outputs: Scaling) -> PointwiseMap:
    bias = outputs.mean if last.bias is None else last.bias * outputs.std + outputs.mean
    return PointwiseMap(last.weight * outputs.std[:, None], bias)


def _strip_leading_branches(block: Block) -> Block:
    """Remove leading `Branch` steps, which have no effect: x is y at the start of a block."""
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
    """Return the start of the network and the first block with the lifting folded in."""
    if len(lifting) == 1:
        columns = _with_bias_column(lifting[0])
        ones = lifting[0].bias is not None
        if isinstance(first[0], Spectral):
            return _Lifted((Source(),), _fold_lifting(first, columns), ones)
        return _Lifted((AddMap(columns),), first, ones)
    # behind zeros a channel of ones is added
    if len(lifting) > 2 or lifting[0].weight.shape[1] + zeros_around > _MAX_INPUTS:
        return _Lifted((Restore(),), first, in_torch=lifting)
    inner, outer = lifting
    if not zeros_around:
        return _Lifted((Source(), MLP(inner, activation, outer)), first)
    if activate(torch.zeros(1), activation).item() != 0:
        return _Lifted((Restore(),), first, in_torch=lifting)
    # biases multiply the channel of ones, which is zero in the padding, where the lifted field must be zero
    columns = _with_bias_column(PointwiseMap(inner.weight, bias_of(inner)))
    lift = MLP(PointwiseMap(columns), activation, PointwiseMap(outer.weight))
    if outer.bias is None:
        return _Lifted((Source(), lift), first, ones=True)
    # The second bias takes a hidden channel of its own: then the program is that of a lifting without padding.
    widened = _with_hidden_bias(lift, outer.bias)
    if stored_channels(widened) <= stored_channels(lift):
        return _Lifted((Source(), widened), first, ones=True)
    column = torch.zeros(len(outer.weight), columns.shape[1]).to(columns)
    column[:, -1] = outer.bias
    return _Lifted((Source(), lift, AddMap(column)), first, ones=True)


def _with_hidden_bias(lift: MLP, bias: torch.Tensor) -> MLP:
    """Return a lifting of which a hidden channel is activation(c ones), and adds the bias. The last input is the ones."""
    # exact in bfloat16; the one whose activation nearly is: all else that kernels round is the bias
    factors = torch.arange(128, 257).to(bias) / 128
    values = activate(factors, lift.activation)
    rounding = (values.bfloat16().to(bias) / values - 1).abs()
    best = rounding.argmin()
    row = torch.zeros_like(lift.first.weight[:1])
    row[:, -1] = factors[best]
    columns = torch.cat([lift.second.weight, (bias / values[best])[:, None]], dim=1)
    return MLP(
        PointwiseMap(torch.cat([lift.first.weight, row])), lift.activation, PointwiseMap(columns)
    )


def _with_bias_column(linear: PointwiseMap) -> torch.Tensor:
    """Return the weight, with the bias as an additional column for a channel of ones."""
    if linear.bias is None:
        return linear.weight
    return torch.cat([linear.weight, linear.bias[:, None]], dim=1)


def _fold_lifting(block: Block, columns: torch.Tensor) -> Block:
    """Fold a lifting matrix into a block that begins with `Spectral`, so that it takes the unlifted field."""
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
    """Return the last block with the projection folded in as far as possible, and the network's last step."""
    hidden, out = projection[0].weight.shape[0], projection[-1].weight.shape[0]
    if len(projection) > 2 or out > _MAX_PROJECTED:
        return last, None
    at = next(i for i, step in reversed(list(enumerate(last))) if isinstance(step, Spectral))
    if not all(isinstance(step, AddMap | AddGate | Affine) for step in last[at + 1 :]):
        return last, Project(projection, activation)
    first, *others = projection
    spectral = last[at]
    assert isinstance(spectral, Spectral)
    if others and hidden > spectral.weight.shape[1]:
        # a wider spectral product costs more than a matrix product on chip
        return last, Project(projection, activation)
    merged = (*last[:at], *_fold_projection(last[at:], first))
    if others:
        return (*merged, Activate(activation)), Project(tuple(others), "none")
    # an identity projection, because results are float32 even where fields are bfloat16
    rest = PointwiseMap(torch.eye(out).to(first.weight))
    return merged, Project((rest,), "none")


def _fold_projection(block: Block, linear: PointwiseMap) -> Block:
    """Fold a map of the result into a `Spectral` and the affine steps after it."""
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
    bias = linear.weight @ shift + bias_of(linear)
    skip = () if matrix is None else (AddMap(linear.weight @ matrix),)
    return (replace(spectral, weight=weight), *skip, Affine(None, bias))
