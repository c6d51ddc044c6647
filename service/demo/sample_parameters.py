"""Parameters of the zoo's samplers, with their ranges. Without PyTorch, which front ends do not load."""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from turbofno.models.core.config import PDE, ModelConfig


class SampleParameter(BaseModel):
    """One parameter of a sampler. With all defaults, samples have the distribution of the training data."""

    model_config = ConfigDict(frozen=True)

    name: str
    minimum: float
    maximum: float
    default: float
    step: float
    units: str = "1"
    description: str


def _parameter(
    name: str,
    span: tuple[float, float],
    default: float,
    step: float,
    description: str,
    units: str = "1",
) -> SampleParameter:
    return SampleParameter(
        name=name, minimum=span[0], maximum=span[1], default=default, step=step, units=units, description=description
    )  # fmt: skip


_AMPLITUDE = _parameter("amplitude", (0.1, 3.0), 1.0, 0.05, "factor on the values of the field")


def _tau(span: tuple[float, float], default: float) -> SampleParameter:
    return _parameter("tau", span, default, 0.5, "inverse length of the largest structures")


def _alpha(span: tuple[float, float], default: float) -> SampleParameter:
    return _parameter("alpha", span, default, 0.05, "smoothness: how fast small structures fade")


_PARAMETERS = {
    "burgers": (_AMPLITUDE, _tau((2.0, 15.0), 5.0), _alpha((1.25, 4.0), 2.0)),
    "darcy": (
        _tau((1.0, 12.0), 3.0),
        _alpha((1.5, 4.0), 2.0),
        _parameter("low", (0.5, 6.0), 3.0, 0.1, "the lower of the two permeabilities"),
        _parameter("high", (6.0, 30.0), 12.0, 0.1, "the higher of the two permeabilities"),
    ),
    "navier-stokes": (
        _AMPLITUDE,
        _tau((3.0, 14.0), 7.0),
        _alpha((1.5, 4.0), 2.5),
        _parameter(
            "time", (0.0, 30.0), 10.0, 1.0, "age of the flow; 0 is the random initial field"
        ),
    ),
    "nagumo": (
        _parameter("rate", (4.0, 6.0), 5.0, 0.1, "median of the excitation rate", "1/ms"),
        _parameter("factor", (1.0, 3.0), 2.5, 0.05, "largest rate over the median"),
        _tau((3.0, 14.0), 9.0),
        _alpha((2.0, 5.0), 3.0),
    ),
}

PARAMETER_NAMES = frozenset(one.name for known in _PARAMETERS.values() for one in known)


def parameters_of(pde: PDE | None) -> tuple[SampleParameter, ...] | None:
    """The parameters of the PDE's sampler; None if there is no sampler and solver for it."""
    return None if pde is None else _PARAMETERS.get(pde.name)


def sampler_of(config: ModelConfig) -> tuple[SampleParameter, ...] | None:
    """The parameters of the sampler for a model. None without one, and for several channels: samples have one."""
    arch = config.architecture
    return parameters_of(config.pde) if arch.in_channels == arch.out_channels == 1 else None


def complete(
    parameters: tuple[SampleParameter, ...], given: Mapping[str, float]
) -> dict[str, float]:
    """The values of all parameters: those given, else the defaults. Raises ValueError for a value out of its range."""
    known = {one.name: one for one in parameters}
    for name, value in given.items():
        parameter = known[name]
        if not parameter.minimum <= value <= parameter.maximum:
            raise ValueError(
                f"parameter {name!r} ({parameter.description}) is {value:g}, expected a number from "
                f"{parameter.minimum:g} to {parameter.maximum:g}"
            )
    return {name: given.get(name, parameter.default) for name, parameter in known.items()}
