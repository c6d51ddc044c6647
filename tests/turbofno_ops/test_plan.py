"""`compile_fno` on a CPU: the folded chain against the network, and refusals."""

from __future__ import annotations

import copy
import pickle
import random
from dataclasses import replace

import pytest
import torch

from tests.models.importers.random_canonical import field_normalised
from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2, spectral_conv_truth
from tests.turbofno_ops.random_fno import (
    draw_architecture,
    draw_normalization,
    draw_size,
    field,
    network,
    truth,
)
from turbofno.models.core.architecture import ChannelMLP, FNOArchitecture
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.config import Normalization
from turbofno.models.core.fno import FNO, to_precision
from turbofno.models.zoo import TRAINED
from turbofno_ops import (
    MLP,
    Activate,
    AddGate,
    AddMap,
    Affine,
    Branch,
    ChainRefused,
    CompiledFNO,
    FNODescription,
    Normalize,
    PointwiseMap,
    Scaling,
    Spectral,
    compile_fno,
    plan,
)
from turbofno_ops._check import check
from turbofno_ops._pass import mixes_on_grid

CPU = torch.device("cpu")

PLAIN = FNOArchitecture(
    in_channels=2, out_channels=3, hidden_channels=8, n_layers=3, modes=(6, 5), activation="gelu"
)


def compiled(arch: FNOArchitecture = PLAIN) -> CompiledFNO:
    return compile_fno(network(arch).description(), device="cpu")


@pytest.mark.parametrize("draw", range(tried(45, 180)))
def test_chain_equals_the_network(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    arch = draw_architecture(rng, n_dim=1 + draw % 3)
    module = network(arch, draw_normalization(rng, arch))
    x = field(module, rng.randint(1, 5), draw_size(rng, arch))
    expected = truth(module, x)
    single = compile_fno(module.description(), device="cpu")(x)
    own = relative_l2(module(x), expected)
    # with few channels and points the two errors may differ by more than a factor of two
    assert relative_l2(single, expected) < max(4 * own, 3e-6), arch
    double = compile_fno(module.double().description(), device="cpu")(x.double())
    assert double.dtype == torch.float64
    # the float32 error shows how much the network amplifies rounding
    assert relative_l2(double, expected) < max(1e-6 * own, 1e-11), arch


@pytest.mark.parametrize("name", sorted(p.name for p in TRAINED.iterdir()))
def test_zoo_models_agree_with_float64(name: str) -> None:
    module = load_model(TRAINED / name).module
    x = field(module, 2, (67,) * module.arch.n_dim)
    expected = truth(module, x)
    assert relative_l2(compile_fno(module.description(), device="cpu")(x), expected) < 1e-5


def test_a_large_mean_does_not_reduce_accuracy() -> None:
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


def test_what_surrounds_a_network_calls_it() -> None:
    chain, x = compiled(), torch.randn(2, 2, 20, 24)
    results: list[torch.Tensor] = []
    for _ in range(2):
        chain.run_within(lambda network: results.append(network(x)), 2, (20, 24))
    assert len(results) == 2
    assert all(torch.equal(y, chain(x)) for y in results)
    for batch, size in ((65, (20, 24)), (0, (20, 24)), (2, (4, 4))):
        with pytest.raises(ChainRefused, match=f"not {batch}$|does not hold"):
            chain.run_within(results.append, batch, size)


def test_later_calls_do_not_overwrite_a_result() -> None:
    chain = compiled()
    first = chain(torch.randn(2, 2, 20, 21))
    kept = first.clone()
    chain(torch.randn(2, 2, 20, 21))
    assert torch.equal(first, kept)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_weights_that_change_later_do_not_change_the_chain(dtype: torch.dtype) -> None:
    arch = FNOArchitecture(
        in_channels=2,
        out_channels=1,
        hidden_channels=6,
        n_layers=3,
        modes=(5, 3),
        channel_mlp=ChannelMLP(hidden_channels=4, skip="linear"),
        norm="group_norm",
    )
    network = to_precision(FNO(arch), dtype)
    chain = compile_fno(network.description(), device="cpu")
    x = torch.randn(2, 2, 9, 8, dtype=dtype)
    before = chain(x)
    with torch.no_grad():
        for weight in network.parameters():
            # as a step of training does
            weight.add_(1.0)
            assert torch.equal(chain(x), before)


def test_works_inside_and_outside_inference_mode() -> None:
    chain = compiled()
    x = torch.randn(2, 2, 20, 21)
    with torch.inference_mode():
        inside = chain(x.clone())
    torch.testing.assert_close(chain(x), inside)


def test_a_function_that_calls_it_can_be_compiled_by_torch() -> None:
    chain = compiled()
    x = torch.randn(2, 2, 20, 21)
    twice = torch.compile(lambda field: 2 * chain(field), backend="eager")
    torch.testing.assert_close(twice(x), 2 * chain(x))


def test_gradients_are_refused_not_left_out() -> None:
    chain = compiled()
    x = torch.randn(2, 2, 20, 21)
    expected = chain(x)
    with pytest.raises(ValueError, match="computes no gradients"):
        torch.func.grad(lambda x: chain(x).sum())(x)
    with pytest.raises(ValueError, match="computes no gradients"):
        torch.func.jvp(chain, (x,), (x,))
    with pytest.raises(ValueError, match="computes no gradients"):
        chain(x.requires_grad_())
    with torch.no_grad():
        assert torch.equal(chain(x), expected)


def test_grids_that_hold_too_few_modes_are_refused() -> None:
    chain = compiled()
    assert chain.refusal((6, 8)) is None
    for size in ((5, 8), (6, 7), (64,)):
        refused = chain.refusal(size)
        assert refused is not None
        with pytest.raises(ChainRefused, match="grid"):
            chain(torch.randn(1, 2, *size))


@pytest.mark.parametrize(
    "placement", ["centred", "floor_window", "corners_overwrite", "corners_add"]
)
@pytest.mark.parametrize("rolled", [False, True])
def test_every_mode_placement_equals_the_network(placement: str, rolled: bool) -> None:
    count = 6 if placement.startswith("corners") else 5
    update = {"modes": (count, 4), "mode_placement": placement, "odd_axes_rolled": rolled}
    module = network(PLAIN.model_copy(update=update)).double()
    chain = compile_fno(module.description(), device="cpu")
    for size in ((9, 9), (10, 9), (4, 9), (3, 5), (1, 1)):
        x = torch.randn(2, 2, *size, dtype=torch.float64)
        assert relative_l2(chain(x), module(x)) < 1e-12, size


@pytest.mark.parametrize("scales", [(2.0, 2.0), (0.5, 1.0), (0.7, 1.5)])
@pytest.mark.parametrize("skip", ["linear", "soft-gating", "none"])
def test_layers_on_other_grids(scales: tuple[float, float], skip: str) -> None:
    back = tuple(1 / scale for scale in scales)
    update = {"skip": skip, "resolution_scaling": (scales, (1.0, 1.0), back)}
    update |= {"channel_mlp": ChannelMLP(hidden_channels=4), "norm": "instance_norm"}
    module = network(PLAIN.model_copy(update=update)).double()
    chain = compile_fno(module.description(), device="cpu")
    for size in ((20, 21), (16, 16)):
        x = torch.randn(2, 2, *size, dtype=torch.float64)
        expected = module(x)
        assert chain(x).shape == expected.shape
        assert relative_l2(chain(x), expected) < 1e-12
        assert chain(x[:0]).shape == expected[:0].shape


def test_resampling_a_single_point_is_refused() -> None:
    # resampling by the spectrum of one point changes constants
    update = {"modes": (1, 1, 1), "resolution_scaling": ((2.0, 2.0, 2.0),) * 3}
    module = network(PLAIN.model_copy(update=update)).double()
    chain = compile_fno(module.description(), device="cpu")
    refused = chain.refusal((4, 1, 4))
    assert refused is not None
    assert "one point" in refused
    x = torch.randn(1, 2, 3, 2, 4, dtype=torch.float64)
    assert relative_l2(chain(x), module(x)) < 1e-12


def test_resampling_to_a_single_point_is_refused() -> None:
    # resampling by the spectrum of one point changes constants, so the skip's bias may not be moved past it
    update = {"modes": (1, 1, 1), "resolution_scaling": ((0.5, 1.0, 1.0),) * 3}
    module = network(PLAIN.model_copy(update=update)).double()
    chain = compile_fno(module.description(), device="cpu")
    refused = chain.refusal((8, 4, 4))
    assert refused is not None
    assert "one point" in refused
    x = torch.randn(1, 2, 16, 4, 4, dtype=torch.float64)
    assert relative_l2(chain(x), module(x)) < 1e-12


def test_the_output_grid_may_differ_from_the_input_grid() -> None:
    module = network(PLAIN.model_copy(update={"resolution_scaling": ((2.0, 1.0),) * 3})).double()
    x = torch.randn(1, 2, 12, 12, dtype=torch.float64)
    result = compile_fno(module.description(), device="cpu")(x)
    assert result.shape == (1, 3, 96, 12)
    assert relative_l2(result, module(x)) < 1e-12


def test_a_skip_on_one_grid_in_a_layer_that_changes_it() -> None:
    update = {
        "resolution_scaling": ((2.0, 2.0),) * 3,
        "block": ("skip", "spectral", "activation"),
    }
    module = network(PLAIN.model_copy(update=update)).double()
    x = torch.randn(1, 2, 12, 13, dtype=torch.float64)
    assert relative_l2(compile_fno(module.description(), device="cpu")(x), module(x)) < 1e-12
    # resampling by the spectrum changes a field even on the same grid
    update |= {"modes": (4, 4, 3), "resolution_scaling": ((2.0, 2.0, 2.0),) * 3}
    with pytest.raises(ChainRefused, match="its step 'skip'"):
        network(PLAIN.model_copy(update=update)).description()


def test_normalisation_by_fields_supports_only_its_grid() -> None:
    module = field_normalised(network(PLAIN), (12, 13)).double()
    chain = compile_fno(module.description(), device="cpu")
    x = torch.randn(2, 2, 12, 13, dtype=torch.float64)
    assert relative_l2(chain(x), module(x)) < 1e-12
    refused = chain.refusal((13, 12))
    assert refused is not None
    assert "field on another grid" in refused


def test_inconsistent_descriptions_are_refused() -> None:
    description = network(PLAIN).description()
    spectral, skip, _, _ = description.blocks[0]
    check(replace(description, blocks=((spectral,),) * 2))
    wrong = Spectral(torch.randn(7, 8, 6, 5, dtype=torch.complex64))
    line = Spectral(torch.randn(8, 8, 6, dtype=torch.complex64))
    ones, eight = torch.ones(1), torch.ones(8)
    narrow = PointwiseMap(torch.ones(4, 7))
    for part, why in (
        ({"inputs": Scaling(ones, torch.ones(2))}, "mean of its inputs"),
        ({"outputs": Scaling(torch.ones(3), ones)}, "standard deviation of its outputs"),
        ({"projection": (PointwiseMap(torch.ones(3, 8), ones),)}, "a bias has shape"),
        ({"lifting": ()}, "need at least one map"),
        ({"lifting_activation": "softsign"}, "softsign"),
        ({"projection_activation": "softsign"}, "softsign"),
        ({"projection_activation": torch.nn.GELU()}, "got GELU"),
        ({"in_channels": 3}, "a map takes 2 channels but gets 3"),
        ({"lifting": (PointwiseMap(torch.ones(8, 2, 1, 1)),)}, r"must be \[c_out, c_in\]"),
        ({"padding_mode": "constant"}, "padding mode is 'constant', not one of"),
        (
            {
                "inputs": Scaling(torch.ones(2, 9, 9), torch.ones(2, 9, 9)),
                "outputs": Scaling(torch.ones(3, 9, 8), torch.ones(3, 9, 8)),
            },
            "different grids",
        ),
    ):
        with pytest.raises(ChainRefused, match=why):
            check(replace(description, **part))
    for block, why in (
        ((wrong,), "takes 7 channels but gets 8"),
        ((spectral, line), "expected one each"),
        ((skip,), "expected one each"),
        ((spectral, AddMap(torch.ones(1, 8))), "a skip has shape"),
        ((spectral, AddGate(ones)), "a gate has shape"),
        ((spectral, Affine(eight, ones)), "a shift has shape"),
        ((spectral, Normalize(3, 1e-5)), "8 channels into 3 groups"),
        ((spectral, Normalize(2, 1e-5, ones)), "a parameter of a norm"),
        ((spectral, Activate("softsign")), "softsign"),
        ((spectral, MLP(narrow, "gelu", narrow)), "takes 7 channels"),
        ((replace(spectral, out_size=lambda size: size),), "`resample` is None"),
        ((Spectral(spectral.weight[..., :0]),), r"without empty axes, got shape \(8, 8, 6, 0\)"),
        ((Spectral(spectral.weight[..., 0, 0]),), r"\[c_in, c_out, \*modes\]"),
        # a class is not a step, and a module or a name is no activation
        ((spectral, Branch), "Branch'>; steps are objects of Spectral, AddMap"),
        ((spectral, torch.nn.GELU()), "the step GELU"),
        ((spectral, "gelu"), "the step 'gelu'"),
    ):
        with pytest.raises(ChainRefused, match=why):
            check(replace(description, blocks=(block,)))
    with pytest.raises(ChainRefused, match="numbers of grid axes"):
        check(replace(description, blocks=((spectral,), (line,))))
    wide = Spectral(spectral.weight.to(torch.complex128))
    with pytest.raises(ChainRefused, match=r"128, torch\.complex64, expected all complex64"):
        check(replace(description, blocks=((spectral,), (wide,))))


def test_fields_of_normalisation_may_lie_on_the_two_grids_of_a_network() -> None:
    one = PointwiseMap(torch.ones(1, 1))
    inputs, outputs = (Scaling(torch.rand(1, n, n), torch.rand(1, n, n) + 1) for n in (8, 16))
    finer = Spectral(torch.ones(1, 1, 4, 3) + 0j, out_size=lambda size: tuple(2 * n for n in size))
    plain = FNODescription(
        1,
        (one,),
        ((finer,),),
        (one,),
        resample=lambda x, size: torch.nn.functional.interpolate(x, size=size),
    )
    x = torch.randn(2, 1, 8, 8)
    expected = compile_fno(plain, device="cpu")((x - inputs.mean) / inputs.std)
    scaled = compile_fno(replace(plain, inputs=inputs, outputs=outputs), device="cpu")
    torch.testing.assert_close(scaled(x), expected * outputs.std + outputs.mean)


def test_misuse_is_explained() -> None:
    description = network(PLAIN).description()
    with pytest.raises(ValueError, match="'fp32', 'tf32', 'bf16'"):
        compile_fno(description, device="cpu", precision="fp16")
    with pytest.raises(ValueError, match="max_batch"):
        compile_fno(description, device="cpu", max_batch=0)
    with pytest.raises(ChainRefused, match="meta"):
        compile_fno(description, device="meta")
    with pytest.raises(TypeError, match=r"got FNO; .* description\(\)"):
        compile_fno(network(PLAIN), device="cpu")
    chain = compile_fno(description, device="cpu")
    with pytest.raises(TypeError, match="x must be a tensor, got ndarray"):
        chain(torch.randn(1, 2, 20, 20).numpy())
    with pytest.raises(TypeError, match="float64"):
        chain(torch.randn(1, 2, 20, 20, dtype=torch.float64))
    with pytest.raises(ValueError, match=r"\[batch, 2, \*grid\]"):
        chain(torch.randn(1, 3, 20, 20))
    with pytest.raises(ValueError, match="x on meta"):
        chain(torch.randn(1, 2, 20, 20, device="meta"))
    with pytest.raises(TypeError, match="size must be the points along each axis"):
        chain.refusal((20.0, 20.0))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="size must be the points along each axis"):
        chain.run_within(lambda _: None, 1, 20)  # type: ignore[arg-type]
    for copied in (copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="save the module, and compile it again"):
            copied(chain)


def test_attributes_report_the_actual_backend_and_precision() -> None:
    description = network(PLAIN).description()
    chain = compile_fno(description, device="cpu", precision="bf16", max_batch=48)
    assert (chain.backend, chain.precision, chain.device) == ("gemm", "fp32", CPU)
    assert chain.buckets() == (1, 2, 4, 8, 16, 32, 48)
    assert chain.device_bytes() > 6 * 5 * (8 * 8 + 8 * 8) * 8
    chain.clear()
    assert compile_fno(description, device="cpu", max_batch=1).buckets() == (1,)
    # a tensor of a CPU has no index
    assert compile_fno(description, device="cpu:0")(torch.ones(1, 2, 12, 12)).device == CPU


def test_four_axes_and_other_modes_in_every_layer() -> None:
    sizes = (5, 6, 4, 7)
    all_modes = ((3, 2, 4, 3), (5, 6, 1, 4))
    weights = [torch.randn(3, 3, *modes, dtype=torch.complex128) for modes in all_modes]
    skip = torch.randn(3, 3, dtype=torch.float64)
    lifting, projection = torch.randn(3, 2).double(), torch.randn(1, 3).double()
    description = FNODescription(
        in_channels=2,
        lifting=(PointwiseMap(lifting),),
        blocks=tuple(
            (Spectral(weight), Normalize(3, 1e-5), AddMap(skip), Activate("gelu"))
            for weight in weights
        ),
        projection=(PointwiseMap(projection),),
    )
    x = torch.randn(2, 2, *sizes, dtype=torch.float64)
    y = torch.einsum("oi,bi...->bo...", lifting, x)
    for weight in weights:
        z = spectral_conv_truth(y, weight)
        z = torch.nn.functional.instance_norm(z.flatten(3)).view_as(z)
        y = torch.nn.functional.gelu(z + torch.einsum("oi,bi...->bo...", skip, y))
    expected = torch.einsum("oi,bi...->bo...", projection, y)
    assert relative_l2(compile_fno(description, device="cpu")(x), expected) < 1e-12


def test_every_program_and_product_is_checked_for_support(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    update = {"channel_mlp": ChannelMLP(hidden_channels=4), "norm": "instance_norm"}
    update |= {"resolution_scaling": ((2.0, 1.0), (1.0, 1.0), (1.0, 2.0))}
    chain = compiled(PLAIN.model_copy(update=update))
    asked: list[tuple[object, ...]] = []
    stop_at = 0

    def program(steps: tuple[object, ...], **shape: object) -> str | None:
        asked.append((type(steps[0]).__name__, *shape.values()))
        return "too wide" if len(asked) == stop_at else None

    def mix(*shape: object) -> str | None:
        asked.append(("mix", *shape))
        return "too many" if len(asked) == stop_at else None

    monkeypatch.setattr(plan, "program_refusal", program)
    monkeypatch.setattr(plan, "product_refusal", mix)
    modes, fine = (6, 5), (20, 10)
    row = 6  # the kept modes of a row, made even
    on_grid = mixes_on_grid(chain._chain, (10, 10), shapes_only=True)
    assert chain._kernels_refusal(on_grid, 4) is None
    layer = [
        ("Synthesis", 4, 8, 8, fine, row, row, "fp32", chain.device),
        ("Restore", 4, 8, 0, fine, row, row, "fp32", chain.device),
    ]
    last = (20, 20)
    assert asked == [
        ("Source", 4, 3, 0, (10, 10), 0, row, "fp32", chain.device),
        ("mix", 4, 3, 8, (10, 10), fine, modes, "fp32"),
        ("Synthesis", 4, 8, 3, fine, row, row, "fp32", chain.device),
        layer[1],
        ("mix", 4, 8, 8, fine, fine, modes, "fp32"),
        *layer,
        ("mix", 4, 8, 8, fine, last, modes, "fp32"),
        ("Synthesis", 4, 8, 8, last, row, row, "fp32", chain.device),
        ("Restore", 4, 8, 0, last, row, row, "fp32", chain.device),
    ]
    for number, why in (
        (1, "before layer 1 of 3: too wide"),
        (2, "in layer 1 of 3: too many"),
        (3, "before layer 2 of 3: too wide"),
        (8, "in layer 3 of 3: too many"),
        (10, "after layer 3 of 3: too wide"),
    ):
        asked.clear()
        stop_at = number
        assert chain._kernels_refusal(on_grid, 4) == why


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_without_a_gpu_it_is_refused_with_the_reason() -> None:
    with pytest.raises(ChainRefused, match="there is no GPU"):
        compile_fno(network(PLAIN).description(), device="cuda")
