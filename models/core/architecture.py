"""The architecture of a Fourier neural operator, as config.json describes it."""

from __future__ import annotations

import math
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from turbofno.models.core.strict import Strict

ACTIVATION_NAMES = (
    "none", "relu", "gelu", "gelu_tanh", "silu", "tanh", "leaky_relu", "elu", "selu", "mish", "sin", "softplus",
    "hardtanh", "hardswish", "hardsigmoid",
)  # fmt: skip
_NUMBER = r"-?[0-9]{1,9}(\.[0-9]{1,20})?(e-[0-9]{1,2})?"
_WRITTEN = rf"^({'|'.join(ACTIVATION_NAMES)}|(leaky_relu|elu)\({_NUMBER}\))$"
Activation = Annotated[str, Field(pattern=_WRITTEN)]
"""One of `turbofno_ops.ACTIVATIONS`, or `leaky_relu(slope)` or `elu(alpha)`: see turbofno_ops/_activations.py."""
Skip = Literal["linear", "soft-gating", "identity", "none"]
Norm = Literal["none", "instance_norm", "group_norm", "affine"]
PositionalGrid = Literal["none", "endpoint_excluded", "endpoint_included", "cell_centres"]
ModePlacement = Literal["exact", "centred", "floor_window", "corners_overwrite", "corners_add"]
BlockStep = Literal["spectral", "skip", "activation", "mlp", "mlp_skip", "norm", "tanh", "branch"]


class ChannelMLP(Strict):
    """The pointwise two-layer perceptron after a Fourier layer (neuraloperator's `channel_mlp`).

    `activation` is between its two maps; None: the network's activation.
    """

    hidden_channels: PositiveInt
    skip: Skip = "soft-gating"
    activation: Activation | None = None


class DomainPadding(Strict):
    """Padding around the hidden field, removed before the projection (non-periodic domains).

    `points` pads a fixed number of grid points, `fraction` a share of each axis (rounded); give one of them, with
    one entry per axis. `sides="end"` pads after the last point only, `"both"` on both sides. `mode` is the padding
    mode of `torch.nn.functional.pad`, with "zeros" for "constant".
    """

    points: tuple[int, ...] | None = None
    fraction: tuple[float, ...] | None = None
    sides: Literal["end", "both"] = "end"
    mode: Literal["zeros", "replicate", "reflect", "circular"] = "zeros"

    @model_validator(mode="after")
    def _exactly_one_amount(self) -> Self:
        given = [amount for amount in (self.points, self.fraction) if amount is not None]
        if len(given) != 1:
            raise ValueError("domain_padding needs exactly one of 'points' and 'fraction'")
        if any(amount < 0 for amount in given[0]):
            raise ValueError(f"domain_padding must not be negative, got {list(given[0])}")
        return self

    def fewest(self, least: int, axis: int) -> int:
        """The fewest points of an axis that are `least` points or more once padded."""
        sides = 2 if self.sides == "both" else 1
        if self.points is not None:
            amount = self.points[axis]
            # what is reflected or repeated must be there
            copied = {"reflect": amount + 1, "circular": amount}.get(self.mode, 1)
            return max(1, copied, least - sides * amount)
        assert self.fraction is not None
        share = sides * self.fraction[axis]
        points = max(1, math.ceil((least - sides / 2) / (1 + share)))
        while points + sides * round(self.fraction[axis] * points) < least:
            points += 1
        return points


def _before_scaling(count: int, scale: float) -> int:
    """The smallest n with round(n * scale) >= count, capped at 2^53."""
    fewest = math.ceil(min((count - 0.5) / scale, 2.0**53))
    return fewest if round(fewest * scale) >= count else fewest + 1


class FNOArchitecture(Strict):
    """A Fourier neural operator (Li et al. 2020, arXiv 2010.08895, Figure 2).

    `modes[i]` is the number of kept frequencies on axis i. On every axis but the last it counts both
    signs: -(K//2) .. (K+1)//2 - 1. On the last axis it counts 0 .. K-1.

    Some settings exist for networks imported from other libraries. models/core/spectrum.py explains `mode_placement`,
    `odd_axes_rolled` and `resolution_scaling`.

    `block` lists the steps of a hidden layer on its field y, in order. x is the layer's input, or y at the last step
    "branch":
        spectral    y = spectral convolution of y, plus the spectral bias
        skip        y = y + skip(x)
        activation  y = activation(y)
        mlp         y = channel MLP of y
        mlp_skip    y = y + channel_mlp.skip(x)
        norm        y = norm(y); the first and the second norm have their own parameters
        tanh        y = tanh(y)
        branch      x = y
    The default is spectral, norm, skip, activation and, with a channel MLP, mlp, mlp_skip, norm, activation.
    `last_block` has the steps of the last layer; the default is `block` without its activations.
    """

    in_channels: PositiveInt
    out_channels: PositiveInt
    hidden_channels: PositiveInt
    n_layers: Annotated[PositiveInt, Field(le=1024)]
    modes: Annotated[tuple[PositiveInt, ...], Field(min_length=1, max_length=3)]
    activation: Activation = "gelu"
    lifting_channels: tuple[PositiveInt, ...] = ()
    projection_channels: tuple[PositiveInt, ...] = (128,)
    skip: Skip = "linear"
    skip_bias: bool = True
    spectral_bias: bool = False
    channel_mlp: ChannelMLP | None = None
    norm: Norm = "none"
    norm_groups: PositiveInt = 1
    positional_grid: PositionalGrid = "none"
    domain_padding: DomainPadding | None = None
    lifting_activation: Activation | None = None
    projection_activation: Activation | None = None
    mode_placement: ModePlacement = "exact"
    odd_axes_rolled: bool = False
    resolution_scaling: tuple[tuple[PositiveFloat, ...], ...] = ()
    block: tuple[BlockStep, ...] = ()
    last_block: tuple[BlockStep, ...] = ()

    @property
    def n_dim(self) -> int:
        """Number of grid axes: 1, 2 or 3."""
        return len(self.modes)

    @property
    def smallest_grid(self) -> tuple[int, ...]:
        """Fewest points of each axis that hold the kept modes in every layer, without domain padding."""
        needed = list(self._holding_modes())
        for scales in reversed(self.resolution_scaling):
            for axis, (least, scale) in enumerate(zip(self._holding_modes(), scales, strict=True)):
                needed[axis] = max(least, _before_scaling(needed[axis], scale))
        return tuple(needed)

    @property
    def smallest_input(self) -> tuple[int, ...]:
        """Fewest points of each axis that hold the kept modes once padded, and that the padding can be taken from."""
        padding = self.domain_padding
        if padding is None:
            return self.smallest_grid
        return tuple(padding.fewest(least, axis) for axis, least in enumerate(self.smallest_grid))

    def _holding_modes(self) -> tuple[int, ...]:
        *others, last = self.modes
        if self.mode_placement in ("centred", "floor_window"):
            return (1,) * self.n_dim
        if self.mode_placement in ("corners_overwrite", "corners_add"):
            others = [count // 2 for count in others]
        return (*others, max(1, 2 * (last - 1)))

    def steps(self, *, last: bool) -> tuple[BlockStep, ...]:
        """The steps of a hidden layer, or of the last one, in order."""
        block = self.block or self._usual_block()
        if not last:
            return block
        return self.last_block or tuple(step for step in block if step != "activation")

    def _usual_block(self) -> tuple[BlockStep, ...]:
        norm: list[BlockStep] = [] if self.norm == "none" else ["norm"]
        skip: list[BlockStep] = [] if self.skip == "none" else ["skip"]
        first: list[BlockStep] = ["spectral", *norm, *skip, "activation"]
        if self.channel_mlp is None:
            return tuple(first)
        mlp_skip: list[BlockStep] = [] if self.channel_mlp.skip == "none" else ["mlp_skip"]
        return (*first, "mlp", *mlp_skip, *norm, "activation")

    @model_validator(mode="after")
    def _steps_have_their_modules(self) -> Self:
        mlp = self.channel_mlp
        expected: dict[BlockStep, int] = {
            "spectral": 1,
            "skip": self.skip != "none",
            "mlp": mlp is not None,
            "mlp_skip": mlp is not None and mlp.skip != "none",
        }
        for last in (False, True):
            what, steps = "last_block" if last else "block", self.steps(last=last)
            for step, count in expected.items():
                if steps.count(step) != count:
                    raise ValueError(
                        f"{what} has the step {step!r} {steps.count(step)} times, but the rest of the "
                        f"architecture needs it {int(count)} times"
                    )
            norms = range(1) if self.norm == "none" else range(1, 3)
            if steps.count("norm") not in norms:
                raise ValueError(
                    f"{what} has the step 'norm' {steps.count('norm')} times with norm={self.norm!r}"
                )
        return self

    @model_validator(mode="after")
    def _scaling_fits(self) -> Self:
        scaling = self.resolution_scaling
        if not scaling:
            return self
        if len(scaling) != self.n_layers or any(len(axes) != self.n_dim for axes in scaling):
            raise ValueError(
                f"resolution_scaling needs {self.n_layers} entries (layers) of {self.n_dim} (axes)"
            )
        if self.domain_padding is not None:
            raise ValueError("resolution_scaling with domain_padding is not supported")
        return self

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        padding = self.domain_padding
        amounts = () if padding is None else padding.points or padding.fraction or ()
        if padding is not None and len(amounts) != self.n_dim:
            raise ValueError(
                f"domain_padding has {len(amounts)} entries, expected one for each of {self.n_dim} axes"
            )
        corners = self.mode_placement in ("corners_overwrite", "corners_add")
        if corners and any(count % 2 for count in self.modes[:-1]):
            raise ValueError(
                f"mode_placement={self.mode_placement!r} needs even modes on every axis but the last, got "
                f"{list(self.modes)}"
            )
        if self.norm == "group_norm" and self.hidden_channels % self.norm_groups:
            raise ValueError(
                f"norm_groups={self.norm_groups} does not divide hidden_channels={self.hidden_channels}"
            )
        return self
