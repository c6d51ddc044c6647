"""The CUDA kernels on a GPU: accuracy on random shapes, and behaviour with streams, graphs and threads."""

from __future__ import annotations

import math
import random
import threading
from typing import Any

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2
from tests.turbofno_ops.on_gpu import needs_kernels, poison
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno_ops import (
    ACTIVATIONS,
    explain,
    fourier_layer,
    last_choice,
    spectral_conv,
)
from turbofno_ops._activations import activate

pytestmark = [needs_kernels, pytest.mark.usefixtures("strict_float32")]

SHAPES = tried(60, 300)
# typical of float32 sums over so many points, modes and channels; PyTorch's own error may raise the limit
FLOAT32_ERROR = 1e-6
# rounding to 11 or 8 significant bits at both ends of a layer
COARSE_ERRORS = {"tf32": 2e-3, "bf16": 1e-2}


LINES = [*range(8, 140), 141, 256, 251, 421]
AXES = {
    1: [1, 2, *LINES, 512, 1021, 1024, 4096, 8192, 16384],
    2: LINES,
    3: [4, 5, 7, 8, 12, 16, 17, 31, 32],
}


def draw_shape(rng: random.Random) -> tuple[int, tuple[int, int], tuple[int, ...], tuple[int, ...]]:
    """Draw batch, channels, grid and modes of a layer, small enough to check in float64."""
    while True:
        axes = rng.choice([1, 2, 2, 3])
        size = tuple(rng.choice(AXES[axes]) for _ in range(axes))
        limits = [min(128, n) for n in size[:-1]] + [min(128, size[-1] // 2 + 1)]
        modes = tuple(rng.choice([limit, rng.randint(1, limit)]) for limit in limits)
        few = [1, 8, 16, 20, 32, 48, 64, rng.randint(1, 256)]
        channels = (rng.choice([*few, 256]), rng.choice([*few, 256]))
        batch = rng.choice([1, 1, 2, 3, 4, 5, 8, 17, 33, 64])
        if (
            batch * max(channels) * math.prod(size) <= 2**22
            and math.prod(channels) * math.prod(modes) <= 2**22
        ):
            return batch, channels, size, modes


def tensors(
    batch: int, channels: tuple[int, int], size: tuple[int, ...], modes: tuple[int, ...]
) -> tuple[torch.Tensor, ...]:
    """Return random x, weight, skip and bias on the CPU in float64, exactly representable in float32."""
    c_in, c_out = channels
    return tuple(
        t.to(torch.complex128 if t.is_complex() else torch.float64)
        for t in (
            torch.randn(batch, c_in, *size),
            torch.randn(c_in, c_out, *modes, dtype=torch.complex64) / math.sqrt(c_in),
            torch.randn(c_out, c_in) / math.sqrt(c_in),
            torch.randn(c_out),
        )
    )


def on_gpu(*given: torch.Tensor) -> list[torch.Tensor]:
    return [t.to("cuda", torch.complex64 if t.is_complex() else torch.float32) for t in given]


@pytest.mark.parametrize("draw", range(SHAPES))
def test_layer_equals_float64_on_random_shapes(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    shape = draw_shape(rng)
    activation = rng.choice(ACTIVATIONS)
    x, weight, skip, bias = tensors(*shape)
    options = {
        "skip_weight": skip if rng.random() < 0.8 else None,
        "bias": bias if rng.random() < 0.8 else None,
    }
    to_activate = fourier_layer(x, weight, **options, activation="none", backend="reference")
    truth = activate(to_activate, activation)
    moved = {name: None if t is None else on_gpu(t)[0] for name, t in options.items()}
    given = on_gpu(x, weight)
    poison()
    ours = fourier_layer(*given, **moved, activation=activation, backend="cuda")
    theirs = fourier_layer(*given, **moved, activation=activation, backend="reference")
    # a rectifier may leave next to nothing, and then the rounding of all else
    least = max(float(truth.norm()), 0.1 * float(to_activate.norm()))
    of_ours, of_theirs = (float((y.cpu().double() - truth).norm()) / least for y in (ours, theirs))
    assert of_ours <= max(2 * of_theirs, FLOAT32_ERROR), (shape, activation)
    for precision, coarse in COARSE_ERRORS.items():
        poison()
        ours = fourier_layer(
            *given, **moved, activation=activation, backend="cuda", precision=precision
        )
        # relative to the activation's input, because a rectifier may zero almost all of the output
        error = float((ours.cpu().double() - truth).norm() / to_activate.norm())
        assert error <= coarse, (shape, activation, precision)


@pytest.mark.parametrize("draw", range(SHAPES // 3))
def test_spectral_conv_equals_float64_on_random_grids(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    batch, channels, size, modes = draw_shape(rng)
    out_size = tuple(
        max(n // 2, 2 * k, 3) + rng.randint(0, 9) for n, k in zip(size, modes, strict=True)
    )
    x, weight, _, _ = tensors(batch, channels, size, modes)
    truth = spectral_conv(x, weight, out_size=out_size, backend="reference")
    given = on_gpu(x, weight)
    poison()
    ours = spectral_conv(*given, out_size=out_size, backend="cuda")
    theirs = spectral_conv(*given, out_size=out_size, backend="reference")
    limit = max(2 * relative_l2(theirs.cpu(), truth), FLOAT32_ERROR)
    assert relative_l2(ours.cpu(), truth) <= limit, (batch, channels, size, out_size, modes)
    for precision, coarse in COARSE_ERRORS.items():
        poison()
        ours = spectral_conv(*given, out_size=out_size, backend="cuda", precision=precision)
        assert relative_l2(ours.cpu(), truth) <= coarse, (size, out_size, modes, precision)


LAYER = (4, (32, 32), (64, 64), (24, 12))


def layer_on_gpu() -> list[torch.Tensor]:
    return on_gpu(*tensors(*LAYER))


def run(
    x: torch.Tensor, weight: torch.Tensor, skip: torch.Tensor, bias: torch.Tensor
) -> torch.Tensor:
    return fourier_layer(x, weight, skip_weight=skip, bias=bias, activation="gelu")


def test_gpu_tensors_run_on_the_kernels_by_default() -> None:
    given = layer_on_gpu()
    run(*given)
    choice = last_choice()
    assert choice is not None
    assert choice.backend == "cuda"
    assert choice == explain(*given[:2])


def test_results_are_deterministic() -> None:
    given = layer_on_gpu()
    first = run(*given)
    assert all(torch.equal(run(*given), first) for _ in range(5))


def test_non_contiguous_conjugated_and_misaligned_inputs() -> None:
    x, weight, skip, bias = layer_on_gpu()
    expected = run(x, weight, skip, bias)
    strided = x.mT.contiguous().mT
    conjugated = weight.conj().resolve_conj().conj()
    spare = torch.empty(x.numel() + 1, device="cuda")
    misaligned = spare[1:].view_as(x).copy_(x)
    for given in ((strided, weight), (x, conjugated), (misaligned, weight)):
        torch.testing.assert_close(run(*given, skip, bias), expected, rtol=0, atol=0)


def test_on_a_side_stream() -> None:
    given = layer_on_gpu()
    expected = run(*given)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(10_000_000)
        late = [t * 1 for t in given]
        result = run(*late)
    torch.cuda.current_stream().wait_stream(stream)
    torch.testing.assert_close(result, expected, rtol=0, atol=0)


def test_each_call_reads_the_current_weights() -> None:
    x, weight, skip, bias = layer_on_gpu()
    for _ in range(3):
        # changes through `data` do not change `_version`
        for changed in (weight, skip, bias):
            changed.data.mul_(1.5)
        fresh = [t.clone() for t in (weight, skip, bias)]
        torch.testing.assert_close(run(x, weight, skip, bias), run(x, *fresh), rtol=0, atol=0)


def test_in_a_cuda_graph_with_new_inputs() -> None:
    x, weight, skip, bias = layer_on_gpu()
    run(x, weight, skip, bias)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = run(x, weight, skip, bias)
    for _ in range(3):
        x.normal_()
        skip.mul_(1.1)
        graph.replay()
        torch.testing.assert_close(y, run(x, weight, skip, bias), rtol=0, atol=0)


def test_from_several_threads_at_once() -> None:
    given = [layer_on_gpu() for _ in range(4)]
    expected = [run(*layer) for layer in given]
    torch.cuda.synchronize()
    wrong: list[int] = []

    def work(i: int) -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(20):
                if not torch.equal(run(*given[i]), expected[i]):
                    wrong.append(i)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


@pytest.mark.parametrize(
    "shape", [(4, (32, 32), (64,), (12,)), LAYER, (4, (16, 24), (9, 16, 13), (4, 5, 6))]
)
def test_nan_stays_in_its_batch_element(shape: tuple[Any, ...]) -> None:
    x, weight, skip, bias = on_gpu(*tensors(*shape))
    expected = run(x, weight, skip, bias)
    x[1].flatten()[100] = math.nan
    result = run(x, weight, skip, bias)
    assert result[1].isnan().all()
    others = [0, 2, 3]
    torch.testing.assert_close(result[others], expected[others], rtol=0, atol=0)


def test_compiled_and_checked_by_pytorch() -> None:
    given = layer_on_gpu()
    torch.testing.assert_close(torch.compile(run, fullgraph=True)(*given), run(*given))
    torch.library.opcheck(torch.ops.turbofno.fourier_layer.default, (*given, "gelu", "cuda"))


def test_gradients_come_from_another_backend() -> None:
    x, weight, skip, bias = layer_on_gpu()
    grads = {}
    for backend in ("cuda", "reference"):
        leaf = x.clone().requires_grad_()
        fourier_layer(
            leaf, weight, skip_weight=skip, bias=bias, backend=backend
        ).square().sum().backward()
        grads[backend] = leaf.grad
    assert relative_l2(grads["cuda"], grads["reference"]) < 1e-5


@pytest.mark.parametrize(
    ("x", "modes", "why"),
    [
        (torch.zeros(1, 2, 8, 400), (2, 200), "128 modes"),
        (torch.zeros(1, 2, 16, dtype=torch.float64), (3,), "compute in float32"),
        (torch.zeros(1, 300, 16), (3,), "channel count"),
    ],
)
def test_unsupported_layers_fall_back_with_a_reason(
    x: torch.Tensor, modes: tuple[int, ...], why: str
) -> None:
    weight = torch.zeros(x.shape[1], 2, *modes, dtype=x.dtype.to_complex(), device="cuda")
    spectral_conv(x.cuda(), weight)
    choice = last_choice()
    assert choice is not None
    assert choice.backend in {"gemm", "reference"}
    assert why in choice.reason
    with pytest.raises(ValueError, match=why):
        spectral_conv(x.cuda(), weight, backend="cuda")


def test_sizes_where_cufft_is_wrong() -> None:
    for batch, channels, size, modes in (
        (2, (8, 8), (8192,), (16,)),
        (1, (8, 8), (16384,), (16,)),
        (1, (8, 8), (1024, 256), (24, 12)),
        (1, (4, 4), (8, 1024, 64), (4, 12, 12)),
    ):
        x, weight, _, _ = tensors(batch, channels, size, modes)
        truth = spectral_conv(x, weight, backend="reference")
        assert relative_l2(spectral_conv(*on_gpu(x, weight), backend="cuda").cpu(), truth) < 1e-6


@pytest.mark.parametrize(
    "name", sorted(p.name for p in TRAINED.iterdir()) if TRAINED.is_dir() else []
)
def test_zoo_models_agree_with_float64(name: str) -> None:
    model = load_model(TRAINED / name).module
    arch = model.arch
    size = (32 if arch.n_dim == 3 else 128,) * arch.n_dim
    x = torch.randn(3, arch.in_channels, *size)
    with torch.inference_mode():
        truth = model.double()(x.double())
        model.float().cuda()
        ours = model(x.cuda()).cpu()
    choice = last_choice()
    assert choice is not None
    assert choice.backend == "cuda"
    assert relative_l2(ours, truth) < 1e-5
