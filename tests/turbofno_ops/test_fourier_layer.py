"""fourier_layer against its definition: the spectral truth plus skip, bias and activation in float64."""

from __future__ import annotations

import pytest
import torch

from tests.turbofno_ops.fourier_truth import relative_l2, spectral_conv_truth
from turbofno_ops import ACTIVATIONS, fourier_layer, spectral_conv

TRUE_ACTIVATIONS = {
    "none": lambda x: x,
    "relu": lambda x: x.clamp(min=0),
    "gelu": lambda x: 0.5 * x * (1 + torch.erf(x / 2**0.5)),
    "gelu_tanh": lambda x: (
        0.5 * x * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * x**3)))
    ),
    "silu": lambda x: x / (1 + torch.exp(-x)),
    "tanh": torch.tanh,
    "leaky_relu": lambda x: torch.where(x > 0, x, 0.01 * x),
    "leaky_relu(0.25)": lambda x: torch.where(x > 0, x, 0.25 * x),
    "leaky_relu(1e-05)": lambda x: torch.where(x > 0, x, 1e-5 * x),
    "elu": lambda x: torch.where(x > 0, x, torch.expm1(x)),
    "elu(-0.5)": lambda x: torch.where(x > 0, x, -0.5 * torch.expm1(x)),
    "selu": lambda x: (
        1.0507009873554805 * torch.where(x > 0, x, 1.6732632423543772 * torch.expm1(x))
    ),
    "mish": lambda x: x * torch.tanh(torch.log1p(torch.exp(x))),
    "sin": torch.sin,
    "softplus": lambda x: torch.log1p(torch.exp(-x.abs())) + x.clamp(min=0),
    "hardtanh": lambda x: x.clamp(-1, 1),
    "hardswish": lambda x: x * (x + 3).clamp(0, 6) / 6,
    "hardsigmoid": lambda x: (x + 3).clamp(0, 6) / 6,
}


def test_every_activation_has_a_truth() -> None:
    assert set(TRUE_ACTIVATIONS) >= set(ACTIVATIONS)


@pytest.mark.parametrize("backend", ["reference", "gemm"])
@pytest.mark.parametrize("activation", TRUE_ACTIVATIONS)
@pytest.mark.parametrize("with_skip", [True, False])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.parametrize(
    ("size", "modes"), [((37,), (9,)), ((21, 18), (7, 10)), ((6, 9, 8), (5, 4, 5))]
)
def test_fourier_layer_equals_definition(
    backend: str,
    activation: str,
    with_skip: bool,
    with_bias: bool,
    size: tuple[int, ...],
    modes: tuple[int, ...],
) -> None:
    x = torch.randn(3, 5, *size)
    weight = torch.randn(5, 4, *modes, dtype=torch.complex64)
    skip = torch.randn(4, 5) if with_skip else None
    bias = 0.1 * torch.randn(4) if with_bias else None
    before = spectral_conv_truth(x, weight)
    if skip is not None:
        before = before + torch.einsum("oi,bi...->bo...", skip.double(), x.double())
    if bias is not None:
        before = before + bias.double().view(-1, *[1] * len(size))
    result = fourier_layer(
        x, weight, skip_weight=skip, bias=bias, activation=activation, backend=backend
    )
    assert relative_l2(result, TRUE_ACTIVATIONS[activation](before)) <= 1e-5


X = torch.zeros(1, 2, 8)
W = torch.zeros(2, 3, 4, dtype=torch.complex64)


@pytest.mark.parametrize(
    ("options", "error", "says"),
    [
        ({"skip_weight": torch.zeros(2, 3)}, ValueError, r"skip_weight must have shape \(3, 2\)"),
        (
            {"skip_weight": torch.zeros(3, 2).double()},
            TypeError,
            "skip_weight must be torch.float32",
        ),
        ({"bias": 0.0}, TypeError, "bias must be a tensor, got float"),
        ({"bias": torch.zeros(2)}, ValueError, r"bias must have shape \(3,\)"),
        ({"activation": "softsign"}, ValueError, "activation must be one of"),
        ({"activation": torch.tanh}, ValueError, "activation must be one of"),
        ({"backend": "fast"}, ValueError, "backend must be"),
    ],
)
def test_fourier_layer_refuses(
    options: dict[str, object], error: type[Exception], says: str
) -> None:
    with pytest.raises(error, match=says):
        fourier_layer(X, W, **options)


@pytest.mark.parametrize("backend", ["gemm", "reference"])
@pytest.mark.parametrize("grid", [(1,), (1, 1), (1, 1, 1), (4, 3)])
def test_arguments_are_not_written_to(grid: tuple[int, ...], backend: str) -> None:
    x, bias, skip = torch.randn(1, 3, *grid), torch.randn(2), torch.randn(2, 3)
    weight = torch.randn(3, 2, *[1] * len(grid), dtype=torch.complex64)
    for given in (None, skip):
        arguments = [x, weight, bias, skip]
        before = [tensor.clone() for tensor in arguments]
        y = fourier_layer(
            x, weight, skip_weight=given, bias=bias, activation="relu", backend=backend
        )
        y.fill_(7.0)
        for tensor, was in zip(arguments, before, strict=True):
            assert torch.equal(tensor, was)


@pytest.mark.parametrize("backend", ["gemm", "reference"])
@pytest.mark.parametrize("activation", ["none", "relu"])
@pytest.mark.parametrize("skip", [None, torch.ones(4, 3)])
def test_results_may_be_written_to_in_training(
    skip: torch.Tensor | None, activation: str, backend: str
) -> None:
    x = torch.randn(2, 3, 6, 5, requires_grad=True)
    weight = torch.randn(3, 4, 4, 2, dtype=torch.complex64)

    def layer() -> torch.Tensor:
        return fourier_layer(x, weight, skip_weight=skip, activation=activation, backend=backend)

    (expected,) = torch.autograd.grad((3 * layer()).sum(), x)
    (found,) = torch.autograd.grad(layer().mul_(3).sum(), x)
    torch.testing.assert_close(found, expected)
    if skip is None and activation == "none":
        convolved = spectral_conv(x, weight, backend=backend).mul_(3)
        torch.testing.assert_close(torch.autograd.grad(convolved.sum(), x)[0], expected)
