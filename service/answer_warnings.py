"""Warnings that a response may be worse than its model's card states: by its grids, trust signals or rollout length."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from turbofno.models.core.statistics import INPUT_DISTANCE, RESIDUAL
from turbofno.service.codec.grids import grid_warnings

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.codec.grids import Grid
    from turbofno.service.engine.interface import Frame, Trust

GRID, HORIZON = "grid", "horizon"
REASONS = (GRID, INPUT_DISTANCE, RESIDUAL, HORIZON)
"""Values of the label `reason` in the metric of warnings."""

_MEANING = {
    INPUT_DISTANCE: "model {model} was not trained on such inputs",
    RESIDUAL: "the relative error of the prediction is about that large",
}


class AnswerWarning(NamedTuple):
    """One warning. The text has no semicolon, which separates the texts in the header."""

    reason: str
    text: str


def of_prediction(
    config: ModelConfig, input_grid: Grid, output_grid: Grid | None, trust: Trust
) -> tuple[AnswerWarning, ...]:
    """The warnings of a prediction for fields on `input_grid`; `output_grid` is None if the request has none.

    Thresholds are those of the input grid, also if the model runs on its training grid: a coarse input raises the
    signals.
    """
    return of_grids(config, input_grid, output_grid) + of_trust(config, input_grid, trust)


def of_grids(
    config: ModelConfig, input_grid: Grid, output_grid: Grid | None = None
) -> tuple[AnswerWarning, ...]:
    """A warning for each grid on which the model's error was not measured."""
    return tuple(
        AnswerWarning(GRID, text) for text in grid_warnings(config, input_grid, output_grid)
    )


def of_trust(config: ModelConfig, grid: Grid, trust: Trust) -> tuple[AnswerWarning, ...]:
    """A warning for each signal above the model's threshold for the input grid; none without thresholds."""
    if config.statistics is None or config.statistics.thresholds is None:
        return ()
    known = config.statistics.thresholds
    found = []
    for signal, limit in known.on(grid).items():
        values = trust.get(signal, ())
        above = sum(value > limit for value in values)
        if above:
            worst = max(values)
            where = "" if len(values) == 1 else f" of field {values.index(worst)}"
            others = "" if above == 1 else f" ({above} of {len(values)} fields are above the limit)"
            meaning = _MEANING[signal].format(model=config.name)
            text = (
                f"{signal} {worst:.3g}{where} is above {limit:.3g}{others}, which only 1 in "
                f"{1 / known.exceeded_by:.0f} fields like the training data exceeds: {meaning}"
            )
            found.append(AnswerWarning(signal, text))
    return tuple(found)


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
        self._config = config
        self._grid = grid
        self._reported: set[str] = set()

    def of(self, frame: Frame) -> tuple[AnswerWarning, ...]:
        """The warnings that are new with this frame."""
        new = [
            AnswerWarning(reason, f"step {frame.step}: {text}")
            for reason, text in of_trust(self._config, self._grid, frame.trust)
            if reason not in self._reported
        ]
        self._reported.update(one.reason for one in new)
        return tuple(new)
