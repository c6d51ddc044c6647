"""Random neuraloperator networks: arguments of FNO or TFNO, and grids."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

SKIPS = ("linear", "soft-gating", "identity")
ACTIVATIONS = (
    F.gelu, F.relu, F.silu, F.tanh, torch.tanh, torch.sin, torch.selu, F.leaky_relu, F.elu, F.selu, F.mish,
    F.softplus, F.hardtanh, F.hardswish, F.hardsigmoid, nn.GELU(), nn.GELU(approximate="tanh"),
    nn.LeakyReLU(0.2), nn.ELU(0.5), nn.Mish(), nn.Softplus(), nn.Hardtanh(), nn.Identity(),
    partial(F.gelu, approximate="tanh"), partial(F.leaky_relu, negative_slope=0.3),
)  # fmt: skip
"""Activations in every form that a checkpoint may hold."""


@dataclass(frozen=True)
class Drawn:
    """Class name and arguments of a network, and a grid with odd and one with even sizes."""

    name: str
    arguments: dict[str, Any]
    grids: tuple[tuple[int, ...], tuple[int, ...]]


def draw_built(rng: random.Random, release: str, models: Any) -> tuple[Drawn, torch.nn.Module]:
    """The network built by the classes in `models`, with its grids."""
    while True:
        drawn = draw(rng, release)
        # neuraloperator sometimes rounds the rank of a small factorisation to zero and fails
        with suppress(ZeroDivisionError):
            return drawn, getattr(models, drawn.name)(**dict(drawn.arguments))


def draw(rng: random.Random, release: str) -> Drawn:
    """Draw every argument that affects the result; grids may be too small for the modes."""
    n_dim = rng.choice((1, 2, 2, 2, 3))
    n_modes = tuple(rng.randint(3, 7) for _ in range(n_dim))
    arguments: dict[str, Any] = {
        "n_modes": n_modes,
        "in_channels": rng.randint(1, 2),
        "out_channels": rng.randint(1, 3),
        "hidden_channels": rng.choice((4, 6)),
        "n_layers": rng.randint(1, 3),
        "non_linearity": rng.choice(ACTIVATIONS),
        "norm": rng.choice((None, None, "group_norm", "instance_norm")),
        "stabilizer": rng.choice((None, None, "tanh")),
        "preactivation": rng.random() < 0.3,
        "fno_skip": rng.choice(SKIPS),
        "factorization": rng.choice((None, None, "Tucker", "CP", "TT")),
        "rank": rng.choice((0.5, 0.9)),
        "implementation": rng.choice(("factorized", "reconstructed")),
    }
    _draw_channels(rng, arguments, release)
    shrinks = _draw_geometry(rng, arguments, release, n_dim)
    # networks that use part of their modes are refused on smaller grids
    fits = shrinks or rng.random() < 0.7
    if not fits:
        surplus = range(5) if release == "2.0.0" else (0, 2, 4)
        arguments["max_n_modes"] = tuple(m + rng.choice(surplus) for m in n_modes)
    # the library needs more than one point after halving three times
    half = range(8, 11) if shrinks else range(3 if fits else 4, 7)
    odd = tuple(2 * rng.choice(half) + (1 if shrinks else -1) for _ in n_modes)
    even = tuple(2 * rng.choice(half) for _ in n_modes)
    tucker = arguments["factorization"] == "Tucker"
    return Drawn("TFNO" if tucker and rng.random() < 0.5 else "FNO", arguments, (odd, even))


def _draw_channels(rng: random.Random, arguments: dict[str, Any], release: str) -> None:
    if release == "0.3.0":
        arguments |= {
            "lifting_channels": rng.choice((5, 8)),
            "projection_channels": rng.choice((5, 8)),
            "use_mlp": rng.random() < 0.5,
            "mlp_skip": rng.choice(SKIPS),
            "mlp_expansion": rng.choice((0.5, 1.5)),
            # neuraloperator cannot slice every joint tensor train
            "joint_factorization": rng.random() < 0.3 and arguments["factorization"] != "TT",
        }
        return
    arguments |= {
        "lifting_channel_ratio": rng.choice((0, 1, 2)),
        "projection_channel_ratio": rng.choice((1, 2)),
        "channel_mlp_skip": rng.choice(SKIPS),
        "channel_mlp_expansion": rng.choice((0.5, 1.5)),
        "separable": rng.random() < 0.2,
        "positional_embedding": rng.choice(("grid", "grid", None)),
    }
    if arguments["separable"]:
        arguments["rank"] = (
            1.0  # a smaller share would round to rank zero, which neuraloperator cannot build
        )
    if release == "2.0.0":
        arguments["use_channel_mlp"] = rng.random() < 0.7
        for skip in ("fno_skip", "channel_mlp_skip"):
            if rng.random() < 0.15:
                arguments[skip] = None


def _draw_geometry(rng: random.Random, arguments: dict[str, Any], release: str, n_dim: int) -> bool:
    """Draw padding, scaling or neither; return True also if layers may get coarser."""
    if rng.random() < 0.4:
        each = [rng.choice((0.0, 0.1, 0.3)) for _ in range(n_dim)]
        arguments["domain_padding"] = rng.choice((0.2, each))
        if release != "2.0.0":
            arguments["domain_padding_mode"] = rng.choice(("one-sided", "symmetric"))
    elif release != "0.3.0" and rng.random() < 0.4:
        factors = (0.5, 1, 1.5, 2) if n_dim < 3 else (0.5, 1, 1.3)
        each = [rng.choice(factors) for _ in range(arguments["n_layers"])]
        arguments["resolution_scaling_factor"] = rng.choice((1.2, 0.75, each))
        return True
    return False
