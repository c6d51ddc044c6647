"""spectral_conv against its definition in float64, on random and on common shapes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import forward_ad

from tests.thorough import tried
from tests.turbofno_ops.fourier_truth import relative_l2, spectral_conv_truth
from turbofno_ops import explain, fourier_layer, spectral_conv

BACKENDS = ("reference", "gemm")


@st.composite
def problems(draw: st.DrawFn) -> tuple[torch.Tensor, torch.Tensor, tuple[int, ...] | None]:
    """Draw a field and weight, modes up to Nyquist, and an output grid in half of the cases."""
    n_dim = draw(st.integers(1, 3))
    largest = {1: 200, 2: 40, 3: 14}[n_dim]
    size = tuple(draw(st.integers(1, largest)) for _ in range(n_dim))
    out = (
        tuple(draw(st.integers(1, largest)) for _ in range(n_dim)) if draw(st.booleans()) else None
    )
    smaller = [min(a, b) for a, b in zip(size, out or size, strict=True)]
    limits = [*smaller[:-1], smaller[-1] // 2 + 1]
    modes = [draw(st.one_of(st.just(limit), st.integers(1, limit))) for limit in limits]
    batch, c_in, c_out = (draw(st.integers(1, 4)) for _ in range(3))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    x = torch.randn(batch, c_in, *size, dtype=torch.float64, generator=generator)
    weight = torch.randn(c_in, c_out, *modes, dtype=torch.complex128, generator=generator)
    return x, weight, out


@pytest.mark.parametrize("backend", BACKENDS)
@settings(max_examples=tried(40, 400), deadline=None)
@given(problem=problems())
def test_spectral_conv_equals_definition(
    backend: str, problem: tuple[torch.Tensor, torch.Tensor, tuple[int, ...] | None]
) -> None:
    x, weight, out = problem
    truth = spectral_conv_truth(x, weight, out)
    double = spectral_conv(x, weight, out_size=out, backend=backend)
    torch.testing.assert_close(double, truth, rtol=1e-9, atol=1e-9)
    x32, weight32 = x.float(), weight.to(torch.complex64)
    truth32 = spectral_conv_truth(x32, weight32, out)
    single = spectral_conv(x32, weight32, out_size=out, backend=backend)
    assert single.dtype == torch.float32
    # terms may cancel, but rounding is relative to their magnitude
    points = truth32.numel() / truth32.shape[1]
    magnitude = x.square().mean().sqrt() * weight.abs().norm() * points**0.5
    scale = max(float(truth32.norm()), 0.02 * float(magnitude))
    assert float((single.double() - truth32).norm()) <= 1e-5 * scale


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("size", "modes"),
    [
        ((85, 85), (24, 12)),
        ((141, 141), (24, 12)),
        ((421, 421), (24, 12)),
        ((64, 64), (64, 33)),
        ((97, 101), (97, 51)),
        ((256, 30), (31, 16)),
        ((8192,), (16,)),
        ((16384,), (64,)),
        ((1024, 256), (12, 12)),
        ((64, 64, 40), (16, 16, 8)),
        ((11, 13, 7), (11, 13, 4)),
    ],
    ids=lambda value: "x".join(map(str, value)),
)
def test_spectral_conv_float32_error_on_common_shapes(
    backend: str, size: tuple[int, ...], modes: tuple[int, ...]
) -> None:
    x = torch.randn(2, 3, *size)
    weight = torch.randn(3, 4, *modes, dtype=torch.complex64)
    result = spectral_conv(x, weight, backend=backend)
    assert relative_l2(result, spectral_conv_truth(x, weight)) <= 1e-5


@pytest.mark.parametrize("backend", BACKENDS)
def test_spectral_conv_ignores_imaginary_part_of_dc_and_nyquist_columns(backend: str) -> None:
    size, columns = (12, 10), 6
    x = torch.randn(1, 1, *size, dtype=torch.float64)
    weight = torch.randn(1, 1, 12, columns, dtype=torch.complex128)
    own_mirror = weight.clone()
    own_mirror[..., 1:-1] = 0
    truth = spectral_conv_truth(x, own_mirror)
    result = spectral_conv(x, own_mirror, backend=backend)
    torch.testing.assert_close(result, truth, rtol=0, atol=1e-13)
    assert truth.abs().max() > 1e-3


@pytest.mark.parametrize("backend", BACKENDS)
def test_spectral_conv_of_band_limited_field_is_the_same_function_on_any_grid(backend: str) -> None:
    def field(n: int) -> torch.Tensor:
        t = torch.arange(n, dtype=torch.float64) * (2 * torch.pi / n)
        return (1 + torch.cos(3 * t) - 2 * torch.sin(5 * t))[None, None]

    weight = torch.randn(1, 1, 6, dtype=torch.complex128)
    coarse = spectral_conv(field(24), weight, backend=backend)
    fine = spectral_conv(field(96), weight, backend=backend)
    lifted = spectral_conv(field(24), weight, out_size=(96,), backend=backend)
    torch.testing.assert_close(fine[..., ::4], coarse, rtol=0, atol=1e-12)
    torch.testing.assert_close(lifted, fine, rtol=0, atol=1e-12)


@pytest.mark.parametrize("backend", BACKENDS)
def test_spectral_conv_takes_strided_inputs(backend: str) -> None:
    x = torch.randn(4, 33, 20, 6)[::2].permute(0, 3, 2, 1)
    weight = torch.randn(9, 7, 5, 6, dtype=torch.complex64).permute(3, 2, 0, 1)
    result = spectral_conv(x, weight, backend=backend)
    expected = spectral_conv(x.contiguous(), weight.contiguous(), backend=backend)
    torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_spectral_conv_of_empty_batch_is_empty(backend: str) -> None:
    weight = torch.randn(3, 2, 4, 3, dtype=torch.complex64)
    result = spectral_conv(torch.empty(0, 3, 8, 8), weight, backend=backend)
    assert result.shape == (0, 2, 8, 8)


X = torch.zeros(1, 2, 8, 8)
W = torch.zeros(2, 3, 4, 3, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("x", "weight", "options", "error", "says"),
    [
        (
            X.half(),
            W,
            {},
            TypeError,
            r"x must be float32 or float64, .*; convert with x\.float\(\)",
        ),
        (X + 0j, W, {}, TypeError, r"got torch\.complex64; pass x\.real and x\.imag as channels"),
        (X.numpy(), W, {}, TypeError, r"x must be a tensor, got ndarray; pass torch\.as_tensor"),
        (X, W.tolist(), {}, TypeError, "weight must be a tensor, got list"),
        (X, W.to(torch.complex128), {}, TypeError, "weight must be torch.complex64"),
        (X, W.real, {}, TypeError, r"convert with weight\.to\(torch\.complex64\)"),
        (X.double(), W, {}, TypeError, "weight must be torch.complex128"),
        (X[0, 0], W, {}, ValueError, r"\[batch, channels, \*grid\]"),
        (X, W[..., 0], {}, ValueError, "2 mode axes"),
        (X[:, :1], W, {}, ValueError, "x has 1 channels but weight expects 2"),
        (X, W[:, :0], {}, ValueError, "empty axis"),
        (X[..., :3], W, {}, ValueError, "axis 1, but the input grid"),
        (X[:, :, :3], W, {}, ValueError, "axis 0, but the input grid"),
        (X, W, {"out_size": (3, 8)}, ValueError, "the output grid"),
        (X, W, {"out_size": (8,)}, ValueError, "out_size must have 2 entries"),
        (X, W, {"out_size": 8}, ValueError, "one per grid axis, got 8"),
        (X, W, {"out_size": 5.5}, ValueError, "integers, one per grid axis, got 5.5"),
        (X, W, {"out_size": (8.0, 8)}, ValueError, "integers, one per grid axis"),
        (X, W, {"out_size": torch.tensor([8.0, 8.0])}, ValueError, "integers, one per grid axis"),
        (X, W, {"backend": "cudnn"}, ValueError, "backend must be"),
        (X, W, {"precision": "fp8"}, ValueError, "precision must be"),
    ],
)
def test_spectral_conv_refuses(
    x: torch.Tensor,
    weight: torch.Tensor,
    options: dict[str, object],
    error: type[Exception],
    says: str,
) -> None:
    with pytest.raises(error, match=says):
        spectral_conv(x, weight, **options)
    with pytest.raises(error, match=says):
        explain(x, weight, **options)


@pytest.mark.parametrize("op", [spectral_conv, fourier_layer])
@pytest.mark.parametrize("argument", [0, 1])
def test_tangents_are_refused(op: Callable[..., torch.Tensor], argument: int) -> None:
    """A registered op would return a tangent of zero."""
    given = [torch.randn(2, 3, 8), torch.randn(3, 3, 4, dtype=torch.complex64)]

    def run(of: torch.Tensor) -> torch.Tensor:
        return op(*given[:argument], of, *given[argument + 1 :])

    with pytest.raises(NotImplementedError, match="backward mode"):
        torch.func.jvp(run, (given[argument],), (given[argument],))


@pytest.mark.parametrize("op", [spectral_conv, fourier_layer])
def test_tangents_of_gradients_are_refused(op: Callable[..., torch.Tensor]) -> None:
    """The derivative of a gradient along a target, or a later layer's weight: it, too, would be zero without a word."""
    x = torch.randn(2, 3, 8, requires_grad=True)
    y = op(x, torch.randn(3, 3, 4, dtype=torch.complex64))
    with forward_ad.dual_level():
        along = forward_ad.make_dual(torch.randn_like(y), torch.randn_like(y))
        with pytest.raises(NotImplementedError, match=f"the gradient of {op.__name__} has no"):
            torch.autograd.grad(y, x, along)


def test_grids_without_points_are_refused() -> None:
    weight = torch.randn(2, 2, 1, dtype=torch.complex64)
    with pytest.raises(ValueError, match=r"the input grid \(0,\) holds at most 0"):
        spectral_conv(torch.randn(1, 2, 0), weight)
    with pytest.raises(ValueError, match=r"the output grid \(0,\) holds at most 0"):
        spectral_conv(torch.randn(1, 2, 4), weight, out_size=(0,))


def test_differentiation_by_torch_func_is_refused_with_advice() -> None:
    x, weight = torch.randn(3, 2, 8), torch.randn(2, 2, 3, dtype=torch.complex64)
    with pytest.raises(NotImplementedError, match=r"torch.func .* use torch.autograd.grad"):
        torch.func.grad(lambda field: spectral_conv(field, weight).sum())(x)
    with pytest.raises(NotImplementedError, match=r"torch.func .* use torch.autograd.grad"):
        torch.vmap(torch.func.grad(lambda field: spectral_conv(field[None], weight).sum()))(x)
    # not by tensors of the op
    factor = torch.func.grad(lambda f: (f * spectral_conv(x, weight)).sum())(torch.ones(()))
    torch.testing.assert_close(factor, spectral_conv(x, weight).sum())
