"""Draw the heat maps from their result files: `python -m benchmarks.gpu.picture`. Needs no GPU."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks import fusion
from benchmarks.fusion import GAINS, Gain, Ladder, ladders
from benchmarks.gpu.report import PICTURE
from benchmarks.page import read
from benchmarks.tables import DOCUMENT
from benchmarks.timing import RESULTS, no_options

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import LogNorm
    from matplotlib.image import AxesImage

Row = dict[str, Any]


def speed_ups(
    rows: list[Row],
) -> tuple[list[int], list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Batches, channels, and the speed-ups [channels, batches] of one grid; NaN if not measured."""
    batches = sorted({row["batch"] for row in rows})
    channels = sorted({row["channels"] for row in rows})
    table = np.full((len(channels), len(batches)), np.nan)
    for row in rows:
        table[channels.index(row["channels"]), batches.index(row["batch"])] = row["speed-up"]
    return batches, channels, table


def _panel(axes: Axes, rows: list[Row], scale: LogNorm) -> AxesImage:
    image = _cells(axes, *speed_ups(rows), scale)
    grid, modes = ("x".join(map(str, rows[0][key])) for key in ("grid", "modes"))
    axes.set_title(f"{len(rows[0]['grid'])}D, {grid} points, {modes} modes")
    return image


def _cells(
    axes: Axes,
    batches: list[int],
    channels: list[int],
    table: np.ndarray[tuple[int, int], np.dtype[np.float64]],
    scale: LogNorm,
) -> AxesImage:
    """Draw the gains of one grid with their values; equal speed has a black contour."""
    # red is faster, blue slower, as in the paper; safe for colour-blind readers
    image = axes.imshow(table, origin="lower", cmap="RdBu_r", norm=scale, aspect="auto")
    if min(table.shape) > 1 and np.nanmin(table) < 1 < np.nanmax(table):
        axes.contour(table, levels=[1.0], colors="black", linewidths=2)
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            dark = abs(float(scale(value)) - 0.5) > 0.3
            axes.text(j, i, f"{value:.2f}", ha="center", va="center", color="w" if dark else "k")
    axes.set_xticks(range(len(batches)), [str(batch) for batch in batches])
    axes.set_yticks(range(len(channels)), [str(count) for count in channels])
    axes.set_xlabel("batch")
    axes.set_ylabel("hidden channels")
    return image


def draw(rows: list[Row], file: Path) -> None:
    """Draw a panel for each grid; equal speed is white and a black contour."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    grids = list(dict.fromkeys(tuple(row["grid"]) for row in rows))
    largest = max(max(row["speed-up"], 1 / row["speed-up"]) for row in rows)
    scale = LogNorm(vmin=1 / max(largest, 1.1), vmax=max(largest, 1.1))
    figure = Figure(figsize=(7 * len(grids), 4.6), layout="constrained")
    panels = figure.subplots(1, len(grids), squeeze=False)[0]
    for axes, grid in zip(panels, grids, strict=True):
        image = _panel(axes, [row for row in rows if tuple(row["grid"]) == grid], scale)
    bar = figure.colorbar(image, ax=list(panels), label="times as fast as PyTorch eager")
    ticks = [t for t in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if 1 / largest <= t <= largest]
    bar.set_ticks(ticks, labels=[f"{tick:g}" for tick in ticks])
    bar.minorticks_off()
    one = rows[0]
    figure.suptitle("Fourier layer in float32: turbofno over PyTorch eager, higher is better")
    figure.supxlabel(
        f"{one['gpu']}, PyTorch {one['torch']}, CUDA {one['cuda']}, commit {one['commit']}; medians, each side at its "
        f"better of calls and CUDA graph; PyTorch's 1x1 convolution in {one['1x1 convolution of eager']}",
        fontsize="small",
    )
    figure.savefig(file, dpi=110)


def gain_table(
    found: list[Ladder], gain: Gain
) -> tuple[list[int], list[int], np.ndarray[tuple[int, int], np.dtype[np.float64]]]:
    """Batches, channels, and a rung's gains [channels, batches]; NaN if not measured."""
    rows = [
        {"batch": x.row["batch"], "channels": x.row["channels"], "speed-up": value}
        for x in found
        if (value := gain(x)) is not None
    ]
    return speed_ups(rows)


def draw_ladder(found: list[Ladder], file: Path) -> None:
    """Draw a row of panels for each gain and a column for each grid; no gain is white."""
    from matplotlib.colors import LogNorm
    from matplotlib.figure import Figure

    grids = list(dict.fromkeys(tuple(x.row["grid"]) for x in found))
    figure = Figure(figsize=(4.2 * len(grids), 2.6 * len(GAINS)), layout="constrained")
    panels = figure.subplots(len(GAINS), len(grids), squeeze=False)
    for line, (name, gain) in zip(panels, GAINS.items(), strict=True):
        tables = [
            gain_table([x for x in found if tuple(x.row["grid"]) == grid], gain) for grid in grids
        ]
        values = np.concatenate([table.ravel() for *_, table in tables])
        values = values[np.isfinite(values)]
        largest = max(1.1, *values, *(1 / values))
        scale = LogNorm(vmin=1 / largest, vmax=largest)
        for axes, grid, table in zip(line, grids, tables, strict=True):
            _cells(axes, *table, scale)
            axes.set_title(f"{name}\n{'x'.join(map(str, grid))} points", fontsize="small")
    one = found[0].row
    figure.suptitle("Gain of each rung over the one before, float32, higher is better")
    figure.supxlabel(
        f"{one['gpu']}, PyTorch {one['torch']}, CUDA {one['cuda']}, commit {one['commit']}",
        fontsize="small",
    )
    figure.savefig(file, dpi=110)


def main() -> None:
    """Draw the last results."""
    folder = DOCUMENT.parent
    files = [folder / PICTURE]
    draw(read(RESULTS / "gpu_heatmap.jsonl"), files[0])
    ladder = RESULTS / fusion.RESULT
    found = ladders(read(ladder)) if ladder.is_file() else []
    for axes, name in fusion.PICTURES.items():
        if of := [x for x in found if x.axes == axes]:
            files.append(folder / name)
            draw_ladder(of, files[-1])
    for file in files:
        print(f"written to {file.relative_to(folder.parent)}")


if __name__ == "__main__":
    no_options(__doc__)
    main()
