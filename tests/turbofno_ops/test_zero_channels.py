"""Networks with zero channels compute what they compute without."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.turbofno_ops.random_fno import network
from turbofno.models.core.architecture import ChannelMLP, DomainPadding, FNOArchitecture
from turbofno_ops import FNODescription, Normalize, compile_fno, plan
from turbofno_ops._support import A100
from turbofno_ops._zero_channels import with_zero_channels

NETWORK = FNOArchitecture(
    in_channels=2,
    out_channels=3,
    hidden_channels=24,
    n_layers=2,
    modes=(6, 5),
    lifting_channels=(10,),
    channel_mlp=ChannelMLP(hidden_channels=7),
    spectral_bias=True,
    positional_grid="endpoint_excluded",
)


def described(**update: object) -> FNODescription:
    return network(NETWORK.model_copy(update=update)).double().description()


def channels(description: FNODescription) -> int:
    return len(description.lifting[-1].weight)


@pytest.mark.parametrize(
    "update",
    [
        {},
        {"hidden_channels": 12},
        {"hidden_channels": 20, "lifting_channels": ()},
        {"hidden_channels": 48, "norm": "instance_norm"},
        {"channel_mlp": None},
        {"channel_mlp": None, "hidden_channels": 12},
        {"channel_mlp": None, "hidden_channels": 56, "skip_bias": True},
        {"norm": "affine", "skip_bias": True},
        {"projection_channels": (), "n_layers": 1},
        {"resolution_scaling": ((1.5, 1.5), (1.0, 1.0))},
        {"mode_placement": "centred", "modes": (7, 4), "odd_axes_rolled": True},
        {"domain_padding": DomainPadding(points=(2, 3))},
    ],
)
def test_results_are_those_without(update: dict[str, object]) -> None:
    given = described(**update)
    padded = with_zero_channels(given)
    assert channels(padded) == {12: 16, 20: 32, 24: 32, 48: 64, 56: 64}[channels(given)]
    x = torch.randn(2, 2, 15, 18, dtype=torch.float64)
    found, expected = (compile_fno(one, device="cpu")(x) for one in (padded, given))
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(
    "update",
    [
        {"hidden_channels": 32},
        {"hidden_channels": 11},
        {"hidden_channels": 40},
        {"hidden_channels": 100},
        {"channel_mlp": None, "hidden_channels": 20},
        {"channel_mlp": None, "norm": "instance_norm"},
        {"channel_mlp": None, "spectral_bias": False, "skip_bias": False},
        {"channel_mlp": None, "block": ("activation", "spectral", "skip")},
        {"channel_mlp": None, "hidden_channels": 48},
        {"channel_mlp": ChannelMLP(hidden_channels=33)},
        {"channel_mlp": ChannelMLP(hidden_channels=7, skip="linear")},
        {"skip": "identity"},
        {"norm": "group_norm", "norm_groups": 2},
        {"activation": "relu"},
        {"block": ("activation", "branch", "spectral", "skip", "mlp", "mlp_skip")},
    ],
)
def test_other_networks_stay_as_they_are(update: dict[str, object]) -> None:
    given = described(**update)
    assert with_zero_channels(given) is given


def test_a_norm_that_would_divide_by_zero_is_left_alone() -> None:
    given = described(norm="instance_norm")
    blocks = tuple(
        tuple(replace(s, eps=0.0) if isinstance(s, Normalize) else s for s in block)
        for block in given.blocks
    )
    given = replace(given, blocks=blocks)
    assert with_zero_channels(given) is given


@pytest.mark.parametrize("warpgroups", [False, True])
def test_networks_are_compiled_with_zero_channels_where_these_were_measured(
    warpgroups: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    card = torch.device("cuda", 0)
    monkeypatch.setattr(plan, "_supported_gpu", lambda *_: card)
    monkeypatch.setattr(plan, "device_limits", lambda _: A100._replace(warpgroups=warpgroups))
    lowered: list[FNODescription] = []
    monkeypatch.setattr(plan, "lower", lambda given, _: lowered.append(given))
    plan.lowered(described(), "cuda", "fp32", 1)
    assert channels(lowered[0]) == (32 if warpgroups else 24)
