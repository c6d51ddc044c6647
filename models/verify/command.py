"""`turbofno verify`: run solver and model on fresh inputs, compare them, write a report and pictures."""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import shlex
import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from turbofno.models.core.config import PDE, ModelConfig
from turbofno.models.verify.equal_error import EqualError, compare, timed_in_cpu_time
from turbofno.models.verify.pictures import draw
from turbofno.models.verify.report import Finding, Report, as_json, as_text, judge
from turbofno.models.verify.solvers import COARSE_SOLVERS
from turbofno.models.verify.tasks import Surrogate, outcome, tasks_of
from turbofno.models.zoo.evaluate import held_out_frames
from turbofno.models.zoo.problems import PROBLEMS, TRAINING_SEED, Problem
from turbofno.models.zoo.train import device_name

_SEED_LIMIT = 1 << 12


class Verifiable(NamedTuple):
    """A loaded checkpoint, the function that the service runs for it, and its backend and precision after a run."""

    config: ModelConfig
    surrogate: Surrogate
    ran: Callable[[], tuple[str, str]]
    device: torch.device


def run(arguments: argparse.Namespace, model: Verifiable) -> int:
    """Verify, print the report, write files with --out; return 0, or 1 if the error is clearly above its bound.

    Raises:
        ValueError: no solver for the model, or a grid that the model or the solver does not support.
        OSError: the folder for the report cannot be created or written.
    """
    problem = problem_of(model.config, arguments.pde)
    grid = _checked_grid(arguments.grid, model.config)
    seed = arguments.seed
    if seed is None:
        seed = random.SystemRandom().randrange(TRAINING_SEED + 2, _SEED_LIMIT)
    if arguments.out is not None:
        arguments.out.mkdir(parents=True, exist_ok=True)
    report = verify(model, problem, arguments, seed=seed, grid=grid)
    text = as_text(report)
    if arguments.out is not None:
        # NaN cannot be drawn
        finite = all(math.isfinite(finding.mean) for finding in report.findings)
        pictures = draw(arguments.out, report) if finite else []
        shown = "".join(f"\n![{file.stem}]({file.name})\n" for file in pictures)
        (arguments.out / "report.md").write_text(text + shown)
        (arguments.out / "report.json").write_text(_dumped(report))
        _log(f"wrote report.md, report.json and pictures into {arguments.out}")
    sys.stdout.write(_dumped(report) if arguments.json else text)
    return 0 if report.kept else 1


def problem_of(config: ModelConfig, pde: str | None) -> Problem:
    """The zoo's problem that a checkpoint solves, from `pde` or its config.

    Raises:
        ValueError: no problem, other parameters, or a model that does not fit the problem.
    """
    declared = config.pde
    key = pde or (declared.name if declared else None)
    if key is None:
        raise ValueError(
            f"{config.name} has no 'pde' in its config.json; if it solves one of {', '.join(PROBLEMS)}, name it with --pde"
        )
    if key not in PROBLEMS:
        raise ValueError(
            f"{config.name} solves {key!r}, for which there is no solver; there are solvers for {', '.join(PROBLEMS)}"
        )
    problem = PROBLEMS[key]
    if declared is not None and _ranges(declared) != _ranges(problem.pde):
        raise ValueError(
            f"{config.name} was trained for the parameters {_ranges(declared)}, but the solver's samples have "
            f"{_ranges(problem.pde)}"
        )
    arch, expected = config.architecture, problem.architecture
    shape = (arch.in_channels, arch.out_channels, arch.n_dim)
    wanted = (expected.in_channels, expected.out_channels, expected.n_dim)
    if shape != wanted:
        raise ValueError(
            f"{config.name} has (input channels, output channels, dimensions) {shape}, but the problem {key!r} "
            f"has {wanted}"
        )
    if config.time_step not in (None, problem.time_step):
        raise ValueError(
            f"the time step of {config.name} is {config.time_step:g}, but that of the problem {key!r} is "
            f"{problem.time_step}"
        )
    return problem


def _ranges(pde: PDE) -> dict[str, tuple[float, float]]:
    return {one.name: (one.minimum, one.maximum) for one in pde.parameters}


def _checked_grid(given: int | None, config: ModelConfig) -> int:
    training, *others = config.grid.training
    grid = training if given is None else given
    if given is None and any(points != training for points in others):
        raise ValueError(
            f"the training grid of {config.name} is {list(config.grid.training)}, but the solvers need the same number "
            "of points on each axis; choose it with --grid"
        )
    low, high = max(config.grid.minimum), min(config.grid.maximum)
    if not low <= grid <= high:
        raise ValueError(
            f"{config.name} supports {low} to {high} points per axis, but --grid is {grid}"
        )
    return grid


def verify(
    model: Verifiable, problem: Problem, arguments: argparse.Namespace, *, seed: int, grid: int
) -> Report:
    """Solve, predict and compare; progress goes to stderr."""
    solver = COARSE_SOLVERS[problem.key]
    began = time.perf_counter()
    _log(f"solving {arguments.n} fresh samples, seed {seed}")
    device = str(model.device)
    try:
        frames = held_out_frames(problem, arguments.n, n=grid, device=device, seed=seed)
    except ValueError as error:
        raise ValueError(f"--grid {grid}: {error}") from None
    _log(f"solved in {time.perf_counter() - began:.0f} s; comparing")
    findings = []
    for task in tasks_of(problem, frames, seed=seed):
        predicted = outcome(task, model.surrogate)
        verdict = judge(task, predicted.errors, model.config, arguments.at_most)
        mean = predicted.errors.mean().item()
        equal = EqualError((), ())
        if math.isfinite(mean):
            equal = compare(task, solver, model.surrogate, mean)
        findings.append(Finding(task, predicted, verdict, equal))
    backend, precision = model.ran()
    conditions: dict[str, Any] = {
        "pde": problem.key,
        "samples": arguments.n,
        "seed": seed,
        "grid": list(frames.shape[2:]),
        "device": device_name(model.device),
        "threads": torch.get_num_threads(),
        "load": round(os.getloadavg()[0], 1),
        "clock": "CPU time" if timed_in_cpu_time(model.device) else "time of day",
        "torch": str(torch.__version__),
        "backend": backend,
        "precision": precision,
    }
    return Report(model.config, solver, _command(arguments, seed), conditions, tuple(findings))


def _command(arguments: argparse.Namespace, seed: int) -> str:
    words = ["turbofno", "verify", arguments.model, "--n", str(arguments.n), "--seed", str(seed)]
    for option in ("grid", "pde", "at_most"):
        if (value := getattr(arguments, option)) is not None:
            words += [f"--{option.replace('_', '-')}", str(value)]
    if arguments.repository is not None:
        words += ["--model-repository", str(arguments.repository)]
    return shlex.join(words)


def _dumped(report: Report) -> str:
    return json.dumps(as_json(report), indent=1) + "\n"


def _log(text: str) -> None:
    sys.stderr.write(f"turbofno: {text}\n")
