"""Warnings that a response may be worse than its model's card states: by its grids, trust signals, values, or rollout length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from turbofno.models.core.statistics import INPUT_DISTANCE, LARGEST, RESIDUAL
from turbofno.service.codec.fields import first_beyond, has_bounds
from turbofno.service.codec.grids import grid_warnings

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turbofno.models.core.config import Channel, ModelConfig
    from turbofno.service.codec.grids import Grid
    from turbofno.service.engine.interface import Fields, Frame, Trust

GRID, HORIZON, BOUNDS = "grid", "horizon", "bounds"
REASONS = (GRID, INPUT_DISTANCE, RESIDUAL, HORIZON, BOUNDS)
"""Values of the label `reason` in the metric of warnings."""

_MEANING = {
    INPUT_DISTANCE: "fields like the training data exceeds: model {model} was not trained on such inputs",
    RESIDUAL: "fields like those of the model's evaluation exceeds: the relative error of the prediction is about that large",
}
_ROUNDING = 1e-6
"""Share of a channel's largest value: float32 input that touches a bound is below it by less once interpolated."""
_REPEATED = 1e-3
"""The last points of an axis repeat the first if they differ by less than this share of the difference of any two neighbours.
A field that does not depend on the axis, has few different values or is even about its end has neighbours that are alike."""
_NO_RESIDUAL = "no residual on this grid: the prediction was not compared with its PDE"


class AnswerWarning(NamedTuple):
    """One warning. The text has no semicolon, which separates the texts in the header."""

    reason: str
    text: str


class AnswerWarnings:
    """The warnings of a model's answers for fields on one grid; what does not depend on the fields is prepared."""

    def __init__(
        self, config: ModelConfig, input_grid: Grid, output_grid: Grid | None = None
    ) -> None:
        """`output_grid` is None if the request has none.

        Thresholds are those of the input grid, also if the model runs on its training grid: a coarse input raises the
        signals.
        """
        self.of_grids = tuple(
            [AnswerWarning(GRID, text) for text in grid_warnings(config, input_grid, output_grid)]
        )
        """A warning for each grid on which the model's error was not measured."""
        # An import only assumes that its grid is periodic, and how.
        self._periodic = config.grid.boundary == "periodic" and bool(config.evaluation)
        self._bounded = config.outputs if has_bounds(config.outputs) else ()
        self._limits: list[tuple[str, float, str, str]] = []
        """Signal, its threshold, and the text for it: after the value, and the end."""
        statistics = config.statistics
        if statistics is None or statistics.thresholds is None:
            return
        one_in = f"{1 / statistics.thresholds.exceeded_by:.0f}"
        for signal, limit in statistics.thresholds.on(input_grid).items():
            meaning = _MEANING[signal].format(model=config.name)
            end = f", which only 1 in {one_in} {meaning}"
            self._limits.append((signal, limit, f" is above {limit:.3g}", end))

    @property
    def reads_fields(self) -> bool:
        """True if `of_prediction` looks at all values, as the output has physical bounds."""
        return bool(self._bounded)

    def of_input(self, fields: Fields) -> tuple[AnswerWarning, ...]:
        """A warning if the first field repeats the first points of an axis of a periodic grid at its end.

        Its waves are then too long by a spacing, which the trust signals do not see.
        """
        if not self._periodic:
            return ()
        field = fields[0]
        axes = [str(axis) for axis in range(field.ndim - 1) if _repeats(field, axis)]
        if not axes:
            return ()
        text = (
            f"the last points on grid axis {' and '.join(axes)} repeat the first: a periodic grid ends one spacing before "
            "its period, so leave them out"
        )
        return (AnswerWarning(GRID, text),)

    def of_prediction(self, trust: Trust, fields: Fields) -> tuple[AnswerWarning, ...]:
        """The warnings of a prediction with these signals and output fields."""
        found = self.of_trust(trust)
        if self._bounded:
            found += _of_bounds(fields, self._bounded)
        return (*self.of_grids, *found) if found else self.of_grids

    def of_trust(self, trust: Trust) -> list[AnswerWarning]:
        """A warning for each signal above the model's threshold; none without thresholds.

        A residual that is absent beside the other signal warns too.
        """
        found = []
        for signal, limit, above, end in self._limits:
            values = trust.get(signal, ())
            if signal == RESIDUAL and INPUT_DISTANCE in trust and not values:
                found.append(AnswerWarning(RESIDUAL, _NO_RESIDUAL))
            # NaN is above every limit.
            beyond = [value for value in values if not value <= limit]
            if not beyond:
                continue
            worst = max(beyond)
            told = f"{signal} {worst:.3g}" + (" (or more, or unknown)" if worst >= LARGEST else "")
            if len(values) == 1:
                text = f"{told}{above}{end}"
            else:
                others = (
                    ""
                    if len(beyond) == 1
                    else f" ({len(beyond)} of {len(values)} fields are above the limit)"
                )
                text = f"{told} of field {values.index(worst)}{above}{others}{end}"
            found.append(AnswerWarning(signal, text))
        return found


def _repeats(field: Fields, axis: int) -> bool:
    """True if the last points of an axis of [channels, *grid] have the values of the first, which are not all the same."""
    points, stride = field.shape[axis + 1], math.prod(field.shape[axis + 2 :])
    if points < 3:
        return False
    corner, near, far = map(field.item, (0, stride, stride * (points - 1)))
    # Nearly all fields end here.
    if abs(corner - far) > _REPEATED * abs(corner - near):
        return False
    # Differences may overflow float32.
    first, last = (field.take(point, axis + 1).astype(np.float64) for point in (0, -1))
    differing = np.abs(first - last).max()
    if np.ptp(first) <= differing:
        return False
    others = tuple(other for other in range(field.ndim) if other != axis + 1)
    with np.errstate(over="ignore"):
        steps = np.abs(np.diff(field, axis=axis + 1)).max(others)
    return bool(differing < _REPEATED * steps.min())


def of_interpolated(fields: Fields, config: ModelConfig) -> tuple[AnswerWarning, ...]:
    """A warning if the input, interpolated to the training grid, is beyond its bounds there: Fourier series overshoot."""
    where = "the input, interpolated to the training grid: "
    return _of_bounds(fields, config.inputs, where, _ROUNDING)


def _of_bounds(
    fields: Fields, channels: Sequence[Channel], where: str = "", rounding: float = 0.0
) -> tuple[AnswerWarning, ...]:
    """A warning if a value is beyond its channel's physical bounds by more than `rounding`, as `first_beyond`."""
    found = first_beyond(fields, channels, rounding)
    if found is None:
        return ()
    # without units, which a header may not be able to hold
    return (AnswerWarning(BOUNDS, f"{where}{found.told()}"),)


def of_horizon(config: ModelConfig, last: int) -> tuple[AnswerWarning, ...]:
    """A warning if a rollout to step `last` is longer than those on which the model was evaluated."""
    most = config.evaluated_steps
    if not most or last <= most:
        return ()
    text = (
        f"the rollout goes to step {last}, model {config.name} was evaluated up to step {most}: its error after that "
        "is unknown"
    )
    return (AnswerWarning(HORIZON, text),)


class FrameWarnings:
    """The warnings of a rollout's frames, each reason only with its first frame."""

    def __init__(self, config: ModelConfig, grid: Grid) -> None:
        self._warnings = AnswerWarnings(config, grid)
        self._sides = config.inputs[-len(config.outputs) :], config.outputs
        self._reported: set[str] = set()

    def of(self, frame: Frame) -> tuple[AnswerWarning, ...]:
        """The warnings that are new with this frame."""
        new = [
            AnswerWarning(reason, f"step {frame.step}: {text}")
            for reason, text in (*self._warnings.of_trust(frame.trust), *self._of_state(frame))
            if reason not in self._reported
        ]
        self._reported.update(one.reason for one in new)
        return tuple(new)

    def _of_state(self, frame: Frame) -> tuple[AnswerWarning, ...]:
        """A warning if the fields are beyond the bounds of the input that they are for the next step, or of the output."""
        if frame.fields is None or BOUNDS in self._reported:
            return ()
        found = (_of_bounds(frame.fields, channels) for channels in self._sides)
        return next(filter(None, found), ())
