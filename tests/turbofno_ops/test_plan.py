"""`compile_fno` on a CPU: the folded chain against the network itself, and what it refuses."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.checkpoint import load_model
from models.config import ChannelMLP, DomainPadding, FNOArchitecture, Normalization
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.random_fno import (
    draw_architecture,
    draw_normalization,
    draw_size,
    field,
    network,
    truth,
)
from turbofno_ops import ChainRefused, CompiledFNO, PointwiseMap, Scaling, compile_fno
from turbofno_ops._fold import check, fold

ZOO = Path(__file__).parents[2] / "models" / "zoo"
CPU = torch.device("cpu")

PLAIN = FNOArchitecture(
    in_channels=2, out_channels=3, hidden_channels=8, n_layers=3, modes=(6, 5), activation="gelu"
)


def compiled(arch: FNOArchitecture = PLAIN) -> CompiledFNO:
    return compile_fno(network(arch).description(), device="cpu")


@pytest.mark.parametrize("draw", range(60))
def test_chain_equals_the_network(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    arch = draw_architecture(rng, n_dim=1 + draw % 2)
    module = network(arch, draw_normalization(rng, arch))
    x = field(module, rng.randint(1, 5), draw_size(rng, arch))
    expected = truth(module, x)
    single = compile_fno(module.description(), device="cpu")(x)
    # with few channels and points the two errors may differ by more than twice, either way
    limit = max(2 * relative_l2(module(x), expected), 3e-6)
    assert relative_l2(single, expected) < limit, arch
    double = compile_fno(module.double().description(), device="cpu")(x.double())
    assert double.dtype == torch.float64
    assert relative_l2(double, expected) < 1e-11, arch


@pytest.mark.parametrize("name", sorted(p.name for p in ZOO.iterdir()))
def test_zoo_models_agree_with_float64(name: str) -> None:
    module = load_model(ZOO / name).module
    x = field(module, 2, (67,) * module.arch.n_dim)
    expected = truth(module, x)
    assert relative_l2(compile_fno(module.description(), device="cpu")(x), expected) < 1e-5


def test_lifting_and_projection_leave_no_hidden_field_behind() -> None:
    arch = PLAIN.model_copy(update={"positional_grid": "endpoint_included"})
    description = network(arch).description()
    chain = fold(description, CPU)
    assert chain.layers[0].weight.shape == (6, 5, 2 + 2 + 1, 8), "x, positions, ones"
    assert chain.layers[-1].weight.shape == (6, 5, 8, 128)
    assert chain.projection is not None
    assert chain.projection.weight.shape == (3, 128)
    assert chain.lifting == chain.tail == ()


@pytest.mark.parametrize(
    "update",
    [{"projection_channels": (16, 8)}, {"projection_channels": (257,)}, {"out_channels": 17}],
)
def test_projections_that_do_not_fit_on_chip_run_in_torch(update: dict[str, object]) -> None:
    arch = PLAIN.model_copy(update=update)
    chain = fold(network(arch).description(), CPU)
    assert chain.projection is None
    assert chain.tail[-1].weight.shape[0] == arch.out_channels
    assert chain.layers[-1].weight.shape[-1] == arch.hidden_channels


def test_a_large_mean_costs_no_digits() -> None:
    kelvin = Normalization(
        input_mean=(300.0, 1e6), input_std=(1.0, 1.0), output_mean=(0.0,) * 3, output_std=(1.0,) * 3
    )
    module = network(PLAIN, kelvin)
    x = field(module, 3, (20, 21))
    chain = compile_fno(module.description(), device="cpu")
    assert relative_l2(chain(x), truth(module, x)) < 1e-6


def test_any_batch_any_grid_any_layout() -> None:
    module = network(PLAIN)
    chain = compile_fno(module.description(), device="cpu", max_batch=4)
    for batch, size in ((1, (20, 21)), (9, (33, 30)), (3, (20, 21))):
        x = field(module, batch, size).transpose(2, 3).contiguous().transpose(2, 3)
        torch.testing.assert_close(chain(x), module(x), rtol=1e-4, atol=1e-5)
    assert chain(field(module, 0, (20, 21))).shape == (0, 3, 20, 21)


def test_result_is_the_callers_own() -> None:
    chain = compiled()
    first = chain(torch.randn(2, 2, 20, 21))
    kept = first.clone()
    chain(torch.randn(2, 2, 20, 21))
    assert torch.equal(first, kept)


def test_works_inside_and_outside_inference_mode() -> None:
    chain = compiled()
    x = torch.randn(2, 2, 20, 21)
    with torch.inference_mode():
        inside = chain(x.clone())
    torch.testing.assert_close(chain(x), inside)
    assert not chain(x.requires_grad_()).requires_grad


@pytest.mark.parametrize(
    ("update", "why"),
    [
        ({"norm": "instance_norm"}, "instance_norm"),
        ({"channel_mlp": ChannelMLP(hidden_channels=4)}, "channel MLP"),
        ({"modes": (3, 3, 3)}, "one and two grid axes"),
        ({"resolution_scaling": ((2.0, 2.0),) * 3}, "resolution"),
        ({"domain_padding": DomainPadding(points=(2, 2), mode="reflect")}, "reflect"),
        ({"block": ("tanh", "spectral", "skip", "activation")}, "tanh, spectral"),
        ({"last_block": ("spectral", "skip", "activation")}, "spectral, skip, activation"),
    ],
)
def test_networks_that_are_no_chain_are_refused(update: dict[str, object], why: str) -> None:
    with pytest.raises(ChainRefused, match=why):
        compile_fno(network(PLAIN.model_copy(update=update)).description(), device="cpu")


def test_grids_that_hold_too_few_modes_are_refused() -> None:
    chain = compiled()
    assert chain.refusal((6, 8)) is None
    for size in ((5, 8), (6, 7), (64,)):
        refused = chain.refusal(size)
        assert refused is not None
        with pytest.raises(ChainRefused, match="grid"):
            chain(torch.randn(1, 2, *size))


@pytest.mark.parametrize("placement", ["centred", "floor_window", "corners_overwrite"])
@pytest.mark.parametrize("rolled", [False, True])
def test_grids_on_which_modes_move_are_refused(placement: str, rolled: bool) -> None:
    count = 6 if placement.startswith("corners") else 5
    update = {"modes": (count, 4), "mode_placement": placement, "odd_axes_rolled": rolled}
    module = network(PLAIN.model_copy(update=update))
    chain = compile_fno(module.description(), device="cpu")
    refused = {size: chain.refusal(size) for size in ((9, 9), (10, 9), (4, 9))}
    assert (refused[9, 9] is not None) == rolled
    assert (refused[10, 9] is not None) == (placement == "floor_window")
    assert refused[4, 9] is not None
    for size, reason in refused.items():
        if reason is None:
            x = torch.randn(2, 2, *size)
            assert relative_l2(chain(x), module(x)) < 1e-5


def test_a_line_of_any_size_keeps_its_modes() -> None:
    update = {"modes": (5,), "mode_placement": "centred", "odd_axes_rolled": True}
    module = network(PLAIN.model_copy(update=update))
    x = torch.randn(2, 2, 15)
    chain = compile_fno(module.description(), device="cpu")
    assert relative_l2(chain(x), module(x)) < 1e-5


def test_descriptions_that_contradict_themselves_are_refused() -> None:
    description = network(PLAIN).description()
    narrow = replace(description, layers=(replace(description.layers[0], skip=None),) * 2)
    check(narrow)
    wrong = replace(description.layers[0], weight=torch.randn(7, 8, 6, 5, dtype=torch.complex64))
    with pytest.raises(ChainRefused, match="takes 7 channels where it is given 8"):
        check(replace(description, layers=(wrong,)))
    ones = torch.ones(1)
    for part, why in (
        ({"inputs": Scaling(ones, torch.ones(2))}, "mean of its inputs"),
        ({"outputs": Scaling(torch.ones(3), ones)}, "standard deviation of its outputs"),
        ({"layers": (replace(description.layers[0], skip=torch.ones(1, 8)),)}, "a skip has shape"),
        ({"projection": (PointwiseMap(torch.ones(3, 8), ones),)}, "a bias has shape"),
    ):
        with pytest.raises(ChainRefused, match=why):
            check(replace(description, **part))
    for part in ("activation", "lifting_activation", "projection_activation"):
        with pytest.raises(ChainRefused, match="softsign"):
            check(replace(description, **{part: "softsign"}))


def test_misuse_is_explained() -> None:
    description = network(PLAIN).description()
    with pytest.raises(ValueError, match="'fp32', 'tf32', 'bf16'"):
        compile_fno(description, device="cpu", precision="fp16")
    for name in ("max_batch", "max_graphs", "max_graph_bytes"):
        with pytest.raises(ValueError, match=name):
            compile_fno(description, device="cpu", **{name: 0})
    with pytest.raises(ChainRefused, match="meta"):
        compile_fno(description, device="meta")
    chain = compile_fno(description, device="cpu")
    with pytest.raises(TypeError, match="float64"):
        chain(torch.randn(1, 2, 20, 20, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\[batch, 2, \*grid\]"):
        chain(torch.randn(1, 3, 20, 20))
    with pytest.raises(ValueError, match="x on meta"):
        chain(torch.randn(1, 2, 20, 20, device="meta"))


def test_what_really_runs_is_said() -> None:
    description = network(PLAIN).description()
    chain = compile_fno(description, device="cpu", precision="bf16", max_batch=48)
    assert (chain.backend, chain.precision, chain.device) == ("gemm", "fp32", CPU)
    assert chain.buckets() == (1, 2, 4, 8, 16, 32, 48)
    assert chain.device_bytes() > 6 * 5 * (8 * 8 + 8 * 128) * 8
    chain.clear()
    assert compile_fno(description, device="cpu", max_batch=1).buckets() == (1,)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused_with_the_reason() -> None:
    with pytest.raises(ChainRefused, match="there is no GPU"):
        compile_fno(network(PLAIN).description(), device="cuda")
