"""The memory estimate of a network, for any architecture."""

from __future__ import annotations

import math
from typing import Any

import pytest

from turbofno.models.core.architecture import ChannelMLP, DomainPadding, FNOArchitecture
from turbofno.models.core.memory import activation_bytes

PLAIN: dict[str, Any] = {
    "in_channels": 1,
    "out_channels": 2,
    "hidden_channels": 10,
    "n_layers": 3,
    "modes": (4, 4),
    "projection_channels": (7,),
}


@pytest.mark.parametrize(
    ("changes", "channels", "points"),
    [
        ({}, 1 + 2 + 30 + 7, 80),
        ({"lifting_channels": (5, 6)}, 51, 80),
        ({"channel_mlp": ChannelMLP(hidden_channels=4)}, 52, 80),
        ({"domain_padding": DomainPadding(points=(2, 0))}, 40, 100),
        ({"domain_padding": DomainPadding(fraction=(0.5, 0.5), sides="both")}, 40, 320),
        ({"resolution_scaling": ((2.0, 2.0), (0.5, 0.5), (0.5, 0.5))}, 40, 320),
    ],
)
def test_the_estimate_counts_all_layers_on_their_largest_grid(
    changes: dict[str, Any], channels: int, points: int
) -> None:
    architecture = FNOArchitecture(**{**PLAIN, **changes})
    assert activation_bytes(architecture, (8, 10)) == 4 * channels * points


@pytest.mark.parametrize(
    ("changes", "grid"),
    [
        ({}, (10**400, 1)),
        ({"hidden_channels": 10**400}, (8, 10)),
        ({"domain_padding": DomainPadding(fraction=(1e308, 1e308))}, (8, 10)),
    ],
)
def test_the_estimate_overflows_to_infinity(changes: dict[str, Any], grid: tuple[int, ...]) -> None:
    assert activation_bytes(FNOArchitecture(**{**PLAIN, **changes}), grid) == math.inf
