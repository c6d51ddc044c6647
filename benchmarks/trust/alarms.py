"""Shares of good and bad fields that raise a warning: `python -m benchmarks.trust.alarms [NAME ...]` prints three tables.

Good fields are held-out samples of the training distribution. Bad fields are those of benchmarks.trust.ranking's record
whose error is over three times the card's, and inputs that are plainly wrong (another unit, noise, a constant).
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from benchmarks.trust.cases import noise_like
from benchmarks.trust.ranking import BAD, RECORD
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.statistics import INPUT_DISTANCE, RESIDUAL
from turbofno.models.trust.calibrate import evaluated, sampled, signals_of
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import HELD_OUT_SEED, PROBLEMS, problem_named
from turbofno.models.zoo.train import positive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch import Tensor

    from turbofno.models.core.checkpoint import LoadedModel
    from turbofno.models.zoo.problems import Problem

_TRAJECTORIES = 100
"""Simulated samples of a time-dependent problem; fields are taken from the evaluated frames of all of them."""
_GROSS_FIELDS = 16
_SIGNALS = (INPUT_DISTANCE, RESIDUAL)


def _sine(fields: Tensor, waves: int) -> Tensor:
    points = fields.shape[-1]
    wave = torch.sin(2 * math.pi * waves * torch.arange(points) / points)
    return wave.expand_as(fields).clone()


GROSS: dict[str, Callable[[Tensor], Tensor]] = {
    "10 times as large": lambda fields: 10 * fields,
    "1000 times as large (another unit)": lambda fields: 1000 * fields,
    "with as much white noise": lambda fields: fields + noise_like(fields, 1.0),
    "white noise alone": lambda fields: noise_like(fields, 1.0),
    "1 everywhere": torch.ones_like,
    "0 everywhere": torch.zeros_like,
    "sin(4 pi x)": lambda fields: _sine(fields, 2),
    "sin(6 pi x)": lambda fields: _sine(fields, 3),
}


def limits_of(model: LoadedModel) -> dict[str, float]:
    """Signal -> its threshold on the training grid."""
    statistics = model.config.statistics
    assert statistics is not None
    assert statistics.thresholds is not None
    return statistics.thresholds.on(model.config.grid.training)


def held_out_fields(problem: Problem, count: int) -> Iterator[Tensor]:
    """`count` held-out fields in batches [n, 1, *grid]."""
    n = problem.grid.training[0]
    if problem.time_step is None:
        yield from sampled(problem, count, seed=HELD_OUT_SEED, n=n)
        return
    drawn = torch.cat(list(sampled(problem, _TRAJECTORIES, seed=HELD_OUT_SEED, n=n)))
    fields = evaluated(problem, drawn, _TRAJECTORIES)
    yield fields[:: max(1, len(fields) // count)][:count]


def good_row(model: LoadedModel, problem: Problem, count: int) -> str:
    """A row with the share of held-out fields above each signal's threshold, and above either."""
    limits = limits_of(model)
    found = signals_of(model, held_out_fields(problem, count))
    above = {name: found[name] > limit for name, limit in limits.items()}
    either = torch.stack(list(above.values())).any(0)
    values = (f"{limits[name]:.3g}" if name in limits else "-" for name in _SIGNALS)
    shares = [_share(above[name]) if name in above else "-" for name in _SIGNALS] + [_share(either)]
    return f"| {problem.name} | {len(either)} | {' | '.join((*values, *shares))} |"


def recorded_rows(model: LoadedModel, folder: Path) -> Iterator[str]:
    """A row for each case of the record: how many of its bad fields, and of the others, raise a warning."""
    statistics = model.config.statistics
    assert statistics is not None
    assert statistics.thresholds is not None
    bound = BAD * model.config.evaluation[0].value
    for line in (folder / RECORD).read_text().splitlines()[1:]:
        case = json.loads(line)
        limits = statistics.thresholds.on(tuple(case["grid"]))
        signals = [
            (torch.tensor(case["values"][name]), limit)
            for name, limit in limits.items()
            if name in case["values"]
        ]
        warned = torch.stack([values > limit for values, limit in signals]).any(0)
        bad = torch.tensor(case["values"]["error"]) > bound
        error = 100 * torch.tensor(case["values"]["error"]).median()
        yield (
            f"| {model.config.name} | {case['case']} | {error:.2g} % | {_counted(warned & bad, bad)} | "
            f"{_counted(warned & ~bad, ~bad)} |"
        )


def gross_rows(model: LoadedModel, problem: Problem) -> Iterator[str]:
    """A row for each plainly wrong input of GROSS: how many of its fields are above each threshold."""
    limits = limits_of(model)
    fields = next(held_out_fields(problem, _GROSS_FIELDS))
    bounds = [channel.exclusive_minimum for channel in problem.inputs]
    for name, change in GROSS.items():
        changed = change(fields)
        low = bounds[0] is not None and bool((changed <= bounds[0]).any())
        if low:
            yield f"| {problem.name} | {name} | refused | refused |"
            continue
        found = signals_of(model, iter([changed]))
        shares = (
            _counted(found[signal] > limits[signal], None) if signal in limits else "-"
            for signal in _SIGNALS
        )
        yield f"| {problem.name} | {name} | {' | '.join(shares)} |"


def _share(warned: Tensor) -> str:
    return f"{100 * warned.float().mean():.1f} %"


def _counted(part: Tensor, whole: Tensor | None) -> str:
    total = len(part) if whole is None else int(whole.sum())
    return f"{int(part.sum())} of {total}" if total else "-"


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, run, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trust.alarms", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="zoo models; default: all")
    parser.add_argument("--n", type=positive, default=1000, help="held-out fields of each model")
    parser.add_argument("--zoo", type=Path, default=TRAINED, help="folder of checkpoints")
    arguments = parser.parse_args(argv)
    problems = [problem_named(name) for name in arguments.names or PROBLEMS]
    models = [load_model(arguments.zoo / problem.name) for problem in problems]
    pairs = list(zip(models, problems, strict=True))
    tables = {
        "| model | held-out fields | `input_distance` warns above | `residual` warns above | warned by "
        "distance | by residual | by either |": [
            good_row(model, one, arguments.n) for model, one in pairs
        ],
        "| model | fields | median error | warned, of the bad | warned, of the others |": [
            row for model, one in pairs for row in recorded_rows(model, arguments.zoo / one.name)
        ],
        "| model | fields | by distance | by residual |": [
            row for model, one in pairs for row in gross_rows(model, one)
        ],
    }
    for head, rows in tables.items():
        rule = "|" + "---|" * (head.count("|") - 1)
        sys.stdout.write("\n".join((head, rule, *rows)) + "\n\n")


if __name__ == "__main__":
    main()
