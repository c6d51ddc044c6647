"""Plots of a model's input beside its prediction; needs matplotlib, which is optional."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    from turbofno.models.core.config import Channel, GridSpec

_PANEL_INCHES = (4.6, 3.6)
_AXIS_NAMES = ("x", "y", "z")


def save_picture(
    path: Path,
    fields: NDArray[np.float32],
    prediction: NDArray[np.float32],
    *,
    inputs: Sequence[Channel],
    outputs: Sequence[Channel],
    grid: GridSpec,
    title: str,
) -> None:
    """Plot one field and its prediction, with a panel for each channel, input channels in the left column.

    Line plots for one grid axis, heat maps for two; for three axes, the middle plane of the last axis.

    Args:
        path: file to write; its suffix chooses the format (.png, .svg, .pdf).
        fields: [len(inputs), *grid], physical units.
        prediction: [len(outputs), *grid], physical units.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: the suffix of `path` is not a picture format.
        OSError: `path` cannot be written.
    """
    from matplotlib.figure import Figure

    rows = max(len(inputs), len(outputs))
    width, height = _PANEL_INCHES
    figure = Figure(figsize=(2 * width, rows * height), layout="constrained")
    figure.suptitle(title)
    axes = figure.subplots(rows, 2, squeeze=False)
    columns = (("input", fields, inputs), ("prediction", prediction, outputs))
    for column, (kind, values, channels) in enumerate(columns):
        for row in range(rows):
            if row < len(channels):
                _draw(figure, axes[row, column], kind, values[row], channels[row], grid)
            else:
                axes[row, column].set_axis_off()
    figure.savefig(path, dpi=120)


def _draw(
    figure: Figure,
    axes: Axes,
    kind: str,
    values: NDArray[np.float32],
    channel: Channel,
    grid: GridSpec,
) -> None:
    names = [name if grid.units == "1" else f"{name} [{grid.units}]" for name in _AXIS_NAMES]
    where = ""
    if values.ndim == 3:
        middle = values.shape[-1] // 2
        values, where = values[..., middle], f", plane {middle} of {values.shape[-1]}"
    axes.set_title(f"{kind}: {channel.name}{where}")
    axes.set_xlabel(names[0])
    if values.ndim == 1:
        points, periodic = values.shape[0], grid.boundary == "periodic"
        axes.plot(np.linspace(0.0, grid.extent[0], points, endpoint=not periodic), values)
        axes.set_ylabel(channel.quantity)
        axes.grid(visible=True, alpha=0.3)
        return
    # Array axis 0 is x; imshow draws axis 0 upwards, so transpose.
    image = axes.imshow(
        values.T,
        origin="lower",
        extent=(0.0, grid.extent[0], 0.0, grid.extent[1]),
        cmap="viridis",
        interpolation="nearest",
    )
    axes.set_ylabel(names[1])
    figure.colorbar(image, ax=axes, label=channel.quantity)
