"""The schema of config.json: architecture, channels, grid, normalisation, PDE and provenance."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.statistics import Statistics
from turbofno.models.core.strict import Strict

Precision = Literal["fp32", "tf32", "bf16"]

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$")]
Version = Annotated[str, Field(pattern=r"^[0-9]{1,9}$")]

_SETTING = {
    "burgers": (1, "periodic"),
    "darcy": (2, "nodes"),
    "navier-stokes": (2, "periodic"),
}
"""Axes and boundary of each residual's equation."""


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
    past_steps: PositiveInt | None = Field(
        default=None,
        description="of autoregressive models: number of past states in an input, oldest first, each with the channels "
        "of an output; 1 if not given",
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
        if statistics is not None:
            known = statistics.distribution
            channels = self.architecture.in_channels
            for what, entries, expected in (
                ("inputs", statistics.inputs, channels),
                ("outputs", statistics.outputs, self.architecture.out_channels),
                ("distribution.inputs", known.inputs if known else statistics.inputs, channels),
            ):
                if len(entries) != expected:
                    raise ValueError(
                        f"statistics.{what} has {len(entries)} entries, expected {expected}"
                    )
            if known is not None and len({len(one.mean) for one in known.inputs}) > 1:
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
    def states(self) -> int:
        """Past states in an input; 1 for models that are not autoregressive."""
        return self.past_steps or 1

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
        if self.past_steps is not None:
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
