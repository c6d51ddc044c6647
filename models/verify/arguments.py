"""The options of `turbofno verify`, kept apart from what they start because that needs PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

_FEWEST_SAMPLES = 3
_SEEDS = range(2, 1 << 12)
# The problems of models/zoo/problems.py, which needs PyTorch too.
SOLVERS = ("burgers", "darcy", "navier-stokes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `turbofno verify`; where the repository is and the device excepted."""
    parser.add_argument(
        "model", metavar="NAME", help="a model of the repository, or the folder of a checkpoint"
    )
    parser.add_argument(
        "--n", type=_samples, default=32, help="fresh samples (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=_seed,
        help="which samples, 2 to 4095, to repeat a run; 2 are those of the card (default: drawn)",
    )  # fmt: skip
    parser.add_argument(
        "--grid", metavar="N", type=int, help="points an axis (default: the grid of the training)"
    )
    parser.add_argument(
        "--pde", choices=SOLVERS, help="what an imported checkpoint solves, if it does not say so"
    )
    parser.add_argument(
        "--at-most", metavar="ERROR", type=_error,
        help="mean relative L2 that is still good, such as 0.01, instead of what the card states",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="write report.md, report.json and pictures there"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _samples(text: str) -> int:
    if (number := int(text)) < _FEWEST_SAMPLES:
        raise argparse.ArgumentTypeError(
            f"a best, a median and a worst sample need at least {_FEWEST_SAMPLES}, not {number}"
        )
    return number


def _seed(text: str) -> int:
    if (seed := int(text)) not in _SEEDS:
        raise argparse.ArgumentTypeError(
            f"{seed} is not from {_SEEDS[0]} to {_SEEDS[-1]}; 1 is the seed of the training data"
        )
    return seed


def _error(text: str) -> float:
    if not 0 < (error := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"a positive number is expected, not {text}")
    return error
