"""The report of `turbofno verify`, as JSON and as text, and the verdict on the card's error."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from turbofno.models.core.config import ModelConfig
from turbofno.models.verify.equal_error import EqualError, Race, Trial
from turbofno.models.verify.solvers import CoarseSolver
from turbofno.models.verify.tasks import Outcome, Task

_QUANTILES = {"min": 0.0, "10 %": 0.1, "median": 0.5, "90 %": 0.9, "max": 1.0}
_CLEARLY, _FAR = 1.5, 5.0
_CHANCE = 1e-3
"""Of calling a model clearly worse whose mean error is the card's."""
_AT_MOST = "--at-most"


@dataclass(frozen=True, slots=True)
class Verdict:
    """Comparison of the mean error with the bound `stated`; None: there is no bound."""

    stated: float | None
    by: str
    kept: bool

    def __str__(self) -> str:
        if self.stated is None and not self.kept:
            return "FAILED: some predictions are not finite"
        if self.stated is None:
            return f"{self.by} states no error for this task on this grid"
        worse = "worse" if self.by == _AT_MOST else "clearly worse"
        result = "confirmed" if self.kept else f"FAILED, the model is {worse}"
        return f"{self.by} states {_percent(self.stated)}: {result}"


@dataclass(frozen=True, slots=True)
class Finding:
    """The results of one task: the surrogate's errors, the verdict, the solver at equal error."""

    task: Task
    outcome: Outcome
    verdict: Verdict
    equal_error: EqualError

    @property
    def mean(self) -> float:
        return self.outcome.errors.mean().item()


@dataclass(frozen=True, slots=True)
class Report:
    """A verification; `conditions` are samples, grid, machine and versions."""

    config: ModelConfig
    solver: CoarseSolver
    command: str
    conditions: dict[str, Any]
    findings: tuple[Finding, ...]

    @property
    def kept(self) -> bool:
        return all(finding.verdict.kept for finding in self.findings)


def judge(task: Task, errors: torch.Tensor, config: ModelConfig, at_most: float | None) -> Verdict:
    """Compare the mean error with `at_most`, or else with the card's error on that grid.

    `at_most` is exact. The card's error fails if the mean is above 1.5 times its value, and these samples would show so
    much only once in 1000 times if the card were right; or if it is above 5 times its value. Errors that are not finite
    always fail.
    """
    mean = errors.mean().item()
    if not math.isfinite(mean):
        return Verdict(None, "any bound", kept=False)
    if at_most is not None:
        return Verdict(at_most, _AT_MOST, kept=mean <= at_most)
    grid = tuple(task.truth.shape[2:])
    for metric in config.evaluation:
        if metric.name == task.name and metric.grid == grid:
            worse = mean > _CLEARLY * metric.value and chance(errors, metric.value) < _CHANCE
            worse |= mean > _FAR * metric.value
            return Verdict(metric.value, "the card", kept=not worse)
    return Verdict(None, "the card", kept=True)


def chance(errors: torch.Tensor, expected: float) -> float:
    """The chance that so many samples have a mean this far above `expected` by Student's t; of one sample 1."""
    freedom = len(errors) - 1
    if freedom == 0:
        return 1.0
    above = (errors.mean().item() - expected) / math.sqrt(freedom)
    # the density of atan(t / sqrt(freedom)) is proportional to cos(angle) ** (freedom - 1)
    angles = torch.linspace(
        math.atan2(above, _standard_error(errors)), math.pi / 2, 4097, dtype=torch.float64
    )
    whole = math.sqrt(math.pi) * math.exp(math.lgamma(freedom / 2) - math.lgamma((freedom + 1) / 2))
    return torch.trapezoid(angles.cos() ** (freedom - 1), angles).item() / whole


def _standard_error(errors: torch.Tensor) -> float:
    return (errors.std() / math.sqrt(len(errors))).item()


def as_json(report: Report) -> dict[str, Any]:
    """The report as JSON, unrounded: errors are relative L2, seconds are per field."""
    return {
        "model": report.config.name,
        "version": report.config.version,
        "sha256": report.config.sha256,
        "command": report.command,
        **report.conditions,
        "reference": report.solver.reference,
        "kept": report.kept,
        "tasks": [_finding_as_json(finding, report.solver) for finding in report.findings],
    }


def _finding_as_json(finding: Finding, solver: CoarseSolver) -> dict[str, Any]:
    errors = finding.outcome.errors
    found: dict[str, Any] = {
        "name": finding.task.name,
        "mean": _finite(finding.mean),
        "standard_error": _finite(_standard_error(errors)),
        "quantiles": {name: _finite(value) for name, value in _quantiles(errors).items()},
        "errors": [_finite(value) for value in errors.tolist()],
        "verdict": asdict(finding.verdict) | {"words": str(finding.verdict)},
    }
    if finding.task.steps > 1:
        began = finding.task.began[0] if finding.task.began else 0.0
        found["error_against_time"] = {
            "times": [began + time for time in finding.task.times],
            "median": [_finite(x) for x in finding.outcome.by_step.median(dim=0).values.tolist()],
        }
    found["solver_at_equal_error"] = [
        asdict(race) | {"speed_up": race.speed_up} for race in finding.equal_error.races
    ]
    found["solver_tried"] = [
        {"grid": t.grid, solver.knob: t.effort, "error": _finite(t.error), "seconds": _finite(t.seconds)}
        for t in finding.equal_error.tried
    ]  # fmt: skip
    return found


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _quantiles(errors: torch.Tensor) -> dict[str, float]:
    return {name: errors.quantile(share).item() for name, share in _QUANTILES.items()}


def as_text(report: Report) -> str:
    """The report in Markdown."""
    about = report.conditions
    lines = [
        f"# {report.config.name} against the solver",
        "",
        f"`{report.command}`: {about['samples']} fresh samples (seed {about['seed']}), grid "
        f"{' x '.join(map(str, about['grid']))}.",
        f"On {about['device']}, threads: {about['threads']}, load average {about['load']}, torch {about['torch']}; the model runs as "
        f"{about['backend']} in {about['precision']}.",
        f"Reference: {report.solver.reference}.",
        "",
        f"| relative L2 | mean | {' | '.join(_QUANTILES)} |",
        "|---|" + "---|" * (len(_QUANTILES) + 1),
    ]
    for finding in report.findings:
        values = [finding.mean, *_quantiles(finding.outcome.errors).values()]
        lines.append(f"| {finding.task.name} | {' | '.join(map(_percent, values))} |")
    lines.append("")
    lines += [f"- {finding.task.name}: {finding.verdict}" for finding in report.findings]
    lines += ["", f"At equal error, {about['clock']} for one sample:", ""]
    lines += ["| | surrogate | solver | speed-up | solver settings |", "|---|---|---|---|---|"]
    for finding in report.findings:
        races = finding.equal_error.races
        lines += [_race_as_text(finding.task.name, race, report.solver.knob) for race in races]
        if not math.isfinite(finding.mean):
            lines.append(
                f"| {finding.task.name} | | | | not measured: predictions are not finite |"
            )
        elif not races:
            lines.append(f"| {finding.task.name} | | | | no setting of the solver is as accurate |")
    return "\n".join(lines) + "\n"


def _race_as_text(name: str, race: Race, knob: str) -> str:
    return (
        f"| {name}, {race.batch} at a time | {_milliseconds(race.surrogate_seconds)} | "
        f"{_milliseconds(race.solver_seconds)} | {race.speed_up:.2g} | "
        f"{_trial_as_text(race.trial, knob)} |"
    )


def _trial_as_text(trial: Trial, knob: str) -> str:
    return f"{trial.grid} points per axis, {knob} {trial.effort:g}, error {_percent(trial.error)}"


def _percent(value: float) -> str:
    return f"{value:.3%}"


def _milliseconds(seconds: float) -> str:
    return f"{1e3 * seconds:.3g} ms"
