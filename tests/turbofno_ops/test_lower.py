"""Lowering: the tile programs and products of a network."""

from __future__ import annotations

import pytest
import torch

from tests.turbofno_ops.random_fno import network
from turbofno.models.core.architecture import ChannelMLP, DomainPadding, FNOArchitecture
from turbofno_ops._activations import activate
from turbofno_ops._check import check
from turbofno_ops._lower import Chain, Mix, Tile, lower
from turbofno_ops._stages import MLP, Affine, Normalize, Project, Save

PLAIN = FNOArchitecture(
    in_channels=2, out_channels=3, hidden_channels=8, n_layers=3, modes=(6, 5), activation="gelu"
)
DEFAULT = PLAIN.model_copy(
    update={
        "lifting_channels": (16,),
        "channel_mlp": ChannelMLP(hidden_channels=4),
        "skip_bias": False,
        "spectral_bias": True,
        "positional_grid": "endpoint_excluded",
    }
)
"""The defaults of neuraloperator."""


def lowered(arch: FNOArchitecture, **update: object) -> Chain:
    description = network(arch.model_copy(update=update)).description()
    check(description)
    return lower(description, torch.device("cpu"))


def programs(chain: Chain) -> list[str]:
    return [
        " ".join(type(step).__name__ for step in item.steps)
        for item in chain.items
        if isinstance(item, Tile)
    ]


def weights(chain: Chain) -> list[tuple[int, ...]]:
    return [tuple(item.weight.shape) for item in chain.items if isinstance(item, Mix)]


def test_lifting_and_projection_are_folded() -> None:
    chain = lowered(PLAIN, positional_grid="endpoint_included")
    assert weights(chain) == [(6, 5, 2 + 2 + 1, 8), (6, 5, 8, 8), (6, 5, 8, 8)]
    assert programs(chain) == [
        "Source Store Analyze",
        "Synthesis AddMap Affine Activate Store Analyze",
        "Synthesis AddMap Affine Activate Store Analyze",
        "Synthesis AddMap Affine Project",
    ]
    assert chain.lifting == chain.tail == ()


def test_a_projection_that_narrows_is_folded_into_the_spectral_product() -> None:
    chain = lowered(PLAIN, projection_channels=(4,))
    assert weights(chain)[-1] == (6, 5, 8, 4)
    assert programs(chain)[-1] == "Synthesis AddMap Affine Activate Project"


def test_the_default_network_is_one_pass_between_two_products() -> None:
    chain = lowered(DEFAULT)
    block = "Synthesis Affine AddMap Activate MLP AddGate"
    assert programs(chain) == [
        "Source MLP Store Analyze",
        f"{block} Activate Store Analyze",
        f"{block} Activate Store Analyze",
        "Synthesis Affine AddMap MLP AddGate Project",
    ]
    assert weights(chain) == [(6, 5, 8, 8)] * 3
    tiles = [item for item in chain.items if isinstance(item, Tile)]
    widths = [(tile.channels, tile.channels_after, tile.channels_of_x) for tile in tiles]
    assert widths == [(4, 8, 0), (8, 8, 8), (8, 8, 8), (8, 3, 8)]


@pytest.mark.parametrize("norm", ["instance_norm", "group_norm"])
def test_a_norm_after_the_synthesis_costs_no_pass_and_a_later_one_does(norm: str) -> None:
    chain = lowered(DEFAULT, norm=norm, norm_groups=2)
    first = "Synthesis Normalize AddMap Activate MLP AddGate Save"
    assert programs(chain) == [
        "Source MLP Store Analyze",
        first,
        "Restore Normalize Activate Store Analyze",
        first,
        "Restore Normalize Activate Store Analyze",
        "Synthesis Normalize AddMap MLP AddGate Save",
        "Restore Normalize Project",
    ]
    steps = [step for item in chain.items if isinstance(item, Tile) for step in item.steps]
    assert all(step.moments for step in steps if isinstance(step, Save))
    # the spectral bias shifts the mean of a group; an instance norm subtracts it
    norms = [step for step in steps if isinstance(step, Normalize)]
    assert [n.offset is None for n in norms] == [norm == "instance_norm", True] * 3


def test_the_skip_may_read_another_field_than_the_analysis() -> None:
    chain = lowered(PLAIN, block=("tanh", "spectral", "skip", "activation"))
    assert programs(chain)[:2] == [
        "AddMap Store Activate Analyze",
        "Synthesis AddMap Affine Activate Store Activate Analyze",
    ]


def test_a_step_that_reads_its_programs_store_begins_a_new_program() -> None:
    block = ("spectral", "activation", "branch", "tanh", "skip")
    assert programs(lowered(PLAIN, block=block))[1] == "Synthesis Activate Store Activate Save"
    assert programs(lowered(PLAIN, block=block))[2].startswith("Restore AddMap Affine")


def test_unread_fields_are_not_stored() -> None:
    assert not any("Store" in program for program in programs(lowered(PLAIN, skip="none")))


def test_affine_steps_are_merged() -> None:
    chain = lowered(PLAIN, spectral_bias=True, skip_bias=True)
    assert programs(chain)[1] == "Synthesis Affine AddMap Activate Store Analyze"
    norm = lowered(PLAIN, norm="affine", spectral_bias=True)
    first = norm.items[2]
    assert isinstance(first, Tile)
    (only,) = [step for step in first.steps if isinstance(step, Affine)]
    assert only.scale is not None
    assert only.shift is not None


@pytest.mark.parametrize("update", [{"projection_channels": (16, 8)}, {"out_channels": 17}])
def test_projections_that_do_not_fit_on_chip_run_in_torch(update: dict[str, object]) -> None:
    chain = lowered(PLAIN, **update)
    last = chain.items[-1]
    assert isinstance(last, Tile)
    assert isinstance(last.steps[-1], Save)
    assert chain.tail[-1].weight.shape[0] == update.get("out_channels", 3)
    assert weights(chain)[-1][-1] == PLAIN.hidden_channels


def test_liftings_and_projections_are_steps_however_wide() -> None:
    chain = lowered(DEFAULT, lifting_channels=(700,), projection_channels=(900,))
    assert chain.lifting == chain.tail == ()
    assert programs(chain)[0] == "Source MLP Store Analyze"
    assert programs(chain)[-1].endswith("Project")


def test_a_lifting_of_more_inputs_than_a_step_takes_runs_in_torch() -> None:
    for in_channels, maps in ((254, 0), (255, 2)):  # and two positions
        chain = lowered(DEFAULT, in_channels=in_channels)
        assert len(chain.lifting) == maps
    padding = DomainPadding(points=(2, 2))
    assert len(lowered(DEFAULT, in_channels=254, domain_padding=padding).lifting) == 2


def test_a_projection_behind_a_channel_mlp_is_the_last_step() -> None:
    last = lowered(DEFAULT).items[-1]
    assert isinstance(last, Tile)
    assert isinstance(last.steps[-1], Project)
    assert [linear.weight.shape for linear in last.steps[-1].maps] == [(128, 8), (3, 128)]


def test_liftings_under_padding() -> None:
    def begun(activation: str, mode: str) -> tuple[str, int]:
        padding = DomainPadding(points=(2, 2), mode=mode)
        update = {"lifting_activation": activation, "domain_padding": padding}
        chain = lowered(DEFAULT, **update)
        return programs(chain)[0], len(chain.lifting)

    # biases multiply the channel of ones, which is zero in the padding, where the lifted field must be zero
    assert begun("gelu", "zeros") == ("Source MLP Store Analyze", 0)
    assert begun("softplus", "zeros") == ("Restore Analyze", 2)
    assert begun("softplus", "reflect") == ("Source MLP Store Analyze", 0)


@pytest.mark.parametrize(
    ("channels", "hidden", "added"),
    [(32, 16, False), (64, 32, False), (64, 256, True), (128, 128, True)],
)
def test_the_second_bias_of_a_lifting_takes_no_stored_field(
    channels: int, hidden: int, added: bool
) -> None:
    """Under padding it is a hidden channel more, unless kernels would hold the lifting only without it."""
    update = {"hidden_channels": channels, "lifting_channels": (hidden,)}
    chain = lowered(DEFAULT, domain_padding=DomainPadding(points=(2, 2)), **update)
    assert programs(chain)[0] == f"Source MLP {'AddMap ' if added else ''}Store Analyze"


@pytest.mark.parametrize("activation", ["gelu", "relu", "silu", "tanh", "selu", "sin", "none"])
def test_a_hidden_channel_adds_the_second_bias(activation: str) -> None:
    update = {"lifting_activation": activation, "domain_padding": DomainPadding(points=(2, 2))}
    module = network(DEFAULT.model_copy(update=update))
    chain = lower(module.description(), torch.device("cpu"))
    assert isinstance(chain.items[0], Tile)
    lift = chain.items[0].steps[1]
    assert isinstance(lift, MLP)
    channel = activate(lift.first.weight[-1, -1], activation).double()
    # bfloat16 rounds it by up to 2e-3 otherwise
    assert (channel.bfloat16().double() / channel - 1).abs() < 1e-4
    added = lift.second.weight[:, -1].double() * channel
    bias = module.lifting.linears[1].bias
    torch.testing.assert_close(added, bias.double(), rtol=1e-6, atol=1e-7)


def test_three_liftings_run_in_torch() -> None:
    chain = lowered(DEFAULT, lifting_channels=(7, 9))
    assert programs(chain)[0] == "Restore Analyze"
    assert len(chain.lifting) == 3
