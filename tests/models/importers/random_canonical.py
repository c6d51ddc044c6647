"""Random networks over all fields of our architecture."""

from __future__ import annotations

import random
from typing import Any

import torch
from pydantic import ValidationError

from turbofno.models.core.architecture import ChannelMLP, DomainPadding, FNOArchitecture
from turbofno.models.core.config import FieldNormalization
from turbofno.models.core.fno import FNO

ACTIVATIONS = ("none", "relu", "gelu", "gelu_tanh", "silu", "tanh")
SKIPS = ("linear", "soft-gating", "identity", "none")


def draw_canonical(rng: random.Random) -> FNOArchitecture:
    """Draw every field; repeat for combinations that the config refuses."""
    while True:
        try:
            return FNOArchitecture(**_fields(rng))
        except ValidationError:
            continue


def _fields(rng: random.Random) -> dict[str, Any]:
    """Draw fields; each keeps its default in most draws, so that single deviations are common."""
    n_dim = rng.choice((1, 1, 2, 2, 2, 3))
    n_layers = rng.randint(1, 3)

    def seldom(values: tuple[Any, ...], usual: Any) -> Any:
        return rng.choice(values) if rng.random() < 0.12 else usual

    amounts = tuple(rng.randint(0, 3) for _ in range(n_dim))
    amount = rng.choice(({"points": amounts}, {"fraction": tuple(a / 10 for a in amounts)}))
    padding = DomainPadding(
        **amount,
        sides=rng.choice(("end", "both")),
        mode=seldom(("replicate", "reflect", "circular"), "zeros"),
    )
    skip = rng.choice(SKIPS)
    mlp = ChannelMLP(
        hidden_channels=rng.randint(1, 4),
        skip=rng.choice(SKIPS),
        activation=rng.choice((None, *ACTIVATIONS)),
    )
    channel_mlp = seldom((mlp,), None)
    norm = seldom(("instance_norm", "group_norm", "affine"), "none")
    return {
        "in_channels": rng.randint(1, 3),
        "out_channels": rng.randint(1, 3),
        "hidden_channels": 2 * rng.randint(1, 4),
        "n_layers": n_layers,
        "modes": tuple(rng.randint(1, 6) for _ in range(n_dim)),
        "activation": rng.choice(ACTIVATIONS),
        "lifting_channels": rng.choice(((), (5,), (3, 4))),
        "projection_channels": rng.choice(((), (6,), (5, 3))),
        "skip": skip,
        "skip_bias": rng.random() < 0.5,
        "spectral_bias": rng.random() < 0.5,
        "channel_mlp": channel_mlp,
        "norm": norm,
        "norm_groups": rng.choice((1, 2)),
        "positional_grid": rng.choice(
            ("none", "endpoint_excluded", "endpoint_included", "cell_centres")
        ),
        "domain_padding": rng.choice((None, padding)),
        "lifting_activation": seldom(ACTIVATIONS, None),
        "projection_activation": seldom(ACTIVATIONS, None),
        "mode_placement": rng.choice(
            ("exact", "centred", "floor_window", "corners_overwrite", "corners_add")
        ),
        "odd_axes_rolled": rng.random() < 0.3,
        "resolution_scaling": seldom(
            (tuple((rng.choice((0.5, 1.0, 2.0)),) * n_dim for _ in range(n_layers)),), ()
        ),
        "block": _steps(rng, skip, channel_mlp, norm, activations=1),
        "last_block": _steps(rng, skip, channel_mlp, norm, activations=0),
    }


def _steps(
    rng: random.Random, skip: str, mlp: ChannelMLP | None, norm: str, *, activations: int
) -> tuple[str, ...]:
    """Block steps in any order, some missing or repeated; or (), the default block."""
    if rng.random() < 0.7:
        return ()
    steps = ["spectral", *["activation"] * rng.choice((activations, rng.randint(0, 2)))]
    steps += ["skip"] * (skip != "none") + ["tanh"] * rng.choice((0, 0, 1))
    steps += ["branch"] * rng.choice((0, 0, 1))
    if mlp is not None:
        steps += ["mlp"] + ["mlp_skip"] * (mlp.skip != "none")
    steps += ["norm"] * (rng.randint(1, 2) if norm != "none" else 0)
    if rng.random() < 0.6:
        rng.shuffle(steps)
    return tuple(steps)


def field_normalised(module: FNO, size: tuple[int, ...]) -> FNO:
    """The network with random means and deviations for every point of a grid."""
    fresh = FNO(module.arch, FieldNormalization(grid=size))
    fields = {name: torch.rand_like(buffer) + 0.5 for name, buffer in fresh.named_buffers()}
    fresh.load_state_dict({**module.state_dict(), **fields})
    return fresh.eval().requires_grad_(False)
