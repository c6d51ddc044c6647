"""Draw every panel of the dashboard from Prometheus data: `python -m tests.deploy.picture docs/dashboard.png`."""

from __future__ import annotations

import sys
import tempfile
import time
from contextlib import ExitStack
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING

import matplotlib

from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS

matplotlib.use("Agg")
from matplotlib import pyplot as plt
from matplotlib.ticker import EngFormatter, PercentFormatter

from tests.deploy.monitoring import Prometheus, dashboard_targets
from tests.deploy.traffic import gpu_stand_in, load
from tests.e2e.server_process import ServerProcess

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from tests.deploy.monitoring import Target

ZOO = {problem.name: problem.grid.training for problem in PROBLEMS.values()}
SUFFIX = {"s": "s", "bytes": "B", "reqps": "/s", "ops": "/s"}
COLUMNS = 4


def draw(prometheus: Prometheus, start: float, end: float, path: Path) -> None:
    """Write a picture with a plot for each panel and a line for each series, from `start` to `end` (Unix times)."""
    panels = [
        (title, list(targets))
        for title, targets in groupby(dashboard_targets(), key=lambda target: target.panel)
    ]
    rows = -(-len(panels) // COLUMNS)
    figure, grid = plt.subplots(
        rows, COLUMNS, figsize=(4.4 * COLUMNS, 2.7 * rows), layout="constrained"
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)
    for axes, (title, targets) in zip(grid.flat, panels, strict=False):
        _panel(axes, title, targets, prometheus, start, end)
    figure.savefig(path, dpi=70)


def _panel(
    axes: Axes,
    title: str,
    targets: list[Target],
    prometheus: Prometheus,
    start: float,
    end: float,
) -> None:
    for target in targets:
        for labels, line in prometheus.history(target.expression, start, end):
            name = target.name(labels) if any(value for _, value in line) else None
            axes.plot(*zip(*line, strict=True), label=name)
    unit = targets[0].unit
    axes.yaxis.set_major_formatter(
        PercentFormatter(1.0) if unit == "percentunit" else EngFormatter(SUFFIX.get(unit, ""))
    )
    axes.set_title(title, fontsize=10, loc="left")
    axes.set_ylim(bottom=0)
    axes.tick_params(labelsize=7)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=6, loc="best")


def main() -> None:
    """Serve the zoo under load for a minute, then draw."""
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder = Path(name)
        gpu = stack.enter_context(gpu_stand_in())
        service = stack.enter_context(
            ServerProcess(
                TRAINED, folder / "log", "--max-body-bytes", "1000000",
                "--max-json-bytes", "1000",
            )
        )  # fmt: skip
        prometheus = stack.enter_context(
            Prometheus(folder, [service.url.removeprefix("http://"), gpu])
        )
        prometheus.wait_for("turbofno_model_loaded")
        start = time.time()
        for clients in (2, 8):
            with load(service.url, ZOO, clients):
                time.sleep(20.0)
        draw(prometheus, start + 5, time.time(), Path(sys.argv[1]))


if __name__ == "__main__":
    main()
