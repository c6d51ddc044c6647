"""Picture of the trust signals: each signal against the true error, and ROC curves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from matplotlib.axes import Axes

SHOWN = ("input_distance", "residual")


def draw(file: Path, lines: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
    """Write a PNG with a scatter plot for each signal and a panel of ROC curves."""
    from matplotlib.figure import Figure

    names = [name for name in SHOWN if name in summary]
    figure = Figure(figsize=(5 * len(names) + 5, 4.4), layout="constrained")
    axes = figure.subplots(1, len(names) + 1)
    for axis, name in zip(axes, names, strict=False):
        _scatter(axis, name, lines, summary)
    _curves(axes[-1], lines, summary)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize="x-small")
    figure.savefig(file, dpi=100)


def _scatter(
    axis: Axes, name: str, lines: Sequence[dict[str, Any]], summary: dict[str, Any]
) -> None:
    for index, line in enumerate(lines):
        if name not in line["values"]:
            continue
        inside = line["in_distribution"]
        axis.loglog(
            line["values"][name],
            line["values"]["error"],
            linestyle="none",
            marker="." if inside else "ox+v^sD*"[index // 10 * 3 % 8],
            color="k" if inside else f"C{index % 10}",
            markersize=4,
            alpha=0.7,
            label=line["case"],
        )
    axis.axhline(summary["bad_above"], color="0.6", linewidth=0.8)
    if name == "input_distance":
        axis.axvline(1.0, color="0.6", linewidth=0.8)
    axis.set_xlabel(name)
    axis.set_ylabel("true relative L2 error")
    axis.set_title(f"{name}: rank correlation {summary[name]['spearman']:.2f}")


def _curves(axis: Axes, lines: Sequence[dict[str, Any]], summary: dict[str, Any]) -> None:
    names = [name for name, found in summary.items() if isinstance(found, dict)]
    for name in names:
        having = [line for line in lines if line["declared"] and name in line["values"]]
        signal = np.concatenate([line["values"][name] for line in having])
        error = np.concatenate([line["values"]["error"] for line in having])
        bad = (error > summary["bad_above"])[np.argsort(-signal, kind="stable")]
        caught = np.cumsum(bad) / max(1, bad.sum())
        alarmed = np.cumsum(~bad) / max(1, (~bad).sum())
        axis.plot(
            np.concatenate([[0], alarmed]),
            np.concatenate([[0], caught]),
            label=f"{name} ({summary[name]['auc']:.2f})",
        )
    axis.set_xlabel("share of good fields above the threshold")
    axis.set_ylabel("share of bad fields above it")
    axis.set_title(f"error > {summary['bad_above']:.2%}: ROC (area)")
    axis.legend(fontsize="small")
