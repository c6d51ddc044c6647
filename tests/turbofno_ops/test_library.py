"""The registered ops: opcheck and gradients."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from tests.thorough import tried
from turbofno_ops import ACTIVATIONS, fourier_layer, spectral_conv

SHAPES = [
    ((17,), (9,)),
    ((16,), (9,)),
    ((12, 9), (12, 5)),
    ((10, 12), (5, 7)),
    ((5, 6, 8), (4, 6, 5)),
]


def layer_arguments(
    size: tuple[int, ...], modes: tuple[int, ...], dtype: torch.dtype = torch.float64
) -> tuple[torch.Tensor, ...]:
    x = torch.randn(2, 3, *size, dtype=dtype, requires_grad=True)
    weight = torch.randn(3, 2, *modes, dtype=dtype.to_complex(), requires_grad=True)
    skip = torch.randn(2, 3, dtype=dtype, requires_grad=True)
    bias = torch.randn(2, dtype=dtype, requires_grad=True)
    return x, weight, skip, bias


@pytest.mark.parametrize("backend", ["auto", "reference", "gemm"])
@pytest.mark.parametrize(("size", "modes"), SHAPES[:: tried(4, thoroughly=1)])
def test_ops_pass_opcheck(backend: str, size: tuple[int, ...], modes: tuple[int, ...]) -> None:
    x, weight, skip, bias = layer_arguments(size, modes, torch.float32)
    ops = torch.ops.turbofno
    torch.library.opcheck(ops.spectral_conv.default, (x, weight, list(size), backend))
    for activation in ("none", "gelu")[tried(1, thoroughly=0) :]:
        torch.library.opcheck(
            ops.fourier_layer.default, (x, weight, skip, bias, activation, backend)
        )
    torch.library.opcheck(ops.fourier_layer.default, (x, weight, None, None, "tanh", backend))


def test_an_op_runs_where_torch_compile_gave_up_on_its_caller() -> None:
    """After an error torch.compile does not compile the function again, but what it calls: not our Python."""
    x, weight, *_ = (t.detach() for t in layer_arguments((12, 9), (6, 3)))

    def layer(field: torch.Tensor) -> torch.Tensor:
        return fourier_layer(field, weight, activation="gelu", backend="gemm")

    compiled = torch.compile(layer, backend="eager")
    with pytest.raises(ValueError, match="holds at most 5"):
        compiled(x[..., :5, :])
    torch.testing.assert_close(compiled(x), layer(x))


def test_a_torch_without_the_private_names_runs_them_too() -> None:
    code = """
import torch._dynamo  # which has them already
import torch._C._dynamo.eval_frame as private
del private.set_code_exec_strategy
from tests.turbofno_ops import test_library, test_plan
test_library.test_an_op_runs_where_torch_compile_gave_up_on_its_caller()
test_plan.test_a_function_that_calls_it_can_be_compiled_by_torch()
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("backend", ["reference", "gemm"])
@pytest.mark.parametrize(("size", "modes"), SHAPES)
def test_input_gradients_do_not_depend_on_weight_gradients(
    backend: str, size: tuple[int, ...], modes: tuple[int, ...]
) -> None:
    trained = layer_arguments(size, modes)
    fixed = (trained[0], *(one.detach() for one in trained[1:]))
    out = tuple(2 * n + 1 for n in size)
    for activation in ("none", "gelu"):
        calls = (
            lambda x, w, s, b, a=activation: fourier_layer(
                x, w, skip_weight=s, bias=b, activation=a, backend=backend
            ),
            lambda x, w, s, b: spectral_conv(x, w, out_size=out, backend=backend),  # noqa: ARG005
        )
        for call in calls:
            y = call(*trained)
            towards = torch.randn_like(y)
            (wanted,) = torch.autograd.grad(y, trained[0], towards, retain_graph=True)
            y.backward(towards)
            (found,) = torch.autograd.grad(call(*fixed), fixed[0], towards)
            torch.testing.assert_close(found, wanted)
            assert trained[1].grad is not None
            assert trained[1].grad.abs().sum() > 0
    grad = torch.randn(2, 2, *out)
    arguments = (grad, fixed[1].to(torch.complex64), list(size), backend)
    torch.library.opcheck(torch.ops.turbofno.spectral_conv_backward_input.default, arguments)


@pytest.mark.parametrize("backend", ["reference", "gemm"])
@pytest.mark.parametrize(("size", "modes"), SHAPES[:: tried(2, thoroughly=1)])
@pytest.mark.parametrize("activation", [*ACTIVATIONS, "leaky_relu(0.2)", "elu(0.5)"])
def test_fourier_layer_gradients_match_finite_differences(
    backend: str, size: tuple[int, ...], modes: tuple[int, ...], activation: str
) -> None:
    arguments = layer_arguments(size, modes)

    def directional(x, weight, skip, bias):  # type: ignore[no-untyped-def]
        return fourier_layer(
            x, weight, skip_weight=skip, bias=bias, activation=activation, backend=backend
        )

    torch.autograd.gradcheck(directional, arguments, fast_mode=True)


@pytest.mark.parametrize("backend", ["reference", "gemm"])
def test_gradients_have_gradients(backend: str) -> None:
    arguments = layer_arguments((5, 4), (3, 3))
    fixed = arguments[1].detach()

    def convolution(x: torch.Tensor, weight: torch.Tensor = fixed) -> torch.Tensor:
        return spectral_conv(x, weight, out_size=(7, 6), backend=backend)

    torch.autograd.gradgradcheck(convolution, arguments[:2], fast_mode=True)
    torch.autograd.gradgradcheck(convolution, arguments[:1], fast_mode=True)
    # hardsigmoid has no second derivative in torch
    for activation in ("none", "gelu", "silu", "mish"):
        torch.autograd.gradgradcheck(
            lambda x, weight, skip, bias, activation=activation: fourier_layer(
                x, weight, skip_weight=skip, bias=bias, activation=activation, backend=backend
            ),
            arguments,
            fast_mode=True,
        )
    towards = torch.randn(2, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    torch.library.opcheck(
        torch.ops.turbofno.spectral_conv_backward.default, (towards, *arguments[:2], backend)
    )


def test_gradients_of_an_empty_batch_are_zero() -> None:
    x, weight, skip, bias = layer_arguments((6, 5), (3, 2))
    y = fourier_layer(x[:0], weight, skip_weight=skip, bias=bias, activation="gelu")
    for found in torch.autograd.grad(y.sum(), (x, weight, skip, bias)):
        assert found.count_nonzero() == 0


def test_vectorised_jacobians_are_jacobians() -> None:
    x, weight, skip, bias = (t.detach() for t in layer_arguments((6, 5), (3, 2)))
    arguments = (x, weight, bias)

    def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return fourier_layer(x, weight, skip_weight=skip, bias=bias, activation="silu")

    jacobian = torch.autograd.functional.jacobian
    torch.testing.assert_close(
        jacobian(layer, arguments, vectorize=True), jacobian(layer, arguments)
    )


@pytest.mark.parametrize(
    ("size", "out", "modes"),
    [((16,), (31,), (9,)), ((12, 10), (15, 20), (7, 6)), ((6, 7, 8), (12, 9, 8), (4, 7, 5))],
)
def test_spectral_conv_gradients_across_grids(
    size: tuple[int, ...], out: tuple[int, ...], modes: tuple[int, ...]
) -> None:
    x, weight, _, _ = layer_arguments(size, modes)
    for backend in ("reference", "gemm"):
        torch.autograd.gradcheck(
            lambda a, w, backend=backend: spectral_conv(a, w, out_size=out, backend=backend),
            (x, weight),
            fast_mode=True,
        )


@pytest.mark.parametrize(("size", "modes"), SHAPES)
def test_gemm_gradients_equal_autograd_through_torch_fft(
    size: tuple[int, ...], modes: tuple[int, ...]
) -> None:
    x, weight, _, _ = layer_arguments(size, modes)
    axes = tuple(range(2, x.ndim))
    kept = [[*range((k + 1) // 2), *range(-(k // 2), 0)] for k in modes[:-1]]
    rows = (
        torch.meshgrid(
            *[torch.tensor(f) % n for f, n in zip(kept, size, strict=False)], indexing="ij"
        )
        if kept
        else ()
    )
    corner = (slice(None), slice(None), *rows, slice(modes[-1]))
    spectrum = torch.fft.rfftn(x, dim=axes)
    mixed = torch.zeros(2, 2, *spectrum.shape[2:], dtype=torch.complex128)
    mixed[corner] = torch.einsum("bi...,io...->bo...", spectrum[corner], weight)
    truth = torch.fft.irfftn(mixed, s=size, dim=axes)
    result = spectral_conv(x, weight, backend="gemm")
    towards = torch.randn_like(truth)
    expected = torch.autograd.grad(truth, (x, weight), towards)
    for found, wanted in zip(
        torch.autograd.grad(result, (x, weight), towards), expected, strict=True
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-9, atol=1e-9)
