"""The algebra that takes kernels out of a network: linear maps beside a Fourier layer become part of it.

A Fourier layer is linear before its activation, and every map of the channels commutes with transforms:

    lifting     layer(M . u) is a layer with weight M^T . weight and skip . M, so a lifted field of many
                channels never exists. u holds x less its mean, the positions and, for the bias of the
                lifting, a channel of ones; where domain padding zeros the lifted field, it zeros u.
    projection  P . layer(h) is a layer with weight . P^T, P . skip and P . bias, so neither the last
                hidden field nor the one inside the projection is written; what is left of the projection
                is applied to the layer's output while it is on chip.

Standard deviations at both ends fold into the nearest matrix. All products are made in float64 and cast
once. Only the mean of x is subtracted as it stands, because 300 K +- 1 K leaves no digits in a shorter format;
and where a standard deviation is far from 1, a power of two brings it there, because the kernels give all
channels of a tile one scale.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from functools import reduce
from typing import Any, TypeVar

import torch

from turbofno_ops._activations import parse_activation
from turbofno_ops._channels import mode_major
from turbofno_ops._stages import Layer, Projection
from turbofno_ops.description import (
    ChainRefused,
    FNODescription,
    FourierMap,
    PointwiseMap,
    Scaling,
    Size,
)

_WIDEST_FOLDED_PROJECTION = 256
_MOST_PROJECTED = 16
_NEAR_ONE = 6  # powers of two


@dataclass(frozen=True, eq=False)
class Chain:
    """A network as it runs.

    Attributes:
        n_dim: Grid axes, 1 or 2.
        in_channels: Of x.
        out_channels: Of the result.
        positions: As in FNODescription.
        padding: As in FNODescription.
        refusal: As in FNODescription.
        shift: Subtracted from x, [in_channels], or None.
        scale: Powers of two that multiply what is left, [in_channels], or None.
        lifting: Maps that run in plain torch before the first layer; () if they are folded into it.
        ones: Whether the first layer takes a channel of ones after x and the positions.
        layers: Weights [modes_h, modes_w, c_in, c_out] with modes_h = 1 on grids of one axis.
        projection: Applied by the last stage, or None if `tail` follows.
        tail: Maps that run in plain torch after the last layer.
        lifting_activation: Between the maps of lifting.
        tail_activation: Between the maps of tail.
    """

    n_dim: int
    in_channels: int
    out_channels: int
    positions: Callable[[Size], torch.Tensor] | None
    padding: Callable[[Size], Sequence[tuple[int, int]]] | None
    refusal: Callable[[Size], str | None] | None
    shift: torch.Tensor | None
    scale: torch.Tensor | None
    lifting: tuple[PointwiseMap, ...]
    ones: bool
    layers: tuple[Layer, ...]
    projection: Projection | None
    tail: tuple[PointwiseMap, ...]
    lifting_activation: str
    tail_activation: str

    @property
    def modes(self) -> tuple[int, int]:
        """Kept along h and w."""
        modes_h, modes_w = self.layers[0].weight.shape[:2]
        return modes_h, modes_w

    @property
    def dtype(self) -> torch.dtype:
        """Of all real weights."""
        return self.layers[0].weight.dtype.to_real()

    @property
    def nbytes(self) -> int:
        """Of all weights."""
        maps = (*self.layers, *self.lifting, *self.tail, self.projection)
        given = [m for m in maps if m is not None]
        tensors = [self.shift, self.scale, *(m.weight for m in given), *(m.bias for m in given)]
        tensors += [layer.skip for layer in self.layers]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def check(description: FNODescription) -> None:
    """Raise ChainRefused unless the description is a chain of layers on one or two axes that fit together."""
    first = description.layers[0].weight
    modes = first.shape[2:]
    if len(modes) > 2:
        raise ChainRefused(
            f"chains serve one and two grid axes, this network has {len(modes)}; run the module itself"
        )
    if any(layer.weight.shape[2:] != modes for layer in description.layers):
        raise ChainRefused("its layers keep different modes")
    for activation in (
        description.activation,
        description.lifting_activation,
        description.projection_activation,
    ):
        if activation is not None:
            try:
                parse_activation(activation)
            except ValueError as error:
                raise ChainRefused(str(error)) from None
    dtypes = {layer.weight.dtype for layer in description.layers}
    if dtypes not in ({torch.complex64}, {torch.complex128}):
        raise ChainRefused(
            f"its weights are {', '.join(map(str, dtypes))}, not complex64 or complex128"
        )
    width: int | None = None
    steps: list[PointwiseMap | FourierMap]
    steps = [*description.lifting, *description.layers, *description.projection]
    for step in steps:
        c_out, c_in = step.weight.shape[:2]
        if isinstance(step, FourierMap):
            c_in, c_out = c_out, c_in
        if width is not None and c_in != width:
            raise ChainRefused(f"a map takes {c_in} channels where it is given {width}")
        width = c_out
        if isinstance(step, FourierMap):
            _check_shape("a skip", step.skip, (c_out, c_in))
        _check_shape("a bias", step.bias, (c_out,))
    for what, scaling, channels in (
        ("inputs", description.inputs, description.in_channels),
        ("outputs", description.outputs, width),
    ):
        if scaling is not None:
            _check_shape(f"the mean of its {what}", scaling.mean, (channels,))
            _check_shape(f"the standard deviation of its {what}", scaling.std, (channels,))


def _check_shape(what: str, tensor: torch.Tensor | None, shape: tuple[int | None, ...]) -> None:
    # a broadcast shape would be folded into something else than the network
    if tensor is not None and tuple(tensor.shape) != shape:
        raise ChainRefused(f"{what} has shape {tuple(tensor.shape)}, expected {shape}")


def fold(description: FNODescription, device: torch.device) -> Chain:
    """The chain of a checked description, its tensors on `device`."""
    real = description.layers[0].weight.dtype.to_real()
    inputs = description.inputs and _to(description.inputs, device, torch.float64)
    outputs = description.outputs and _to(description.outputs, device, torch.float64)
    lifting = [_to(m, device, torch.float64) for m in description.lifting]
    layers = [
        _layer(_to(m, device, torch.float64), description.activation) for m in description.layers
    ]
    projection = [_to(m, device, torch.float64) for m in description.projection]
    projection_activation = description.projection_activation or description.activation
    layers[-1] = replace(layers[-1], activation="none")
    scale: torch.Tensor | None = None
    if inputs is not None:
        scale = _powers_of_two(inputs.std)
        left = inputs.std if scale is None else inputs.std * scale
        lifting[0] = _of_undivided(lifting[0], left)
    if outputs is not None:
        projection[-1] = _in_physical_units(projection[-1], outputs)
    ones = False
    if len(lifting) == 1:
        ones = lifting[0].bias is not None
        layers[0] = _after(layers[0], lifting.pop())
    last: Projection | None = None
    if _is_small(projection):
        layers[-1], last = _before(layers[-1], projection, projection_activation)
        projection = []
    return Chain(
        n_dim=description.layers[0].weight.ndim - 2,
        in_channels=description.in_channels,
        out_channels=description.projection[-1].weight.shape[0],
        positions=description.positions,
        padding=description.padding,
        refusal=description.refusal,
        shift=None if inputs is None else inputs.mean.to(real),
        scale=None if scale is None else scale.to(real),
        lifting=tuple(_to(m, device, real) for m in lifting),
        ones=ones,
        layers=tuple(_to(layer, device, real) for layer in layers),
        projection=last and _to(last, device, real),
        tail=tuple(_to(m, device, real) for m in projection),
        lifting_activation=description.lifting_activation or description.activation,
        tail_activation=projection_activation,
    )


Tensors = TypeVar("Tensors", PointwiseMap, FourierMap, Scaling, Layer, Projection)


def _to(group: Tensors, device: torch.device, dtype: torch.dtype) -> Tensors:
    """The same with its tensors contiguous on `device`, in `dtype` or its complex twin."""
    moved: dict[str, Any] = {}
    for field in fields(group):
        value = getattr(group, field.name)
        if isinstance(value, torch.Tensor):
            to = dtype.to_complex() if value.is_complex() else dtype
            moved[field.name] = value.detach().to(device, to).contiguous()
    return replace(group, **moved)


def _layer(linear: FourierMap, activation: str) -> Layer:
    weight = mode_major(linear.weight)
    return Layer(weight if weight.ndim == 4 else weight[None], linear.skip, linear.bias, activation)


def _powers_of_two(std: torch.Tensor) -> torch.Tensor | None:
    """What brings standard deviations to about 1, or None if all are near enough."""
    exponents = std.log2().round()
    return None if exponents.abs().max() <= _NEAR_ONE else (-exponents).exp2()


def _of_undivided(lift: PointwiseMap, std: torch.Tensor) -> PointwiseMap:
    """The lifting of x that was not divided by its standard deviation; positions come after x's channels."""
    weight = lift.weight.clone()
    weight[:, : len(std)] /= std
    return PointwiseMap(weight, lift.bias)


def _in_physical_units(last: PointwiseMap, outputs: Scaling) -> PointwiseMap:
    bias = outputs.mean if last.bias is None else last.bias * outputs.std + outputs.mean
    return PointwiseMap(last.weight * outputs.std[:, None], bias)


def _after(layer: Layer, lift: PointwiseMap) -> Layer:
    """The layer of a lifted field as one of the field itself, with a channel of ones if the lifting has a bias."""
    columns = lift.weight
    if lift.bias is not None:
        columns = torch.cat([columns, lift.bias[:, None]], dim=1)
    return replace(
        layer,
        weight=columns.T.to(layer.weight.dtype) @ layer.weight,
        skip=None if layer.skip is None else layer.skip @ columns,
    )


def _is_small(projection: list[PointwiseMap]) -> bool:
    return (
        len(projection) <= 2
        and projection[0].weight.shape[0] <= _WIDEST_FOLDED_PROJECTION
        and projection[-1].weight.shape[0] <= _MOST_PROJECTED
    )


def _before(
    layer: Layer, projection: list[PointwiseMap], activation: str
) -> tuple[Layer, Projection]:
    """The layer with the projection's first map in it, and the map that is left."""
    first, *others = projection
    biases = [first.bias, None if layer.bias is None else first.weight @ layer.bias]
    given = [bias for bias in biases if bias is not None]
    merged = Layer(
        layer.weight @ first.weight.T.to(layer.weight.dtype),
        None if layer.skip is None else first.weight @ layer.skip,
        reduce(torch.add, given) if given else None,
        activation if others else "none",
    )
    if others:
        return merged, Projection(others[0].weight, others[0].bias)
    # nothing is left, but projections are float32 in whatever precision fields are stored
    return merged, Projection(torch.eye(first.weight.shape[0]), None)
