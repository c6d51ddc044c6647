"""Write what the zoo's signals need into its config.json: `python -m models.trust.calibrate [NAME ...]`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from models.checkpoint import write_config
from models.config import FeatureStatistics, InputDistribution, read_config
from models.problems import PROBLEMS, TRAINING_SEED, problem_named
from models.registry import CONFIG_FILE
from models.trust.features import distance, features, linear_features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

ZOO = Path(__file__).parents[1] / "zoo"
SAMPLES = {"burgers": 4096, "darcy": 1024, "navier-stokes": 128}
"""Training samples that are made again, the first ones: what a CPU does in minutes."""
_AT_ONCE = 64
_LEAST_LINEAR_DEVIATION = 0.01
"""Of the channel's deviation: where all training fields have the same mean, this much off is one deviation."""
_LEAST_LOG_DEVIATION = 0.05
_EDGE = 0.99


def distribution_of(fields: Tensor, std: Tensor) -> InputDistribution:
    """Features of training inputs [n, channels, *grid], whose channels have the deviations `std` [channels]."""
    found = torch.cat([features(some, std) for some in fields.split(_AT_ONCE)]).double()
    mean, deviation = found.mean(0), found.std(0)
    linear = linear_features(fields.ndim - 2)
    least = _LEAST_LINEAR_DEVIATION * std.double().unsqueeze(-1)
    deviation[:, :linear] = deviation[:, :linear].maximum(least)
    deviation[:, linear:].clamp_(min=_LEAST_LOG_DEVIATION)
    edge = distance(found, mean, deviation).quantile(_EDGE).item()
    return InputDistribution(
        n_fields=len(fields),
        edge=_rounded(edge),
        inputs=tuple(
            FeatureStatistics(mean=tuple(map(_rounded, m)), std=tuple(map(_rounded, s)))
            for m, s in zip(mean.tolist(), deviation.tolist(), strict=True)
        ),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")


def main(argv: Sequence[str] | None = None) -> None:
    """Parse the command line, sample, write."""
    parser = argparse.ArgumentParser(prog="python -m models.trust.calibrate", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="zoo models; default: all")
    parser.add_argument("--zoo", type=Path, default=ZOO, help="folder of checkpoints")
    arguments = parser.parse_args(argv)
    for name in arguments.names or PROBLEMS:
        problem = problem_named(name)
        folder = arguments.zoo / problem.name
        config = read_config(folder / CONFIG_FILE)
        if config.statistics is None:
            parser.error(f"{folder} has no statistics; train it with models.train")
        samples = SAMPLES[problem.key]
        fields = torch.cat(
            [
                problem.sample(range(begin, min(begin + _AT_ONCE, samples)), seed=TRAINING_SEED)
                for begin in range(0, samples, _AT_ONCE)
            ]
        )
        std = torch.tensor([channel.std for channel in config.statistics.inputs])
        distribution = distribution_of(fields.unsqueeze(1), std)
        statistics = config.statistics.model_copy(update={"distribution": distribution})
        update = {"statistics": statistics, "pde": problem.pde}
        write_config(folder, config.model_copy(update=update))
        sys.stdout.write(
            f"{problem.name:18} {samples} samples, {len(fields)} fields, edge {distribution.edge:g}\n"
        )


if __name__ == "__main__":
    main()
