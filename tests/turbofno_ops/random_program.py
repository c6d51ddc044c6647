"""Random tile programs with operands: all steps, in all orders that stages support."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, fields

import torch

from turbofno_ops import ACTIVATIONS
from turbofno_ops._stages import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Analyze,
    Normalize,
    Project,
    Restore,
    Save,
    Source,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops.description import PointwiseMap, Size

CHANNELS = (1, 3, 8, 12, 16, 20, 32, 33, 48, 64, 96, 128, 200, 256)
AXES = {
    1: (1, 2, 7, 16, 33, 85, 128, 200, 421, 1024, 4096),
    2: (1, 5, 8, 17, 32, 61, 85, 128),
    3: (2, 4, 7, 12, 16, 31),
    4: (2, 3, 6, 9, 16),
}
MOST_VALUES = 2**21


@dataclass
class Drawn:
    """A tile program on a grid, its operands, and the modes that its analysis keeps.

    Weights are float64. x and saved are float32 [batch, channels, *grid], mixed is complex64.
    """

    steps: tuple[Step, ...]
    size: Size
    modes: Size
    x: torch.Tensor
    saved: torch.Tensor | None = None
    mixed: torch.Tensor | None = None

    def __str__(self) -> str:
        read = {f.name: getattr(self, f.name) for f in fields(self)[3:]}
        shapes = {name: tuple(t.shape) for name, t in read.items() if t is not None}
        return f"{described(self.steps)} on {self.size}, {self.modes} modes, {shapes}"


def described(steps: tuple[Step, ...]) -> str:
    """Return the names of the steps with their shapes and settings."""
    words = []
    for step in steps:
        settings = [
            tuple(v.shape) if isinstance(v, torch.Tensor) else v
            for v in (getattr(step, f.name) for f in fields(step))
            if isinstance(v, torch.Tensor | str | int)
        ]
        words.append(f"{type(step).__name__}{settings or ''}")
    return " ".join(words)


def draw_program(rng: random.Random) -> Drawn:
    """Draw a program of up to a dozen steps, small enough to check in float64."""
    axes = rng.choice([1, 2, 2, 3, 3, 4])
    while True:
        size = tuple(rng.choice(AXES[axes]) for _ in range(axes))
        batch, channels = rng.choice([1, 2, 3, 5, 8]), rng.choice(CHANNELS)
        if batch * channels * math.prod(size) <= MOST_VALUES:
            break
    most = size[-1] // 2 + 1
    modes = (*(rng.randint(1, min(n, 24)) for n in size[:-1]), rng.randint(1, min(most, 64)))
    of_x = rng.choice([channels, channels, rng.choice((1, 2, 3, 5, 7, 16, 64))])
    x = torch.randn(batch, of_x, *size) * rng.choice([1e-3, 1.0, 1.0, 1e3])
    drawn = Drawn((), size, modes, x)
    first: Step
    match rng.choice(["source", "restore", "synthesis", "synthesis", "synthesis", "map"]):
        case "source":
            first, channels = Source(), of_x
        case "restore":
            first, drawn.saved = Restore(), torch.randn(batch, channels, *size)
        case "synthesis":
            first, kept = Synthesis(), rng.randint(1, min(most, 64))
            drawn.mixed = torch.randn(batch, channels, *size[:-1], kept, dtype=torch.complex64)
        case _:
            first = AddMap(_matrix(channels, of_x))
    drawn.steps = (first, *_middle(rng, drawn, first, channels))
    return drawn


def _middle(rng: random.Random, drawn: Drawn, first: Step, channels: int) -> list[Step]:
    """Draw all steps but the first."""
    of_x = drawn.x.shape[1]
    steps: list[Step] = []
    if isinstance(first, Synthesis | Restore) and _varies(drawn) and rng.random() < 0.5:
        steps.append(_norm(rng, channels))
    if isinstance(first, Source) and rng.random() < 0.3:
        steps.append(Store())
    for _ in range(rng.randint(0, 6)):
        match rng.choice(["affine", "map", "gate", "activate", "activate", "mlp"]):
            case "affine":
                steps.append(Affine(_maybe(rng, channels), _maybe(rng, channels)))
            case "map":
                steps.append(AddMap(_matrix(channels, of_x)))
            case "gate" if channels == of_x:
                steps.append(AddGate(_vector(channels)))
            case "activate":
                steps.append(Activate(_activation(rng)))
            case "mlp":
                out = rng.choice([channels, channels, channels, rng.choice(CHANNELS)])
                steps.append(MLP(*_maps(rng, channels, rng.choice([1, 16, 32, 2 * channels]), out)))
                channels = out
    stores = any(isinstance(step, Store) for step in steps)
    end = rng.choice(["store", "store and analyze", "analyze", "save", "project"])
    if end.startswith("store") and not stores:
        steps.append(Store())
        if rng.random() < 0.2:
            steps.append(Activate(_activation(rng)))
    if end.endswith("analyze") or (stores and end == "store"):
        steps.append(Analyze())
    elif end == "save":
        steps.append(Save(moments=rng.random() < 0.5))
    elif end == "project":
        out = rng.choice([1, 2, 3, 16])
        if rng.random() < 0.3:
            steps.append(Project((_map(rng, out, channels),), "none"))
        else:
            first_map, activation, second = _maps(
                rng, channels, rng.choice([16, 2 * channels]), out
            )
            steps.append(Project((first_map, second), activation))
    return steps


def _varies(drawn: Drawn) -> bool:
    """True if the field is not constant, so that a norm is well conditioned."""
    if drawn.mixed is None:
        return math.prod(drawn.size) > 3
    return drawn.mixed.shape[-1] > 2 or math.prod(drawn.size[:-1]) > 3


def _norm(rng: random.Random, channels: int) -> Normalize:
    groups = rng.choice([g for g in range(1, channels + 1) if channels % g == 0])
    groups = rng.choice([groups, channels])
    scale, shift, offset = (_maybe(rng, channels) for _ in range(3))
    return Normalize(groups, 1e-5, scale, shift, offset)


def _activation(rng: random.Random) -> str:
    name = rng.choice(ACTIVATIONS)
    return {"leaky_relu": "leaky_relu(0.2)", "elu": "elu(0.5)"}.get(name, name)


def _maps(
    rng: random.Random, channels: int, hidden: int, out: int
) -> tuple[PointwiseMap, str, PointwiseMap]:
    return _map(rng, hidden, channels), _activation(rng), _map(rng, out, hidden)


def _map(rng: random.Random, out: int, channels: int) -> PointwiseMap:
    return PointwiseMap(_matrix(out, channels), _maybe(rng, out))


def _matrix(out: int, channels: int) -> torch.Tensor:
    return torch.randn(out, channels, dtype=torch.float64) / math.sqrt(channels)


def _vector(channels: int) -> torch.Tensor:
    return torch.randn(channels, dtype=torch.float64)


def _maybe(rng: random.Random, channels: int) -> torch.Tensor | None:
    return _vector(channels) if rng.random() < 0.6 else None
