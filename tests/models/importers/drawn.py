"""Random neuraloperator networks: arguments of FNO or TFNO and a grid that they run on."""

from __future__ import annotations

import random
from typing import Any

import torch
import torch.nn.functional as F

SKIPS = ("linear", "soft-gating", "identity")


def arguments(rng: random.Random, release: str) -> tuple[str, dict[str, Any], tuple[int, ...]]:
    """Class name, arguments and grid. Everything that changes the function takes its turn."""
    n_dim = rng.choice((1, 2, 2, 2, 3))
    hidden = rng.choice((4, 6))
    n_layers = rng.randint(1, 3)
    kwargs: dict[str, Any] = {
        "n_modes": tuple(rng.randint(3, 7) for _ in range(n_dim)),
        "in_channels": rng.randint(1, 2),
        "out_channels": rng.randint(1, 3),
        "hidden_channels": hidden,
        "n_layers": n_layers,
        "non_linearity": rng.choice((F.gelu, F.relu, F.silu, torch.tanh)),
        "norm": rng.choice((None, None, "group_norm", "instance_norm")),
        "stabilizer": rng.choice((None, None, "tanh")),
        "preactivation": rng.random() < 0.3,
        "fno_skip": rng.choice(SKIPS),
        "factorization": rng.choice((None, None, "Tucker", "CP", "TT")),
        "rank": rng.choice((0.3, 0.8)),
        "implementation": rng.choice(("factorized", "reconstructed")),
    }
    if rng.random() < 0.3:
        kwargs["max_n_modes"] = tuple(m + rng.choice((0, 1, 2, 4)) for m in kwargs["n_modes"])
    _channels(rng, kwargs, release)
    _geometry(rng, kwargs, release, n_dim)
    low = 3 if release != "0.3" else 8
    size = tuple(rng.randint(max(low, 5), 14) for _ in range(n_dim))
    name = "TFNO" if kwargs["factorization"] == "Tucker" and rng.random() < 0.5 else "FNO"
    return name, kwargs, size


def _channels(rng: random.Random, kwargs: dict[str, Any], release: str) -> None:
    if release == "0.3":
        kwargs |= {
            "lifting_channels": rng.choice((5, 8)),
            "projection_channels": rng.choice((5, 8)),
            "use_mlp": rng.random() < 0.5,
            "mlp_skip": rng.choice(SKIPS),
            "mlp_expansion": rng.choice((0.5, 1.5)),
            "joint_factorization": rng.random() < 0.3,
        }
        return
    kwargs |= {
        "lifting_channel_ratio": rng.choice((0, 1, 2)),
        "projection_channel_ratio": rng.choice((1, 2)),
        "channel_mlp_skip": rng.choice(SKIPS),
        "channel_mlp_expansion": rng.choice((0.5, 1.5)),
        "separable": rng.random() < 0.2,
    }
    if release == "2.0.0":
        kwargs["use_channel_mlp"] = rng.random() < 0.7
        if rng.random() < 0.15:
            kwargs["fno_skip"] = None
        if rng.random() < 0.15:
            kwargs["channel_mlp_skip"] = None


def _geometry(rng: random.Random, kwargs: dict[str, Any], release: str, n_dim: int) -> None:
    if release != "0.3":
        kwargs["positional_embedding"] = rng.choice(("grid", "grid", None))
    padded = rng.random() < 0.4
    if padded:
        kwargs["domain_padding"] = rng.choice(
            (0.2, [rng.choice((0.0, 0.1, 0.3)) for _ in range(n_dim)])
        )
        if release != "2.0.0":
            kwargs["domain_padding_mode"] = rng.choice(("one-sided", "symmetric"))
    elif release != "0.3" and rng.random() < 0.4:
        n_layers = kwargs["n_layers"]
        kwargs["resolution_scaling_factor"] = rng.choice(
            (2, 0.75, [rng.choice((0.5, 1, 1.5, 2)) for _ in range(n_layers)])
        )
