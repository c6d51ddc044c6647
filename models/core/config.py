"""The schema of config.json: architecture, channels, grid, normalisation, PDE and provenance."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from turbofno.models.core.statistics import Statistics
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
Precision = Literal["fp32", "tf32", "bf16"]
PositionalGrid = Literal["none", "endpoint_excluded", "endpoint_included", "cell_centres"]
ModePlacement = Literal["exact", "centred", "floor_window", "corners_overwrite", "corners_add"]
BlockStep = Literal["spectral", "skip", "activation", "mlp", "mlp_skip", "norm", "tanh", "branch"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Version = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]

_SETTING = {
    "burgers": (1, "periodic"),
    "darcy": (2, "nodes"),
    "navier-stokes": (2, "periodic"),
}
"""Axes and boundary of each residual's equation."""


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


class Channel(Strict):
    """A channel of the input or output: one physical field."""

    name: Name
    units: str = "1"
    description: str = ""
    minimum: float | None = Field(default=None, description="no value is below it")
    exclusive_minimum: float | None = Field(default=None, description="every value is above it")
    maximum: float | None = Field(default=None, description="no value is above it")
    exclusive_maximum: float | None = Field(default=None, description="every value is below it")

    @model_validator(mode="after")
    def _some_value_is_allowed(self) -> Self:
        lowest = [b for b in (self.minimum, self.exclusive_minimum) if b is not None]
        highest = [b for b in (self.maximum, self.exclusive_maximum) if b is not None]
        if lowest and highest and max(lowest) > min(highest):
            raise ValueError(
                f"channel {self.name!r} allows no value: its minimum {max(lowest):g} is above its maximum "
                f"{min(highest):g}"
            )
        return self

    @property
    def quantity(self) -> str:
        """Name and units, for an axis or a colour bar."""
        return self.name if self.units == "1" else f"{self.name} [{self.units}]"


class GridSpec(Strict):
    """The domain and its grids. Shapes are in points, extents in `units`."""

    training: tuple[PositiveInt, ...]
    minimum: tuple[PositiveInt, ...]
    maximum: tuple[PositiveInt, ...]
    extent: tuple[PositiveFloat, ...]
    units: str = "1"
    boundary: Literal["periodic", "nodes"] = Field(
        description="periodic: the last point is one spacing before the end; nodes: both ends are points"
    )


class Normalization(Strict):
    """Physical = normalised * std + mean, per channel. The model applies it."""

    input_mean: tuple[float, ...]
    input_std: tuple[PositiveFloat, ...]
    output_mean: tuple[float, ...]
    output_std: tuple[PositiveFloat, ...]


class FieldNormalization(Strict):
    """Physical = normalised * std + mean with a mean and std for every grid point.

    The four fields are tensors of model.safetensors: input_mean, input_std [in_channels, *grid],
    output_mean, output_std [out_channels, *grid]. The model runs on this grid only.
    """

    grid: tuple[PositiveInt, ...]


class Parameter(Strict):
    """A parameter of the PDE or of its input distribution, with the range seen in training."""

    name: str
    minimum: float
    maximum: float
    units: str = "1"
    description: str = ""


class BurgersResidual(Strict):
    """u_t + u u_x = nu u_xx on the unit periodic interval; the output is u, `time` after the input."""

    kind: Literal["burgers"] = "burgers"
    nu: PositiveFloat
    time: PositiveFloat


class DarcyResidual(Strict):
    """-div(a grad u) = source on the unit square, u = 0 on its boundary; input a > 0, output u."""

    kind: Literal["darcy"] = "darcy"
    source: float


class NavierStokesResidual(Strict):
    """Vorticity on the unit torus under models/zoo/pde/navier_stokes.paper_forcing; the output is `time` after the input."""

    kind: Literal["navier-stokes"] = "navier-stokes"
    nu: PositiveFloat
    time: PositiveFloat


Residual = Annotated[
    BurgersResidual | DarcyResidual | NavierStokesResidual, Field(discriminator="kind")
]


class PDE(Strict):
    """The problem that a model was trained on. `residual` is the equation of the trust signal `residual`."""

    name: str
    equation: str
    domain: str
    input_distribution: str
    parameters: tuple[Parameter, ...] = ()
    reference: str = ""
    residual: Residual | None = None


class Metric(Strict):
    """A result on held-out samples (relative L2 unless the name says otherwise)."""

    name: str
    value: float
    n_samples: PositiveInt
    grid: tuple[PositiveInt, ...]
    steps: PositiveInt = Field(
        default=1, description="calls of the model on its own output, from the true state"
    )


class Training(Strict):
    """Provenance of the weights."""

    recipe: str
    seed: int
    n_samples: PositiveInt
    epochs: PositiveInt
    device: str
    torch: str
    seconds: float


class ModelConfig(Strict):
    """The contents of config.json. `sha256` is the hash of model.safetensors in the same folder."""

    format: Literal["turbofno/1"] = "turbofno/1"
    name: Name
    version: Version = "1"
    description: str
    architecture: FNOArchitecture
    inputs: Annotated[tuple[Channel, ...], Field(min_length=1)]
    outputs: Annotated[tuple[Channel, ...], Field(min_length=1)]
    grid: GridSpec
    normalization: Normalization | None = None
    field_normalization: FieldNormalization | None = None
    precision: Precision = Field(
        default="fp32",
        description="precision of products and stored fields on a GPU that the author recommends",
    )
    slabs: bool | None = Field(
        default=None,
        description="on an engine of several devices: true cuts fields into slabs over them, false never does; absent "
        "cuts fields so large that one hidden field takes over 1/16 of a GPU's memory",
    )
    time_step: PositiveFloat | None = Field(
        default=None,
        description="set for autoregressive models: one call advances by this much time",
    )
    past_steps: PositiveInt = Field(
        default=1,
        description="of autoregressive models: number of past states in an input, oldest first, each with the channels "
        "of an output",
    )
    pde: PDE | None = None
    statistics: Statistics | None = None
    training: Training | None = None
    evaluation: tuple[Metric, ...] = ()
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]

    @model_validator(mode="after")
    def _one_normalization(self) -> Self:
        fields, grid = self.field_normalization, self.grid
        if fields is None:
            return self
        if self.normalization is not None:
            raise ValueError("give normalization or field_normalization, not both")
        if not fields.grid == grid.training == grid.minimum == grid.maximum:
            raise ValueError(
                f"field_normalization is on the grid {list(fields.grid)}, so grid.training, "
                "grid.minimum and grid.maximum must be equal to it"
            )
        return self

    @model_validator(mode="after")
    def _signals_fit(self) -> Self:
        residual = self.pde and self.pde.residual
        if residual:
            axes, boundary = _SETTING[residual.kind]
            arch, grid = self.architecture, self.grid
            if (arch.in_channels, arch.out_channels, arch.n_dim) != (1, 1, axes):
                raise ValueError(
                    f"pde.residual {residual.kind!r} needs one input channel, one output channel and {axes} axes"
                )
            if grid.boundary != boundary or set(grid.extent) != {1.0}:
                raise ValueError(
                    f"pde.residual {residual.kind!r} needs extents of 1 and boundary={boundary!r}"
                )
        statistics = self.statistics
        if statistics is not None and statistics.distribution is not None:
            channels = self.architecture.in_channels
            for what, given in (
                ("inputs", statistics.inputs),
                ("distribution.inputs", statistics.distribution.inputs),
            ):
                if len(given) != channels:
                    raise ValueError(
                        f"statistics.{what} has {len(given)} entries, expected {channels}"
                    )
            if len({len(one.mean) for one in statistics.distribution.inputs}) > 1:
                raise ValueError(
                    "statistics.distribution.inputs differ in their number of features"
                )
        if statistics is not None and statistics.thresholds is not None:
            for one in statistics.thresholds.grids:
                if len(one.grid) != self.architecture.n_dim:
                    raise ValueError(
                        f"statistics.thresholds has the grid {list(one.grid)}, but the architecture has "
                        f"{self.architecture.n_dim} axes"
                    )
        return self

    @property
    def evaluated_steps(self) -> int:
        """The longest rollout whose error was measured; 0 without an evaluation."""
        return max((metric.steps for metric in self.evaluation), default=0)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        arch = self.architecture
        for what, channels, count in (
            ("inputs", self.inputs, arch.in_channels),
            ("outputs", self.outputs, arch.out_channels),
        ):
            if len(channels) != count:
                raise ValueError(
                    f"{what} names {len(channels)} channels, but the architecture has {count}"
                )
            if len({channel.name for channel in channels}) != count:
                raise ValueError(f"{what} uses a channel name twice")
        for what, shape in (
            ("grid.training", self.grid.training),
            ("grid.minimum", self.grid.minimum),
            ("grid.maximum", self.grid.maximum),
            ("grid.extent", self.grid.extent),
        ):
            if len(shape) != arch.n_dim:
                raise ValueError(
                    f"{what} has {len(shape)} axes, but the architecture has {arch.n_dim}"
                )
        grid = self.grid
        for least, points, most in zip(grid.minimum, grid.training, grid.maximum, strict=True):
            if not least <= points <= most:
                raise ValueError(
                    f"grid.training={list(grid.training)} is not between grid.minimum={list(grid.minimum)} and "
                    f"grid.maximum={list(grid.maximum)}"
                )
        if self.past_steps > 1:
            if self.time_step is None:
                raise ValueError("past_steps is for autoregressive models: give time_step, too")
            if arch.in_channels != self.past_steps * arch.out_channels:
                raise ValueError(
                    f"past_steps={self.past_steps} states of {arch.out_channels} channels are not the architecture's "
                    f"{arch.in_channels} input channels"
                )
        norm = self.normalization
        if norm is not None:
            for what, values, count in (
                ("input_mean", norm.input_mean, arch.in_channels),
                ("input_std", norm.input_std, arch.in_channels),
                ("output_mean", norm.output_mean, arch.out_channels),
                ("output_std", norm.output_std, arch.out_channels),
            ):
                if len(values) != count:
                    raise ValueError(
                        f"normalization.{what} has {len(values)} entries, expected {count}"
                    )
        return self


def read_config(path: Path) -> ModelConfig:
    """Read and check a config.json.

    Raises:
        FileNotFoundError: the file does not exist.
        pydantic.ValidationError (a ValueError): not JSON, or not a config; the message names the key.
    """
    return ModelConfig.model_validate_json(path.read_bytes())
