"""Gradients of the module: accuracy against float64, physical units, no leaked state or memory."""

from __future__ import annotations

import gc
import math
import random
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch

from tests.models.importers.random_canonical import draw_canonical
from tests.service.tiny import tiny_config
from tests.turbofno_ops.random_fno import draw_architecture, draw_normalization, network
from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.checkpoint import load_model
from turbofno.models.core.fno import FNO
from turbofno.service.engine.vjp import VjpShapes, join, part
from turbofno.service.errors import NotDifferentiable
from turbofno.service.runtime.device_pipeline import open_pipeline
from turbofno.service.runtime.forward import Forward
from turbofno.service.runtime.gradient import measure, vjp
from turbofno.service.system import Gaps

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
DEVICES = ["cpu", pytest.param("cuda:0", marks=gpu)]


@pytest.fixture
def rng() -> random.Random:
    return random.Random(torch.initial_seed())


def draw_smooth(rng: random.Random, n_dim: int) -> FNOArchitecture:
    """A network without kinks: rounding could take either side of them."""
    arch = draw_architecture(rng, n_dim)
    while any(kinked in arch.model_dump_json() for kinked in ("relu", "selu", "hard")):
        arch = draw_architecture(rng, n_dim)
    return arch


def inputs(module: FNO, n: int, size: tuple[int, ...]) -> tuple[Array, Array]:
    x = torch.randn(n, module.arch.in_channels, *size)
    if module.normalized:
        shape = (-1, *[1] * len(size))
        x = x * module.input_std.cpu().view(shape) + module.input_mean.cpu().view(shape)
    return x.numpy(), torch.randn(n, module.arch.out_channels, *size).numpy()


def in_float64(module: FNO, x: Array, v: Array) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Gradient and output by autograd; the module comes back in float32."""
    field = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    y = module.double()(field)
    (gradient,) = torch.autograd.grad(y, field, torch.tensor(v, dtype=torch.float64))
    module.float()
    return gradient.numpy(), y.detach().numpy()


def relative(found: NDArray[Any], truth: NDArray[np.float64], least: float = 1e-6) -> float:
    """The relative L2 error; of a truth below `least` (inactive units, vanishing gradients) its share of that."""
    return float(np.linalg.norm(found - truth) / max(float(np.linalg.norm(truth)), least))


def without_units(module: FNO, gradient: NDArray[Any], v: Array) -> NDArray[np.float64]:
    """The gradient with respect to the normalised input, for an L2 norm 1 of what is given of the normalised output."""
    if module.normalized:
        shape = (-1, *[1] * (v.ndim - 2))
        gradient = gradient * module.input_std.cpu().double().view(shape).numpy()
        v = v * module.output_std.cpu().view(shape).numpy()
    return gradient / np.linalg.norm(v.astype(np.float64))


def served(
    module: FNO, x: Array, v: Array, device: str, precision: str = "fp32"
) -> tuple[Array, Array]:
    """Gradient and output as computed on the device thread."""
    place = torch.device(device)
    forward = Forward("m", module.to(place), place, precision=precision, max_batch=len(x))  # type: ignore[arg-type]
    rows, shapes = join(x, v)
    answer = open_pipeline(place).start([rows[:1], rows[1:]], lambda r: forward.vjp(r, shapes))()
    module.to("cpu")
    return part(answer.fields, shapes)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("n_dim", [1, 2])
def test_gradients_equal_autograd_in_float64(rng: random.Random, n_dim: int, device: str) -> None:
    for _ in range(4):
        arch = draw_smooth(rng, n_dim)
        module = network(arch, draw_normalization(rng, arch))
        size = tuple(max(8, least) + rng.randint(0, 9) for least in arch.smallest_grid)
        x, v = inputs(module, 3, size)
        truth = in_float64(module, x, v)
        gradient, output = served(module, x, v, device, rng.choice(["fp32", "bf16"]))
        # Means far from zero cost digits of the input itself. A gradient that vanishes is rounding: of float32, 5e-7 were seen.
        found, expected = (without_units(module, one, v) for one in (gradient, truth[0]))
        assert relative(found, expected, least=1e-3) < 2e-3, arch
        assert relative(output, truth[1]) < 2e-3, arch
        assert {block.precision for block in module.blocks} <= {"fp32", "bf16"}


@pytest.mark.parametrize("device", DEVICES)
def test_the_shipped_network_has_float32_errors_only(device: str) -> None:
    """Detects TF32 in any product."""
    module = load_model(Path(__file__).parents[3] / "models/zoo/trained/darcy-2d").module
    x, v = inputs(module, 2, (47, 51))
    truth = in_float64(module, x, v)
    gradient, output = served(module, x, v, device, "bf16")
    assert relative(gradient, truth[0]) < 1e-5
    assert relative(output, truth[1]) < 1e-5


@pytest.mark.parametrize("device", DEVICES)
def test_tiny_and_huge_cotangents_lose_no_digits(device: str) -> None:
    """The gradient is linear in the cotangent, so a power of two changes its exponent only."""
    module = load_model(Path(__file__).parents[3] / "models/zoo/trained/darcy-2d").module
    x, v = inputs(module, 2, (33, 35))
    signs = np.sign(v)
    gradient, output = served(module, x, signs, device)
    exponents = np.array([-126, 127], np.int32).reshape(-1, 1, 1, 1)
    scaled, same = served(module, x, np.ldexp(signs, exponents), device)
    np.testing.assert_array_equal(scaled, np.ldexp(gradient, exponents))
    np.testing.assert_array_equal(same, output)


def test_networks_of_other_libraries_have_gradients_or_say_why_not(rng: random.Random) -> None:
    for _ in range(12):
        arch = draw_canonical(rng)
        module = network(arch)
        size = tuple(max(8, least) + rng.randint(0, 6) for least in arch.smallest_grid)
        x, v = inputs(module, 1, size)
        try:
            measure(module, torch.from_numpy(x))
        except NotDifferentiable:
            assert arch.resolution_scaling, arch
            continue
        gradient, output = served(module, np.repeat(x, 2, 0), np.repeat(v, 2, 0), "cpu")
        truth = in_float64(module, x, v)
        assert relative(output[:1], truth[1]) < 1e-3, arch
        assert np.isfinite(gradient).all()
        # Rounding may take the other side of a kink.
        if "relu" not in arch.model_dump_json() and arch.norm == "none":
            # It is only rounding if the input has none of the modes that the network keeps.
            missed = np.linalg.norm(gradient[:1] - truth[0])
            assert missed < 1e-3 * np.linalg.norm(truth[0]) + 1e-8 * np.linalg.norm(v), arch


def test_a_batch_gives_each_field_the_gradient_that_it_gets_alone(rng: random.Random) -> None:
    module = network(draw_smooth(rng, 2))
    size = tuple(max(8, least) for least in module.arch.smallest_grid)
    x, v = inputs(module, 4, size)
    together, _ = served(module, x, v, "cpu")
    for i in range(4):
        alone, _ = served(
            module, np.repeat(x[i : i + 1], 2, 0), np.repeat(v[i : i + 1], 2, 0), "cpu"
        )
        np.testing.assert_allclose(
            alone[0], together[i], rtol=1e-4, atol=1e-5 * np.abs(together[i]).max()
        )


def tiny() -> FNO:
    torch.manual_seed(0)
    return FNO(tiny_config().architecture).eval()


@pytest.mark.parametrize("device", DEVICES)
def test_the_backward_pass_runs_on_the_callers_thread(device: str) -> None:
    """Autograd's own thread for a GPU has no CUDA context before its first kernel."""
    threads: list[int] = []

    class Noted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = x * x
            y.register_hook(lambda _: threads.append(threading.get_ident()))
            return y

    x = torch.randn(1, 1, 8, device=device)
    measure(Noted(), x)
    vjp(Noted(), torch.cat([x, x], 1).flatten(1), VjpShapes((1, 8), (1, 8)))
    assert threads == [threading.get_ident()] * 2


def test_grad_mode_is_left_as_it_was_and_predictions_keep_none() -> None:
    module = tiny()
    forward = Forward("m", module, torch.device("cpu"), precision="fp32", max_batch=4)
    x, v = inputs(module, 2, (16,))
    rows, shapes = join(x, v)
    for enabled in (True, False):
        with torch.set_grad_enabled(enabled):
            open_pipeline(torch.device("cpu")).start([rows], lambda r: forward.vjp(r, shapes))()
            assert torch.is_grad_enabled() is enabled
        assert not torch.is_inference_mode_enabled()
    with torch.inference_mode():
        forward.vjp(torch.from_numpy(rows), shapes)
        assert torch.is_inference_mode_enabled()
        assert forward(torch.from_numpy(x))[0].is_inference()
    assert all(parameter.grad is None for parameter in module.parameters())

    class Broken(torch.nn.Module):
        def forward(self, _: torch.Tensor) -> torch.Tensor:
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), torch.inference_mode():
        vjp(Broken(), torch.from_numpy(rows), shapes)
    assert torch.is_grad_enabled()


def test_gradient_memory_is_measured(rng: random.Random) -> None:
    """Compares with the sum over the layers of a known network, each of which saves its input."""
    arch = draw_architecture(rng, 2).model_copy(
        update={
            "hidden_channels": 8, "n_layers": 3, "lifting_channels": (), "projection_channels": (20,),
            "domain_padding": None, "skip": "linear", "activation": "gelu", "projection_activation": None,
            "channel_mlp": None, "norm": "none", "norm_groups": 1, "block": (), "last_block": (),
        }
    )  # fmt: skip
    module = network(arch)
    size = tuple(max(16, least) for least in arch.smallest_grid)
    field = torch.randn(1, arch.in_channels, *size)
    kept = measure(module, field)
    assert kept.saved == pytest.approx(4 * (3 * 8 + 20), rel=0.1)
    assert kept.largest == pytest.approx(4 * 20, rel=0.01)
    assert kept.bytes(100) == pytest.approx(400 * (3 * 8 + 3 * 20), rel=0.1)


def test_a_network_that_forgets_its_input_has_no_gradient() -> None:
    class Forgetful(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.zeros_like(x)

    with pytest.raises(NotDifferentiable, match="cannot differentiate its output"):
        measure(Forgetful(), torch.randn(1, 1, 8))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.parametrize("device", DEVICES)
def test_memory_is_flat_over_a_hundred_gradients(device: str) -> None:
    place = torch.device(device)
    module = tiny().to(place)
    forward = Forward("m", module, place, precision="fp32", max_batch=4)
    x, v = inputs(module, 1, (2**13,))
    rows, shapes = join(x, v)
    kept = measure(module, torch.from_numpy(x).to(place)).bytes(2**13)
    assert kept > 2**18
    pipeline = open_pipeline(place)

    def run(times: int) -> int:
        for _ in range(times):
            answer = pipeline.start([rows], lambda r: forward.vjp(r, shapes))()
            if answer.release is not None:
                answer.release()
        gc.collect()
        if device == "cpu":
            return resident_bytes()
        return torch.cuda.memory_allocated(place)

    before = run(20)
    # A leak in each iteration would make it a hundred.
    assert run(100) - before < 40 * kept


def test_gradients_on_a_cpu_give_the_gaps_that_they_left_in_the_heap_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[Gaps] = []
    monkeypatch.setattr(Gaps, "give_back", lambda gaps: given.append(gaps))
    module = tiny()
    served(module, *inputs(module, 2, (32,)), "cpu")
    assert len(given) == 1


def test_finite_differences_agree(rng: random.Random) -> None:
    """Compares with a directional derivative by central differences, in float64 to exclude rounding."""
    arch = draw_architecture(rng, 1).model_copy(
        update={"activation": "tanh", "lifting_activation": None, "projection_activation": None}
    )
    module = network(arch).double()
    n = max(12, *arch.smallest_grid)
    x, direction = (torch.randn(1, arch.in_channels, n, dtype=torch.float64) for _ in range(2))
    v = torch.randn(1, arch.out_channels, n, dtype=torch.float64)
    shapes = VjpShapes(tuple(x.shape[1:]), tuple(v.shape[1:]))
    row = torch.cat([x.flatten(1), v.flatten(1)], 1)
    gradient = vjp(module, row, shapes)[:, : math.prod(shapes.input)].view_as(x)
    step = 1e-5
    with torch.no_grad():
        difference = (module(x + step * direction) - module(x - step * direction)) / (2 * step)
    expected = float((difference * v).sum())
    assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-6, abs=1e-8)
