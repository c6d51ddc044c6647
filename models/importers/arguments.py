"""The options of `turbofno import`, without importing PyTorch."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from typing import get_args

from pydantic import TypeAdapter, ValidationError

from turbofno.models.core.config import Name, Precision
from turbofno.models.importers.formats import FORMATS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add all options except the repository."""
    parser.add_argument("path", metavar="PATH", type=Path, help="the checkpoint, a file or folder")
    parser.add_argument(
        "--name", metavar="NAME", type=_name, required=True, help="name of the new model"
    )
    parser.add_argument(
        "--format",
        choices=("auto", *FORMATS),
        default="auto",
        help="format of PATH (default: detected)",
    )
    parser.add_argument(
        "--set", metavar="KEY=VALUE", action="append", default=[], dest="settings",
        help="override an assumption; the report prints the key of each in brackets",
    )  # fmt: skip
    parser.add_argument(
        "--normalizer",
        metavar="FILE",
        type=Path,
        help="file with the normalisers of input and output",
    )
    for side in ("input", "output"):
        parser.add_argument(
            f"--{side}-normalizer",
            metavar="FILE",
            type=Path,
            help=f"file with the normaliser of the {side}",
        )
        for value in ("mean", "std"):
            parser.add_argument(
                f"--{side}-{value}", metavar="X,..", type=_floats,
                help=f"{value} of the {side}: one number, or one per channel",
            )  # fmt: skip
        parser.add_argument(
            f"--{side}s", metavar="NAME,..", type=_names, help=f"names of the {side} channels"
        )
    parser.add_argument(
        "--grid", metavar="N,..", type=_sizes, help="grid that the network was trained on"
    )
    parser.add_argument(
        "--example", metavar=("INPUT", "OUTPUT"), type=Path, nargs=2,
        help="two .npy files, [fields, channels, *grid]: inputs, and what your network gave for them; compared",
    )  # fmt: skip
    parser.add_argument(
        "--time-step", metavar="T", type=_positive(float),
        help="the time by which one call advances an autoregressive network; then it can be rolled out",
    )  # fmt: skip
    parser.add_argument(
        "--past-steps", metavar="N", type=_positive(int),
        help="number of past states in its input, oldest first, each with the channels of the output (default: 1)",
    )  # fmt: skip
    parser.add_argument(
        "--precision", choices=get_args(Precision), default="fp32",
        help="precision on a GPU, unless the server sets one (default: fp32)",
    )  # fmt: skip
    parser.add_argument("--description", metavar="TEXT", help="one line for the model's card")
    parser.add_argument("--force", action="store_true", help="replace a model of that name")


def _positive(kind: type[float]) -> Callable[[str], float]:
    def number(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = kind(0)
        if not 0 < value < math.inf:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"expected a {whole}number above 0, not {text!r}")
        return value

    return number


def _floats(text: str) -> tuple[float, ...]:
    try:
        numbers = tuple(float(part) for part in text.split(","))
    except ValueError:
        numbers = ()
    if not numbers or not all(map(math.isfinite, numbers)):
        raise argparse.ArgumentTypeError(f"expected numbers like 0.5,-3, not {text!r}")
    return numbers


def _sizes(text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected whole numbers like 64,64, not {text!r}"
        ) from None


def _names(text: str) -> tuple[str, ...]:
    return tuple(_name(part.strip()) for part in text.split(","))


def _name(text: str) -> str:
    try:
        return TypeAdapter(Name).validate_python(text)
    except ValidationError:
        raise argparse.ArgumentTypeError(
            "expected up to 128 letters, digits, '.', '_' or '-', beginning with a letter or digit, "
            f"not {text!r}"
        ) from None
