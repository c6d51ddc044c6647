"""The options of `turbofno verify`, without importing PyTorch."""

from __future__ import annotations

import argparse
from pathlib import Path

_FEWEST_SAMPLES = 3
_SEEDS = range(2, 1 << 12)
# The keys of PROBLEMS in models/zoo/problems.py, which imports PyTorch.
SOLVERS = ("burgers", "darcy", "navier-stokes", "nagumo")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options except the repository and the device."""
    parser.add_argument(
        "model",
        metavar="NAME",
        help="name of a model in the repository, or the folder of a checkpoint",
    )
    parser.add_argument(
        "--n", type=_samples, default=32, help="fresh samples (default: %(default)s)"
    )
    parser.add_argument(
        "--seed", type=_seed,
        help="seed of the samples, 2 to 4095; 2 gives the samples of the card (default: random)",
    )  # fmt: skip
    parser.add_argument(
        "--grid", metavar="N", type=int, help="points per axis (default: the training grid)"
    )
    parser.add_argument(
        "--pde", choices=SOLVERS, help="the PDE of a checkpoint whose config.json does not name it"
    )
    parser.add_argument(
        "--at-most", metavar="ERROR", type=_error,
        help="largest acceptable mean relative L2, such as 0.01 (default: that of the card)",
    )  # fmt: skip
    parser.add_argument(
        "--out", metavar="DIR", type=Path, help="folder for report.md, report.json and pictures"
    )
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def _samples(text: str) -> int:
    if (number := int(text)) < _FEWEST_SAMPLES:
        raise argparse.ArgumentTypeError(
            f"expected at least {_FEWEST_SAMPLES} samples (best, median, worst), not {number}"
        )
    return number


def _seed(text: str) -> int:
    if (seed := int(text)) not in _SEEDS:
        raise argparse.ArgumentTypeError(
            f"expected {_SEEDS[0]} to {_SEEDS[-1]}, not {seed}; 1 is the seed of the training data"
        )
    return seed


def _error(text: str) -> float:
    if not 0 < (error := float(text)) < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a positive number, not {text}")
    return error
