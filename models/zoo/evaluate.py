"""Measure the zoo's errors on held-out data: `python -m turbofno.models.zoo.evaluate [NAME ...] --write`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from turbofno.models.core.checkpoint import LoadedModel, load_model, write_config
from turbofno.models.core.config import Metric
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.card import write_card
from turbofno.models.zoo.problems import HELD_OUT_SEED, PROBLEMS, Problem, problem_named
from turbofno.models.zoo.train import default_device, device_name, positive, relative_l2

_AT_ONCE = 50
_OTHER_GRID_SAMPLES = 20


@dataclass(frozen=True, slots=True)
class Example:
    """The held-out sample of median error, for the card's picture; each field [*grid], in physical units.

    `times` are those of input and truth, for a rollout.
    """

    input: torch.Tensor
    truth: torch.Tensor
    prediction: torch.Tensor
    times: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Errors of a model, and a sample."""

    metrics: tuple[Metric, ...]
    example: Example


@torch.inference_mode()
def rollout(
    module: Callable[[torch.Tensor], torch.Tensor], field: torch.Tensor, steps: int
) -> torch.Tensor:
    """Apply the model to its own output: [batch, channels, *grid] -> [batch, steps, channels, *grid]."""
    frames = []
    for _ in range(steps):
        field = module(field)
        frames.append(field)
    return torch.stack(frames, dim=1)


def held_out_frames(
    problem: Problem, samples: int, *, n: int, device: str, seed: int = HELD_OUT_SEED
) -> torch.Tensor:
    """Held-out data [samples, frames, *grid] with n points per axis."""
    return torch.cat(
        [
            problem.simulate(
                range(begin, min(begin + _AT_ONCE, samples)),
                seed=seed,
                n=n,
                device=device,
            )
            for begin in range(0, samples, _AT_ONCE)
        ]
    )


def one_step_errors(model: LoadedModel, frames: torch.Tensor) -> torch.Tensor:
    """Relative L2 of one call from every frame of every sample, [samples, frames - 1]."""
    errors = []
    with torch.inference_mode():
        for trajectory in frames:
            predicted = model.module(trajectory[:-1].unsqueeze(1))
            errors.append(relative_l2(predicted, trajectory[1:].unsqueeze(1)))
    return torch.stack(errors)


def evaluate(model: LoadedModel, problem: Problem, *, samples: int, device: str) -> Evaluation:
    """Held-out errors on the training grid and on the problem's other grids."""
    n = problem.grid.training[0]
    frames = held_out_frames(problem, samples, n=n, device=device)
    first = problem.first_frame
    one_step = one_step_errors(model, frames[:, first:])
    per_sample = one_step.mean(dim=1)
    metrics = [_metric("one call", per_sample, frames)]
    truth = frames[:, first + 1 :]
    starts = frames[:, first].unsqueeze(1)
    prediction = torch.cat(
        [rollout(model.module, some, truth.shape[1])[:, :, 0] for some in starts.split(_AT_ONCE)]
    )
    times = None
    if problem.time_step is not None:
        per_sample = relative_l2(prediction, truth)
        times = (first * problem.time_step, (frames.shape[1] - 1) * problem.time_step)
        name = f"rollout from t = {times[0]:g} to t = {times[1]:g}"
        metrics.append(_metric(name, per_sample, frames, steps=truth.shape[1]))
        # over all frames the last ones hide, where errors have grown most
        name = f"last frame of the rollout, t = {times[1]:g}"
        last = relative_l2(prediction[:, -1:], truth[:, -1:])
        metrics.append(_metric(name, last, frames, steps=truth.shape[1]))
    for other in problem.other_grids:
        finer = held_out_frames(problem, min(samples, _OTHER_GRID_SAMPLES), n=other, device=device)
        errors = one_step_errors(model, finer[:, first:]).mean(dim=1)
        metrics.append(_metric("one call, grid not trained on", errors, finer))
    middle = int(per_sample.argsort()[len(per_sample) // 2])
    example = Example(frames[middle, first], truth[middle, -1], prediction[middle, -1], times)
    return Evaluation(tuple(metrics), example)


def _metric(name: str, errors: torch.Tensor, frames: torch.Tensor, *, steps: int = 1) -> Metric:
    return Metric(
        name=name,
        value=float(f"{errors.mean().item():.4g}"),
        n_samples=len(errors),
        grid=tuple(frames.shape[2:]),
        steps=steps,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, evaluate, print the errors; with --write, update config.json and the card."""
    parser = argparse.ArgumentParser(
        prog="python -m turbofno.models.zoo.evaluate", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="zoo models; default: all")
    parser.add_argument(
        "--n", type=positive, default=200, help="held-out samples, default %(default)s"
    )
    parser.add_argument("--device", default=default_device(), help="default: %(default)s")
    parser.add_argument("--zoo", type=Path, default=TRAINED, help="folder of checkpoints")
    parser.add_argument(
        "--write", action="store_true", help="write the errors into config.json, card.md, card.png"
    )
    arguments = parser.parse_args(argv)
    missed = False
    for name in arguments.names or [problem.name for problem in PROBLEMS.values()]:
        try:
            problem = problem_named(name)
        except KeyError as error:
            parser.error(str(error.args[0]))
        folder = arguments.zoo / problem.name
        model = load_model(folder, device=arguments.device)
        result = evaluate(model, problem, samples=arguments.n, device=arguments.device)
        for metric in result.metrics:
            grid = " x ".join(map(str, metric.grid))
            sys.stdout.write(
                f"{problem.name:18} {metric.name:34} grid {grid:11} n {metric.n_samples:4} "
                f"relative L2 {metric.value:.3%}\n"
            )
        judged = result.metrics[1] if problem.time_step is not None else result.metrics[0]
        verdict = "met" if judged.value <= problem.target_error else "MISSED"
        missed |= verdict != "met"
        sys.stdout.write(
            f"{problem.name:18} target: {judged.name} <= {problem.target_error:.1%}: {verdict}\n"
        )
        if arguments.write:
            config = model.config.model_copy(update={"evaluation": result.metrics})
            write_config(folder, config)
            device = device_name(torch.device(arguments.device))
            write_card(folder, config, problem.title, result.example, device=device)
    sys.exit(1 if missed else 0)


if __name__ == "__main__":
    main()
