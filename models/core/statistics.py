"""Statistics of a model's training data, and the warning thresholds of its trust signals."""

from __future__ import annotations

import math
from typing import Annotated, Self

from pydantic import Field, PositiveFloat, PositiveInt, model_validator

from turbofno.models.core.strict import Strict

INPUT_DISTANCE = "input_distance"
RESIDUAL = "residual"
LARGEST = 1e6
"""Upper bound of every trust signal; also replaces NaN."""


class ChannelStatistics(Strict):
    """Moments of one channel over the training set, in physical units."""

    mean: float
    std: float
    minimum: float
    maximum: float


class FeatureStatistics(Strict):
    """Mean and standard deviation of every feature (models/trust/features.py) of one input channel."""

    mean: Annotated[tuple[float, ...], Field(min_length=2)]
    std: tuple[PositiveFloat, ...]

    @model_validator(mode="after")
    def _same_length(self) -> Self:
        if len(self.mean) != len(self.std):
            raise ValueError(
                f"mean has {len(self.mean)} entries, but std has {len(self.std)}; expected one per feature"
            )
        return self


class InputDistribution(Strict):
    """Feature statistics of `n_fields` training inputs; `edge` is the distance that 1 in 100 of them exceeds."""

    n_fields: PositiveInt
    edge: PositiveFloat
    inputs: Annotated[tuple[FeatureStatistics, ...], Field(min_length=1)]


class GridThresholds(Strict):
    """Thresholds of both signals on one grid; None: the signal has no threshold.

    `n_fields` calibration fields gave that of the input distance; some or all of them gave that of the residual.
    """

    grid: Annotated[tuple[PositiveInt, ...], Field(min_length=1)]
    n_fields: PositiveInt
    input_distance: PositiveFloat | None = None
    residual: PositiveFloat | None = None


class Thresholds(Strict):
    """Values of the trust signals above which an answer carries a warning.

    `exceeded_by` is the share of calibration fields whose signal is above its threshold. Calibration fields are fresh
    samples from the distribution of the training data; for the residual, those from which the model is evaluated. A grid
    that is not listed uses the larger threshold of the next coarser and the next finer one.
    """

    exceeded_by: Annotated[float, Field(gt=0, lt=1)]
    grids: Annotated[tuple[GridThresholds, ...], Field(min_length=1)]

    def on(self, grid: tuple[int, ...]) -> dict[str, float]:
        """Signal -> its threshold on `grid`."""
        around = [one for one in self.grids if one.grid == grid] or self._around(math.prod(grid))
        limits: dict[str, float] = {}
        for one in around:
            for name, limit in ((INPUT_DISTANCE, one.input_distance), (RESIDUAL, one.residual)):
                if limit is not None:
                    limits[name] = max(limit, limits.get(name, limit))
        return limits

    def _around(self, points: int) -> list[GridThresholds]:
        """The next coarser and the next finer grid, if there are any."""
        known = sorted(self.grids, key=_points)
        coarser = [one for one in known if _points(one) <= points]
        finer = [one for one in known if _points(one) >= points]
        return coarser[-1:] + finer[:1]


def _points(one: GridThresholds) -> int:
    return math.prod(one.grid)


class Statistics(Strict):
    """Statistics of the training data, for the distance of an input from it."""

    n_samples: PositiveInt
    inputs: tuple[ChannelStatistics, ...]
    outputs: tuple[ChannelStatistics, ...]
    distribution: InputDistribution | None = None
    thresholds: Thresholds | None = None
