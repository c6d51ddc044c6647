"""What the zoo's samplers can be asked for: the parameters of a random input, for who describes or checks a request.

Without PyTorch, which front ends do not load; `service/demo/solutions.py` does what is said here.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import BaseModel, ConfigDict

from turbofno.models.core.config import PDE


class SampleParameter(BaseModel):
    """One knob of a random input. At all defaults it is drawn from the distribution that the model was trained on."""

    model_config = ConfigDict(frozen=True)

    name: str
    minimum: float
    maximum: float
    default: float
    step: float
    units: str = "1"
    description: str


def _parameter(
    name: str, span: tuple[float, float], default: float, step: float, description: str
) -> SampleParameter:
    return SampleParameter(
        name=name, minimum=span[0], maximum=span[1], default=default, step=step, description=description
    )  # fmt: skip


_AMPLITUDE = _parameter("amplitude", (0.1, 3.0), 1.0, 0.05, "size, as a multiple of the usual")


def _tau(span: tuple[float, float], default: float) -> SampleParameter:
    return _parameter("tau", span, default, 0.5, "inverse length of the largest structures")


def _alpha(span: tuple[float, float], default: float) -> SampleParameter:
    return _parameter("alpha", span, default, 0.05, "smoothness: how fast small structures fade")


_PARAMETERS = {
    "burgers": (_AMPLITUDE, _tau((2.0, 15.0), 5.0), _alpha((1.25, 4.0), 2.0)),
    "darcy": (
        _tau((1.0, 12.0), 3.0),
        _alpha((1.5, 4.0), 2.0),
        _parameter("low", (0.5, 6.0), 3.0, 0.1, "permeability of the tight places"),
        _parameter("high", (6.0, 30.0), 12.0, 0.1, "permeability of the open places"),
    ),
    "navier-stokes": (
        _AMPLITUDE,
        _tau((3.0, 14.0), 7.0),
        _alpha((1.5, 4.0), 2.5),
        _parameter("time", (0.0, 30.0), 10.0, 1.0, "age of the flow; 0 is the bare random field"),
    ),
}

PARAMETER_NAMES = frozenset(one.name for knobs in _PARAMETERS.values() for one in knobs)


def parameters_of(pde: PDE | None) -> tuple[SampleParameter, ...] | None:
    """The knobs of the sampler of that PDE; None without a sampler and solver for it."""
    return None if pde is None else _PARAMETERS.get(pde.name)


def complete(knobs: tuple[SampleParameter, ...], given: Mapping[str, float]) -> dict[str, float]:
    """All of the values, defaults for those not given.

    Raises:
        ValueError: a name that is none of the knobs', or a value out of its range.
    """
    known = {one.name: one for one in knobs}
    for name, value in given.items():
        if name not in known:
            raise ValueError(f"no parameter {name!r} here, expected some of {', '.join(known)}")
        knob = known[name]
        if not knob.minimum <= value <= knob.maximum:
            raise ValueError(
                f"parameter {name!r} ({knob.description}) is {value:g}, expected a number from "
                f"{knob.minimum:g} to {knob.maximum:g}"
            )
    return {name: given.get(name, knob.default) for name, knob in known.items()}
