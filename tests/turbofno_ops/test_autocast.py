"""Ops and compiled networks compute in the dtype of their arguments inside of torch.autocast, as torch.fft does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from turbofno.models.core.architecture import ChannelMLP, FNOArchitecture
from turbofno.models.core.fno import FNO
from turbofno_ops import compile_fno, fft, fourier_layer, spectral_conv

X = torch.randn(2, 3, 12, 16)
WEIGHT = torch.randn(3, 2, 4, 3, dtype=torch.complex64)
SKIP, BIAS = torch.randn(2, 3), torch.randn(2)


def layer(backend: str, x: torch.Tensor = X) -> torch.Tensor:
    return fourier_layer(x, WEIGHT, skip_weight=SKIP, bias=BIAS, activation="gelu", backend=backend)


def gradient() -> torch.Tensor:
    x = X.clone().requires_grad_()
    (found,) = torch.autograd.grad(layer("gemm", x).square().sum(), x)
    return found


def network() -> FNO:
    torch.manual_seed(0)
    arch = FNOArchitecture(
        in_channels=3,
        out_channels=1,
        hidden_channels=4,
        n_layers=2,
        modes=(4, 3),
        norm="group_norm",
        channel_mlp=ChannelMLP(hidden_channels=4, skip="linear"),
    )
    return FNO(arch)


@pytest.mark.parametrize(
    "call",
    [
        lambda: spectral_conv(X, WEIGHT, backend="gemm"),
        lambda: spectral_conv(X, WEIGHT, backend="reference"),
        lambda: layer("gemm"),
        lambda: layer("reference"),
        lambda: fft.rfft2(X, modes=(4, 3)),
        gradient,
        lambda: network()(X),
        lambda: compile_fno(network().description(), device="cpu")(X),
    ],
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_changes_nothing(call: Callable[[], torch.Tensor], dtype: torch.dtype) -> None:
    expected = call()
    with torch.autocast("cpu", dtype=dtype):
        found = call()
        assert torch.is_autocast_enabled("cpu")
    assert found.dtype == expected.dtype
    assert torch.equal(found, expected)
