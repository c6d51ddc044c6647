"""The grids of a request: the requested output grid, resampling to and from the training grid, and warnings."""

from __future__ import annotations

import re

import numpy as np

from turbofno.models.core.config import ModelConfig
from turbofno.models.core.regrid import at_points, band_limited
from turbofno.service.codec.fields import MAX_RANK, check_grid
from turbofno.service.engine.interface import Fields
from turbofno.service.errors import BadRequest, InvalidField

Grid = tuple[int, ...]
OUTPUT_GRID = "output_grid"


def parse_output_grid(text: str, config: ModelConfig) -> Grid:
    """Parse an output grid such as "128,128".

    Raises:
        BadRequest: not a list of numbers of points.
        InvalidField: the model cannot answer on this grid.
    """
    sizes = text.split(",")
    axes = len(config.grid.training)
    if len(sizes) > MAX_RANK or not all(re.fullmatch(r"[0-9]{1,9}", size) for size in sizes):
        raise BadRequest(
            f"{OUTPUT_GRID} is {text[:80]!r}, expected the number of points of each of {axes} axes, for example "
            f"{OUTPUT_GRID}={_joined(config.grid.training, ',')}"
        )
    grid = tuple(map(int, sizes))
    if len(grid) != axes:
        raise InvalidField(
            f"{OUTPUT_GRID} has {len(grid)} axes, model '{config.name}' has {axes}, for example "
            f"{OUTPUT_GRID}={_joined(config.grid.training, ',')}"
        )
    if config.architecture.positional_grid == "cell_centres":
        raise InvalidField(
            f"model '{config.name}' has values at cell centres, whose positions differ from grid to grid: "
            f"{OUTPUT_GRID} is not supported for it; leave it out"
        )
    check_grid(grid, config, name=OUTPUT_GRID)
    return grid


def to_network(fields: Fields, config: ModelConfig) -> Fields:
    """Resample checked fields to the model's training grid. Raises InvalidField as `_finite`."""
    return _finite(band_limited(fields, config.grid.training, config.grid.boundary), "input")


def from_network(fields: Fields, grid: Grid, config: ModelConfig) -> Fields:
    """Interpolate the model's output at the points of another grid. Raises InvalidField as `_finite`."""
    return _finite(at_points(fields, grid, config.grid.boundary), "output")


def _finite(fields: Fields, what: str) -> Fields:
    """Return the fields; raise InvalidField if resampling overflowed float32."""
    if not np.isfinite(fields).all():
        raise InvalidField(
            f"the {what} has values so large that interpolation between its grid points overflows float32: "
            f"scale it, or leave {OUTPUT_GRID} out"
        )
    return fields


def grid_warnings(
    config: ModelConfig, input_grid: Grid, output_grid: Grid | None
) -> tuple[str, ...]:
    """Warnings for grids of a request outside the range on which the model was trained or evaluated."""
    training = config.grid.training
    evaluated = (metric.grid for metric in config.evaluation)
    sizes = list(
        zip(*(grid for grid in (training, *evaluated) if len(grid) == len(training)), strict=True)
    )
    outside = [
        (what, grid)
        for what, grid in (("input", input_grid), ("output", output_grid))
        if grid
        and any(not min(known) <= n <= max(known) for n, known in zip(grid, sizes, strict=True))
    ]
    if not config.evaluation:
        return tuple(
            f"the {what} grid {_joined(grid)} is not the training grid of model {config.name}, which is "
            f"{_joined(training)} (an import assumes it, unless --grid gives it), and the model was not evaluated: its "
            "error is unknown"
            for what, grid in outside
        )
    ends = dict.fromkeys(_joined(tuple(map(end, sizes))) for end in (min, max))
    return tuple(
        f"the {what} grid {_joined(grid)} is outside the range that model {config.name} was evaluated on "
        f"({' to '.join(ends)}): its error there is unknown"
        for what, grid in outside
    )


def _joined(grid: Grid, separator: str = "x") -> str:
    return separator.join(map(str, grid))
