"""Pictures of a verification: best, median and worst sample; error histogram, work-precision diagram, error in time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from turbofno.models.verify.report import Finding, Report
from turbofno.models.zoo.card import draw_sample, sample_size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_DPI = 80


def draw(folder: Path, report: Report) -> list[Path]:
    """Write samples.png (of the last task, the rollout if there is one) and errors.png; return their paths."""
    files = [folder / "samples.png", folder / "errors.png"]
    _draw_samples(files[0], report)
    _draw_errors(files[1], report)
    return files


def _draw_samples(file: Path, report: Report) -> None:
    from matplotlib.figure import Figure

    finding = report.findings[-1]
    errors = finding.outcome.errors.sort().values
    ranks = {"best": 0, "median": len(errors) // 2, "worst": len(errors) - 1}
    width, height = sample_size(finding.task.truth.ndim - 2)
    figure = Figure(figsize=(width, 2.9 * height), layout="constrained")
    rows = figure.subfigures(3, 1, squeeze=False)[:, 0]
    for (name, rank), row in zip(ranks.items(), rows, strict=True):
        draw_sample(row, report.config, finding.outcome.example(finding.task, rank))
        error = f"relative L2 {_percent(errors[rank].item())}"
        row.suptitle(f"{name} of {len(errors)} ({finding.task.name}): {error}", weight="bold")
    figure.savefig(file, dpi=_DPI)


def _draw_errors(file: Path, report: Report) -> None:
    from matplotlib.figure import Figure

    rolled = [finding for finding in report.findings if finding.task.steps > 1]
    rows = len(report.findings)
    figure = Figure(figsize=(15.0 if rolled else 11.0, 3.6 * rows), layout="constrained")
    axes = figure.subplots(rows, 3 if rolled else 2, squeeze=False)
    for row, finding in zip(axes, report.findings, strict=True):
        _histogram(row[0], finding)
        _work_and_precision(row[1], finding)
        if finding in rolled:
            _over_time(row[2], finding)
        elif rolled:
            row[2].set_axis_off()
    figure.savefig(file, dpi=_DPI)


def _histogram(axes: Axes, finding: Finding) -> None:
    percent = 100 * finding.outcome.errors.cpu().numpy()
    axes.hist(percent, bins=max(8, round(2 * math.sqrt(len(percent)))), color="C0", alpha=0.8)
    axes.axvline(100 * finding.mean, color="black", label=f"mean {_percent(finding.mean)}")
    if finding.verdict.stated is not None:
        stated, by = finding.verdict.stated, finding.verdict.by
        axes.axvline(100 * stated, color="C3", linestyle="--", label=f"{by}: {_percent(stated)}")
    axes.set(title=finding.task.name, xlabel="relative L2 [%]", ylabel="samples")
    axes.legend(fontsize="small")


def _work_and_precision(axes: Axes, finding: Finding) -> None:
    """Plot time and error of the solver's settings, one colour per grid; the surrogate is a star."""
    grids = sorted({trial.grid for trial in finding.equal_error.tried})
    for number, grid in enumerate(grids):
        trials = [
            trial
            for trial in finding.equal_error.tried
            if trial.grid == grid and math.isfinite(trial.error)
        ]
        axes.plot(
            [1e3 * trial.seconds for trial in trials],
            [100 * trial.error for trial in trials],
            ".-", color=f"C{number % 10}", alpha=0.7, label=f"solver, {grid} points",
        )  # fmt: skip
    for race in finding.equal_error.races[-1:]:
        place = (1e3 * race.surrogate_seconds, 100 * finding.mean)
        axes.plot(*place, "*", color="black", markersize=14, label="surrogate")
    axes.axhline(100 * finding.mean, color="black", linewidth=0.8, linestyle=":")
    axes.set(xscale="log", yscale="log", title=f"{len(finding.task.inputs)} samples at a time")
    axes.set(xlabel="time for one sample [ms]", ylabel="mean relative L2 [%]")
    axes.legend(fontsize="x-small", loc="upper left", bbox_to_anchor=(1.0, 1.0))


def _over_time(axes: Axes, finding: Finding) -> None:
    began = finding.task.began[0] if finding.task.began else 0.0
    times = [began + time for time in finding.task.times]
    by_step = 100 * finding.outcome.by_step.cpu()
    axes.plot(times, by_step.median(dim=0).values, color="C0", label="median")
    low, high = by_step.quantile(0.1, dim=0), by_step.quantile(0.9, dim=0)
    axes.fill_between(times, low, high, color="C0", alpha=0.25, label="10 % to 90 %")
    axes.plot(times, by_step.max(dim=0).values, color="C3", linewidth=0.8, label="worst")
    axes.set(yscale="log", xlabel="t", ylabel="relative L2 [%]", title="error against time")
    axes.legend(fontsize="small")


def _percent(value: float) -> str:
    return f"{100 * value:.3g} %"
