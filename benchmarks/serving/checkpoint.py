"""Inputs of the comparison: checkpoints with random weights, random fields, and their answers in float64."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.checkpoint import load_model, save_model
from turbofno.models.core.config import Channel, GridSpec, ModelConfig
from turbofno.models.core.fno import FNO

LARGEST_ERROR = 1e-5
"""Largest relative L2 error against float64 of a right answer."""
LIGHT = "light-2d"
WIDE = "wide-2d"
HEAVY = "navier-stokes-2d"
_DISTINCT_FIELDS = 16

Array = NDArray[np.float32]


@dataclass(frozen=True)
class Question:
    """A field [1, 1, n, n] and its answer [1, 1, n, n] in float64."""

    field: Array
    truth: NDArray[np.float64]

    def is_answered_by(self, answer: Array) -> bool:
        """True if the values are right, in any shape."""
        if answer.size != self.truth.size:
            return False
        error = np.linalg.norm(answer.reshape(-1) - self.truth.reshape(-1))
        return bool(error <= LARGEST_ERROR * np.linalg.norm(self.truth))


def write_light(repository: Path) -> None:
    """Save a network of one narrow layer with random weights.

    At 64x64 it takes about 70 microseconds a field on one core, like a large network on a GPU, so that the server's own time
    is visible.
    """
    architecture = FNOArchitecture(
        in_channels=1, out_channels=1, hidden_channels=4, n_layers=1, modes=(8, 5),
        projection_channels=(),
    )  # fmt: skip
    _write(repository, LIGHT, "one narrow layer with random weights", architecture)


def write_wide(repository: Path) -> None:
    """Save a network of four layers of 64 channels, the size of published ones, with random weights."""
    architecture = FNOArchitecture(
        in_channels=1, out_channels=1, hidden_channels=64, n_layers=4, modes=(24, 12)
    )
    _write(repository, WIDE, "four layers of 64 channels with random weights", architecture)


def _write(repository: Path, name: str, what: str, architecture: FNOArchitecture) -> None:
    config = ModelConfig(
        name=name,
        version="1",
        description=f"{what}, for the comparison of servers",
        architecture=architecture,
        inputs=(Channel(name="u"),),
        outputs=(Channel(name="v"),),
        grid=GridSpec(
            training=(64, 64), minimum=(16, 16), maximum=(512, 512), extent=(1.0, 1.0),
            boundary="periodic",
        ),
        sha256="0" * 64,
    )  # fmt: skip
    save_model(repository / name, config, FNO(architecture).eval())


def questions(checkpoint: Path, side: int) -> list[Question]:
    """Random fields of side x side points with their answers."""
    module = load_model(checkpoint).module.double()
    fields = np.random.default_rng().standard_normal((_DISTINCT_FIELDS, 1, side, side), np.float32)
    with torch.inference_mode():
        truths = module(torch.from_numpy(fields).double()).numpy()
    return [
        Question(fields[i : i + 1], np.ascontiguousarray(truths[i : i + 1]))
        for i in range(_DISTINCT_FIELDS)
    ]
