"""Write the data of the trust signals into config.json: `python -m turbofno.models.trust.calibrate [NAME ...]`.

Written are the distribution of the training inputs, the signals' thresholds, and the problem's inputs and PDE. The
weights do not change.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from turbofno.models.core.checkpoint import LoadedModel, load_model, write_config
from turbofno.models.core.statistics import (
    INPUT_DISTANCE,
    RESIDUAL,
    FeatureStatistics,
    GridThresholds,
    InputDistribution,
    Thresholds,
)
from turbofno.models.trust.features import (
    distance,
    features,
    linear_features,
    resolved_features,
    with_finer_octaves,
)
from turbofno.models.trust.signals import Signals
from turbofno.models.zoo import TRAINED
from turbofno.models.zoo.problems import CALIBRATION_SEED, PROBLEMS, TRAINING_SEED, problem_named

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import Tensor

    from turbofno.models.zoo.problems import Problem

SAMPLES = {"burgers": 4096, "darcy": 1024, "navier-stokes": 128, "nagumo": 4096}
"""The first training samples, which are simulated again; so few that a CPU needs minutes."""
CALIBRATION_SAMPLES = {
    "burgers": (4096, 4096),
    "darcy": (2048, 64),
    "navier-stokes": (128, 16),
    "nagumo": (4096, 256),
}
"""Samples for the thresholds: on the training grid, and on each other grid that was evaluated."""
EXCEEDED_BY = 0.001
"""Share of the calibration fields whose signal is above its threshold."""
_AT_ONCE = 64
_RUN_AT_ONCE = 8
_LEAST_LINEAR_DEVIATION = 0.01
"""Smallest deviation of a linear feature, as a share of the channel's: all training fields may have the same mean."""
_LEAST_LOG_DEVIATION = 0.05
_EDGE = 0.99


def distribution_of(fields: Tensor, std: Tensor) -> InputDistribution:
    """Feature statistics of training inputs [n, channels, *grid]; `std` [channels] are the channels' deviations."""
    found = torch.cat([features(some, std) for some in fields.split(_AT_ONCE)]).double()
    resolved = resolved_features(tuple(fields.shape[2:]))
    mean, deviation = found[..., :resolved].mean(0), found[..., :resolved].std(0)
    linear = linear_features(fields.ndim - 2)
    least = _LEAST_LINEAR_DEVIATION * std.double().unsqueeze(-1)
    deviation[:, :linear] = deviation[:, :linear].maximum(least)
    deviation[:, linear:].clamp_(min=_LEAST_LOG_DEVIATION)
    apart = distance(found, *with_finer_octaves(mean, deviation), resolved)
    edge = apart.quantile(_EDGE).item()
    return InputDistribution(
        n_fields=len(fields),
        edge=_rounded(edge),
        inputs=tuple(
            FeatureStatistics(mean=tuple(map(_rounded, m)), std=tuple(map(_rounded, s)))
            for m, s in zip(mean.tolist(), deviation.tolist(), strict=True)
        ),
    )


def thresholds_of(model: LoadedModel, problem: Problem) -> Thresholds:
    """The values of the model's signals that 1 in 1000 fresh fields exceeds, on every evaluated grid.

    The distance is that of all fields that the model was trained on. The residual, which estimates the error, is that of
    `evaluated` fields: errors of flows at t = 0 are larger than the card's, and would hide errors below theirs.

    Other grids than the training grid have fewer fields, which underestimate the tail, so no threshold is below that
    of the training grid.
    """
    many, few = CALIBRATION_SAMPLES[problem.key]
    first = _thresholds_on(model, problem, problem.grid.training[0], many)
    others = [_thresholds_on(model, problem, points, few) for points in problem.other_grids]
    return Thresholds(
        exceeded_by=EXCEEDED_BY,
        grids=(first, *(_at_least(first, other) for other in others)),
    )


def _thresholds_on(
    model: LoadedModel, problem: Problem, points: int, samples: int
) -> GridThresholds:
    found = signals_of(model, sampled(problem, samples, seed=CALIBRATION_SEED, n=points))
    if RESIDUAL in found:
        found[RESIDUAL] = evaluated(problem, found[RESIDUAL], samples)
    exceeded = {
        name: _rounded(values.quantile(1 - EXCEEDED_BY).item()) for name, values in found.items()
    }
    return GridThresholds(
        grid=(points,) * len(problem.grid.training),
        n_fields=len(found[INPUT_DISTANCE]),
        input_distance=exceeded[INPUT_DISTANCE],
        residual=exceeded.get(RESIDUAL),
    )


def _at_least(first: GridThresholds, other: GridThresholds) -> GridThresholds:
    larger = {}
    for name in (INPUT_DISTANCE, RESIDUAL):
        values = [getattr(one, name) for one in (first, other)]
        larger[name] = None if None in values else max(values)
    return other.model_copy(update=larger)


def sampled(problem: Problem, samples: int, *, seed: int, n: int) -> Iterator[Tensor]:
    """Batches of inputs from the training distribution, float32 [batch, 1, *grid] with n points per axis."""
    for begin in range(0, samples, _AT_ONCE):
        indices = range(begin, min(begin + _AT_ONCE, samples))
        yield problem.sample(indices, seed=seed, n=n).unsqueeze(1)


def evaluated(problem: Problem, values: Tensor, samples: int) -> Tensor:
    """Of values [samples * frames, ...] in the order of `sampled`, those of frames from which the model was evaluated."""
    return values.unflatten(0, (samples, -1))[:, problem.first_frame :].flatten(0, 1)


@torch.inference_mode()
def signals_of(model: LoadedModel, batches: Iterator[Tensor]) -> dict[str, Tensor]:
    """Signal -> float32 [fields] of the model's outputs for batches [batch, channels, *grid]."""
    signals = Signals(model.config)
    found: dict[str, list[Tensor]] = {}
    for batch in batches:
        for x in batch.split(_RUN_AT_ONCE):
            for name, values in signals(x, model.module(x)).items():
                found.setdefault(name, []).append(values)
    return {name: torch.cat(parts) for name, parts in found.items()}


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, sample, write."""
    parser = argparse.ArgumentParser(
        prog="python -m turbofno.models.trust.calibrate", description=__doc__
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="zoo models; default: all")
    parser.add_argument("--zoo", type=Path, default=TRAINED, help="folder of checkpoints")
    arguments = parser.parse_args(argv)
    for name in arguments.names or PROBLEMS:
        problem = problem_named(name)
        folder = arguments.zoo / problem.name
        model = load_model(folder)
        config = model.config
        if config.statistics is None:
            parser.error(
                f"{folder}/config.json has no statistics; train the model with turbofno.models.zoo.train"
            )
        n, samples = problem.grid.training[0], SAMPLES[problem.key]
        fields = torch.cat(list(sampled(problem, samples, seed=TRAINING_SEED, n=n)))
        std = torch.tensor([channel.std for channel in config.statistics.inputs])
        statistics = config.statistics.model_copy(
            update={"distribution": distribution_of(fields, std)}
        )
        update = {"statistics": statistics, "inputs": problem.inputs, "pde": problem.pde}
        model = LoadedModel(config.model_copy(update=update), model.module)
        thresholds = thresholds_of(model, problem)
        calibrated = {"statistics": statistics.model_copy(update={"thresholds": thresholds})}
        write_config(folder, model.config.model_copy(update=calibrated))
        sys.stdout.write(f"{problem.name}: {samples} training samples\n")
        for one in thresholds.grids:
            limits = [f"{name} {value:g}" for name, value in thresholds.on(one.grid).items()]
            sys.stdout.write(
                f"  grid {'x'.join(map(str, one.grid))}: {one.n_fields} fields, 1 in {1 / EXCEEDED_BY:.0f} above "
                f"{' or '.join(limits)}\n"
            )


if __name__ == "__main__":
    main()
