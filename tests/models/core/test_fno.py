"""The network against neuraloperator and against the original FNO in torch.fft; torch.compile and export."""

from __future__ import annotations

import itertools
import math
import random
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from benchmarks.neuraloperator_twin import twin
from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from turbofno.models.core.architecture import (
    ChannelMLP,
    DomainPadding,
    FNOArchitecture,
    PositionalGrid,
)
from turbofno.models.core.config import Normalization
from turbofno.models.core.fno import FNO
from turbofno_ops import ChainRefused, compile_fno

NEURALOPERATOR_STYLE = {
    "in_channels": 2,
    "out_channels": 3,
    "hidden_channels": 8,
    "n_layers": 3,
    "lifting_channels": (16,),
    "projection_channels": (16,),
    "skip_bias": False,
    "spectral_bias": True,
    "channel_mlp": ChannelMLP(hidden_channels=4),
}


def randomised(arch: FNOArchitecture, normalization: Normalization | None = None) -> FNO:
    """A float64 network with random values in all parameters, including biases and gates."""
    module = FNO(arch, normalization).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn_like(parameter) / math.sqrt(parameter.shape[0]))
    return module.eval()


@pytest.mark.parametrize(
    ("size", "modes", "options"),
    [
        ((40,), (9,), {}),
        ((41,), (9,), {"positional_grid": "endpoint_excluded"}),
        ((24, 22), (8, 6), {"channel_mlp": ChannelMLP(hidden_channels=8)}),
        (
            (24, 20),
            (10, 5),
            {"channel_mlp": ChannelMLP(hidden_channels=16, skip="linear"), "norm": "instance_norm"},
        ),
        ((20, 20), (6, 4), {"norm": "group_norm", "channel_mlp": ChannelMLP(hidden_channels=8)}),
        ((18, 20), (6, 4), {"skip": "soft-gating"}),
        (
            (18, 20),
            (6, 4),
            {"skip": "identity", "channel_mlp": ChannelMLP(hidden_channels=4, skip="identity")},
        ),
        (
            (20, 26),
            (6, 4),
            {
                "positional_grid": "endpoint_excluded",
                "domain_padding": DomainPadding(fraction=(0.1, 0.2), sides="both"),
                "channel_mlp": ChannelMLP(hidden_channels=4),
            },
        ),
        ((8, 10, 12), (4, 6, 4), {"positional_grid": "endpoint_excluded"}),
    ],
)
def test_fno_equals_neuraloperator(
    size: tuple[int, ...], modes: tuple[int, ...], options: dict[str, object]
) -> None:
    arch = FNOArchitecture(**{**NEURALOPERATOR_STYLE, **options}, modes=modes)
    ours = randomised(arch)
    theirs = twin(ours)
    x = torch.randn(2, 2, *size, dtype=torch.float64)
    with torch.inference_mode():
        # its spectrum passes through complex64 even for float64 input
        assert relative_l2(ours(x), theirs(x)) < 1e-6


def original_fno_2d(module: FNO, x: torch.Tensor, padding: int) -> torch.Tensor:
    """Li et al.'s fourier_2d forward pass, channels last, written from its equations with torch.fft."""
    m1, m2 = module.arch.modes[0] // 2, module.arch.modes[1]
    batch, _, nx, ny = x.shape
    gx = torch.linspace(0, 1, nx, dtype=x.dtype).reshape(1, nx, 1, 1).repeat(batch, 1, ny, 1)
    gy = torch.linspace(0, 1, ny, dtype=x.dtype).reshape(1, 1, ny, 1).repeat(batch, nx, 1, 1)
    h = torch.cat([x.permute(0, 2, 3, 1), gx, gy], dim=-1)
    lift = module.lifting.linears[0]
    h = F.linear(h, lift.weight, lift.bias).permute(0, 3, 1, 2)
    h = F.pad(h, [0, padding, 0, padding])
    for i, block in enumerate(module.blocks):
        weights1 = block.spectral_weight[:, :, :m1]
        weights2 = block.spectral_weight[:, :, m1:]
        spectrum = torch.fft.rfft2(h)
        out = torch.zeros_like(spectrum)
        out[:, :, :m1, :m2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :m1, :m2], weights1)
        out[:, :, -m1:, :m2] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -m1:, :m2], weights2)
        h1 = torch.fft.irfft2(out, s=h.shape[-2:])
        h2 = F.conv2d(h, block.skip.weight[:, :, None, None], block.skip.bias)
        h = h1 + h2
        if i < len(module.blocks) - 1:
            h = F.gelu(h)
    h = h[..., :-padding, :-padding].permute(0, 2, 3, 1)
    first, second = module.projection.linears
    h = F.linear(F.gelu(F.linear(h, first.weight, first.bias)), second.weight, second.bias)
    return h.permute(0, 3, 1, 2)


@pytest.mark.parametrize("size", [(32, 32), (37, 30)])
def test_fno_equals_the_original_code(size: tuple[int, int]) -> None:
    arch = FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=8,
        n_layers=4,
        modes=(12, 6),
        positional_grid="endpoint_included",
        domain_padding=DomainPadding(points=(5, 5)),
    )
    module = randomised(arch)
    x = torch.randn(2, 1, *size, dtype=torch.float64)
    with torch.inference_mode():
        assert relative_l2(module(x), original_fno_2d(module, x, padding=5)) < 1e-10


def test_normalisation_is_applied_at_both_ends() -> None:
    arch = FNOArchitecture(
        in_channels=2, out_channels=1, hidden_channels=4, n_layers=2, modes=(4, 3)
    )
    normalization = Normalization(
        input_mean=(1.0, -2.0), input_std=(0.5, 3.0), output_mean=(7.0,), output_std=(0.1,)
    )
    physical = randomised(arch, normalization)
    plain = FNO(arch).double()
    # without the note that it is of a network with normalisation
    plain.load_state_dict(dict(physical.state_dict()))
    x = torch.randn(3, 2, 10, 9, dtype=torch.float64)
    scaled = torch.stack([(x[:, 0] - 1) / 0.5, (x[:, 1] + 2) / 3], dim=1)
    torch.testing.assert_close(physical(x), plain(scaled) * 0.1 + 7)


def test_a_state_dict_tells_whether_its_network_is_normalised(tmp_path: Path) -> None:
    arch = FNOArchitecture(
        in_channels=1, out_channels=1, hidden_channels=4, n_layers=2, modes=(4, 3)
    )
    of_channels = Normalization(
        input_mean=(1.0,), input_std=(0.5,), output_mean=(7.0,), output_std=(0.1,)
    )
    kinds = [None, of_channels]
    for saved, built in itertools.product(kinds, kinds):
        torch.save(torch.nn.Sequential(FNO(arch, saved)).state_dict(), tmp_path / "fno.pt")
        state = torch.load(tmp_path / "fno.pt", weights_only=True)
        module = torch.nn.Sequential(FNO(arch, built))
        if saved is built:
            module.load_state_dict(state)
        else:
            with pytest.raises(RuntimeError, match=r"give FNO\(config.architecture, config.norm"):
                module.load_state_dict(state)
        # as that of model.safetensors
        module.load_state_dict(dict(state))


@pytest.mark.parametrize("norm", ["none", "instance_norm", "group_norm"])
def test_an_empty_batch_has_an_empty_answer(norm: str) -> None:
    arch = FNOArchitecture.model_validate(
        {**NEURALOPERATOR_STYLE, "modes": (4, 3), "norm": norm, "positional_grid": "cell_centres"}
    )
    module = FNO(arch).eval().requires_grad_(False)
    x = torch.randn(0, 2, 9, 8)
    assert module(x).shape == (0, 3, 9, 8)
    assert compile_fno(module.description(), device="cpu")(x).shape == (0, 3, 9, 8)


@pytest.mark.parametrize(
    ("grid", "points"),
    [
        ("endpoint_excluded", [0.0, 0.25, 0.5, 0.75]),
        ("endpoint_included", [0.0, 1 / 3, 2 / 3, 1.0]),
        ("cell_centres", [0.125, 0.375, 0.625, 0.875]),
    ],
)
def test_positions_follow_the_positional_grid(grid: PositionalGrid, points: list[float]) -> None:
    arch = FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=2,
        n_layers=1,
        modes=(2, 2),
        positional_grid=grid,
    )
    seen = []
    module = randomised(arch)
    module.lifting.register_forward_pre_hook(lambda _, given: seen.append(given[0]))
    module(torch.zeros(2, 1, 4, 5, dtype=torch.float64))
    expected = torch.tensor(points, dtype=torch.float64)
    torch.testing.assert_close(seen[0][1, 1], expected[:, None].expand(4, 5))
    assert seen[0].shape == (2, 3, 4, 5)


@pytest.mark.parametrize("mode", ["zeros", "replicate", "reflect", "circular"])
def test_padding_modes_extend_the_hidden_field(mode: str) -> None:
    padding = DomainPadding.model_validate({"points": (2, 3), "sides": "both", "mode": mode})
    arch = FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=2,
        n_layers=1,
        modes=(2, 2),
        domain_padding=padding,
        lifting_channels=(3,),
        lifting_activation="tanh",
        projection_activation="silu",
    )
    module = randomised(arch)
    x = torch.randn(2, 1, 6, 7, dtype=torch.float64)
    first, second = module.lifting.linears
    hidden = second(torch.tanh(first(x)))
    padded = F.pad(hidden, (3, 3, 2, 2), mode="constant" if mode == "zeros" else mode)
    last = module.blocks[0](padded)[:, :, 2:-2, 3:-3]
    first, second = module.projection.linears
    assert relative_l2(module(x), second(F.silu(first(last)))) < 1e-12


@pytest.mark.parametrize("mode", ["zeros", "replicate", "reflect", "circular"])
@pytest.mark.parametrize("by", ["points", "fraction"])
def test_the_smallest_input_is_the_smallest_that_runs(mode: str, by: str) -> None:
    if (by, mode) == ("fraction", "reflect"):
        pytest.skip("a share of an axis is reflected at run time, or refused")
    rng = random.Random(0)
    for _ in range(20):
        most = 12 if by == "points" else 0.9
        amounts = [rng.choice([0, rng.uniform(0, most)]) for _ in range(2)]
        given = [round(amount) for amount in amounts] if by == "points" else amounts
        sides = rng.choice(["end", "both"])
        arch = FNOArchitecture(
            in_channels=1,
            out_channels=1,
            hidden_channels=2,
            n_layers=1,
            modes=(rng.randint(1, 9), rng.randint(1, 9)),
            domain_padding=DomainPadding.model_validate({by: given, "sides": sides, "mode": mode}),
        )
        module = FNO(arch).eval()
        chain = compile_fno(module.description(), device="cpu")
        least = arch.smallest_input
        assert chain.refusal(least) is None
        assert module(torch.randn(1, 1, *least)).shape[2:] == least
        for axis in range(2):
            size = tuple(n - (i == axis) for i, n in enumerate(least))
            if min(size) < 1:
                continue
            with pytest.raises((ValueError, RuntimeError)):
                module(torch.randn(1, 1, *size))
            with pytest.raises(
                ChainRefused, match=r"cannot be padded by|does not hold the network's"
            ):
                chain(torch.randn(1, 1, *size))


@pytest.fixture(scope="module")
def small() -> FNO:
    arch = FNOArchitecture(
        in_channels=1,
        out_channels=1,
        hidden_channels=6,
        n_layers=2,
        modes=(6, 4),
        positional_grid="endpoint_included",
        domain_padding=DomainPadding(fraction=(0.1, 0.1)),
        channel_mlp=ChannelMLP(hidden_channels=3),
    )
    return FNO(arch).eval().requires_grad_(False)


def test_whole_model_compiles_without_a_graph_break(small: FNO) -> None:
    x = torch.randn(2, 1, 20, 21)
    # Inductor's C++ takes half a minute.
    backend = ("aot_eager", "inductor")[tried(0, thoroughly=1)]
    compiled = torch.compile(small, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(x), small(x), rtol=1e-4, atol=1e-5)


def test_whole_model_exports_with_a_free_batch_size(small: FNO) -> None:
    exported = torch.export.export(
        small, (torch.randn(2, 1, 20, 21),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    x = torch.randn(5, 1, 20, 21)
    torch.testing.assert_close(exported.module()(x), small(x), rtol=1e-4, atol=1e-5)


def test_a_result_does_not_depend_on_the_rest_of_the_batch(small: FNO) -> None:
    x = torch.randn(7, 1, 33, 30)
    together = small(x)
    for i in range(7):
        alone = small(x[i : i + 1])[0]
        assert relative_l2(together[i], alone) < 2e-6


def test_three_dimensional_model_runs_on_odd_grids() -> None:
    arch = FNOArchitecture(
        in_channels=1, out_channels=2, hidden_channels=4, n_layers=2, modes=(4, 4, 3)
    )
    double = randomised(arch)
    x = torch.randn(2, 1, 9, 7, 11, dtype=torch.float64)
    truth = double(x)
    assert relative_l2(double.float()(x.float()), truth) < 1e-5
