"""The grids of a request: which one its answer is to be on, the network's own, and which ones nobody has evaluated."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from turbofno.models.core.regrid import at_points, band_limited
from turbofno.service.codec.fields import MAX_RANK, check_grid
from turbofno.service.errors import BadRequest, InvalidField

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import Fields

    Grid = tuple[int, ...]

OUTPUT_GRID = "output_grid"


def parse_output_grid(text: str, config: ModelConfig) -> Grid:
    """The grid that "128,128" asks the answer on.

    Raises:
        BadRequest: no such list of numbers.
        InvalidField: the model has no answer there.
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
            f"model '{config.name}' takes its points for the centres of cells, whose places differ from grid to grid: "
            f"{OUTPUT_GRID} is offered for points that both grids share; leave it out"
        )
    check_grid(grid, config, name=OUTPUT_GRID)
    return grid


def to_network(fields: Fields, config: ModelConfig) -> Fields:
    """Checked fields, brought to the grid that the model was trained on. Raises InvalidField as `_finite`."""
    return _finite(band_limited(fields, config.grid.training, config.grid.boundary), "input")


def from_network(fields: Fields, grid: Grid, config: ModelConfig) -> Fields:
    """The model's answer, at the points of another grid. Raises InvalidField as `_finite`."""
    return _finite(at_points(fields, grid, config.grid.boundary), "answer")


def _finite(fields: Fields, what: str) -> Fields:
    """Raises InvalidField where values so large that they are of no use anyway passed float32 between their points."""
    if not np.isfinite(fields).all():
        raise InvalidField(
            f"the {what} has values so large that it passes float32 between its grid points: scale it, "
            f"or leave {OUTPUT_GRID} out"
        )
    return fields


def grid_warnings(
    config: ModelConfig, input_grid: Grid, output_grid: Grid | None
) -> tuple[str, ...]:
    """In words, which of a request's grids lie outside those that the model was trained or evaluated on."""
    training = config.grid.training
    if input_grid == training and output_grid in (None, training):
        return ()
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
    if not outside:
        return ()
    ends = dict.fromkeys(_joined(tuple(map(end, sizes))) for end in (min, max))
    return tuple(
        f"the {what} grid {_joined(grid)} is outside of those that model {config.name} was evaluated on "
        f"({' to '.join(ends)}): its error there is not known"
        for what, grid in outside
    )


def _joined(grid: Grid, separator: str = "x") -> str:
    return separator.join(map(str, grid))
