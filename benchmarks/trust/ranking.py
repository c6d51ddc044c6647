"""Rank correlation and ROC area of the trust signals: `python -m benchmarks.trust.ranking [NAME ...] --write`.

Writes trust.jsonl (error and signals of every field, a line for each case) and trust.png into the model's folder.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from benchmarks.trust.cases import CASES, Case
from benchmarks.trust.picture import draw
from turbofno.models.core.checkpoint import LoadedModel, load_model
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import PROBLEMS, problem_named
from turbofno.models.zoo.train import positive, relative_l2

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Numbers = NDArray[np.float64]

RECORD = "trust.jsonl"
BAD = 3.0
"""A field is bad if its error is more than this many times the card's."""
_AT_ONCE = 16


@torch.inference_mode()
def run_case(model: LoadedModel, case: Case, samples: int) -> dict[str, Any]:
    """A line of the record: the error and the signals of each of the case's fields."""
    signals = Signals(model.config)
    inputs, truth = case.make(range(samples))
    values: dict[str, list[float]] = {}
    for x, y in zip(inputs.split(_AT_ONCE), truth.split(_AT_ONCE), strict=True):
        x = x.unsqueeze(1)
        predicted = model.module(x)
        found = {"error": relative_l2(predicted, y.unsqueeze(1)), **signals(x, predicted)}
        for name, value in found.items():
            values.setdefault(name, []).extend(float(f"{v:.4g}") for v in value.tolist())
    return {
        "case": case.name,
        "in_distribution": case.in_distribution,
        "declared": not case.name.startswith("solved with"),
        "grid": list(inputs.shape[1:]),
        "values": values,
    }


def ranks(values: Numbers) -> Numbers:
    """Ranks from 1; equal values share their mean rank."""
    _, places, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    mean_rank: Numbers = last - (counts - 1) / 2
    return mean_rank[places]


def spearman(signal: Numbers, error: Numbers) -> float:
    """Rank correlation."""
    return float(np.corrcoef(ranks(signal), ranks(error))[0, 1])


def roc_auc(signal: Numbers, bad: NDArray[np.bool_]) -> float:
    """Probability that a bad field has a larger signal than a good one; NaN if either kind is absent."""
    positives, negatives = int(bad.sum()), int((~bad).sum())
    if not positives or not negatives:
        return float("nan")
    above = ranks(signal)[bad].sum() - positives * (positives + 1) / 2
    return float(above / (positives * negatives))


def summarise(lines: Sequence[dict[str, Any]], card_error: float) -> dict[str, Any]:
    """Rank correlation of each signal with the error, in distribution and overall, and its ROC area for bad fields.

    Cases solved with another PDE than the model declares are left out: input and output do not show the difference.
    """
    seen = [line for line in lines if line["declared"]]
    summary: dict[str, Any] = {"card_error": card_error, "bad_above": BAD * card_error}
    names = dict.fromkeys(name for line in seen for name in line["values"] if name != "error")
    for name in names:
        having = [line for line in seen if name in line["values"]]
        signal, error = _joined(having, name), _joined(having, "error")
        inside = [line for line in having if line["in_distribution"]]
        summary[name] = {
            "fields": len(signal),
            "bad": int((error > BAD * card_error).sum()),
            "spearman": _rounded(spearman(signal, error)),
            "spearman in distribution": _rounded(
                spearman(_joined(inside, name), _joined(inside, "error"))
            ),
            "auc": _rounded(roc_auc(signal, error > BAD * card_error)),
        }
    return summary


def _joined(lines: Sequence[dict[str, Any]], name: str) -> Numbers:
    return np.concatenate([np.asarray(line["values"][name], np.float64) for line in lines])


def _rounded(value: float) -> float:
    return round(value, 3)


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run every case, print a summary; with --write, write the record and the picture."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust.ranking", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="zoo models; default: all")
    parser.add_argument("--n", type=positive, default=12, help="fields a case, default %(default)s")
    parser.add_argument("--zoo", type=Path, default=TRAINED, help="folder of checkpoints")
    parser.add_argument("--write", action="store_true", help=f"write {RECORD} and trust.png")
    arguments = parser.parse_args(argv)
    for name in arguments.names or PROBLEMS:
        problem = problem_named(name)
        folder = arguments.zoo / problem.name
        model = load_model(folder)
        lines = []
        for case in CASES[problem.key]:
            samples = 4 * arguments.n if case.in_distribution else arguments.n
            lines.append(run_case(model, case, samples))
            _print_medians(lines[-1])
        summary = summarise(lines, model.config.evaluation[0].value)
        sys.stdout.write(json.dumps({"model": problem.name} | summary, indent=1) + "\n")
        if arguments.write:
            head = {"model": problem.name, "torch": torch.__version__, "summary": summary}
            rows = [head, *lines]
            (folder / RECORD).write_text("".join(json.dumps(row) + "\n" for row in rows))
            draw(folder / "trust.png", lines, summary)


def _print_medians(line: dict[str, Any]) -> None:
    medians = (f"{name} {np.median(values):.3g}" for name, values in line["values"].items())
    sys.stdout.write(f"  {line['case']:32} {'  '.join(medians)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
