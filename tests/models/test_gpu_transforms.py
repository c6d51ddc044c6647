"""What takes `turbofno_ops.fft` for float32 on a GPU computes there what it computes on a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.core.resample import resample
from turbofno.models.trust import residuals
from turbofno.models.trust.features import features
from turbofno.models.verify.solvers import band_limited
from turbofno.models.zoo.pde import navier_stokes
from turbofno_ops import fft, spectral_conv
from turbofno_ops.fft import _preferred

Function = Callable[[torch.Tensor], torch.Tensor]


def layer(x: torch.Tensor) -> torch.Tensor:
    values = torch.linspace(-1, 1, 2 * 3 * 7 * 5).view(2, 3, 7, 5)
    weight = torch.complex(values, values.flip(0)).to(x.device)
    return spectral_conv(x, weight, backend="reference", out_size=(16, 13))


# a function, and the shape of its argument
USES: dict[str, tuple[Function, tuple[int, ...]]] = {
    "burgers": (lambda x: residuals.burgers(x[0], x[1], nu=0.1, time=1.0), (2, 3, 256)),
    "navier-stokes": (
        lambda x: residuals.navier_stokes(x[0], x[1], nu=1e-3, time=1.0),
        (2, 3, 33, 64),
    ),
    "darcy": (lambda x: residuals.darcy(x[0] ** 2, x[1], source=1.0), (2, 3, 12, 21)),
    "features": (lambda x: features(x, torch.ones(2, device=x.device)), (3, 2, 24, 35)),
    "resampling": (lambda x: resample(x, (9, 8, 12)), (2, 3, 8, 9, 11)),
    "band": (lambda x: band_limited(x, (16, 21)), (2, 18, 15)),
    "solver": (lambda x: navier_stokes.solve(x, times=[0.1]), (2, 32, 32)),
    "layer": (layer, (2, 2, 12, 11)),
}


@pytest.mark.parametrize("name", USES)
def test_both_packages_compute_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shape = USES[name]
    x = torch.randn(shape)
    expected, called = function(x), 0

    def is_preferred(given: torch.Tensor, *, in_graph: bool = False) -> bool:
        nonlocal called
        called += given.dtype in _preferred._SERVED
        return given.dtype in _preferred._SERVED

    for module in (_preferred, fft):
        monkeypatch.setattr(module, "is_preferred", is_preferred)
    found = function(x)
    assert called > 0
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("name", USES)
def test_a_gpu_computes_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, shape = USES[name]
    x = torch.randn(shape)
    expected = function(x)
    # also what Python calls for few values
    monkeypatch.setattr(_preferred, "LEAST_VALUES", 0)
    torch.testing.assert_close(function(x.cuda()).cpu(), expected, rtol=1e-4, atol=1e-5)


def given(dtype: torch.dtype, count: int, *, on_gpu: bool = True) -> Any:
    device = torch.device("cuda", 0)
    return SimpleNamespace(is_cuda=on_gpu, dtype=dtype, numel=lambda: count, device=device)


MANY = _preferred.LEAST_VALUES


def test_other_dtypes_and_small_tensors_stay_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_preferred, "gpu_refusal", lambda _: None)
    assert fft.transforms_for(given(torch.float32, MANY)) is fft
    assert fft.transforms_for(given(torch.complex64, 1), in_graph=True) is fft
    for other in (
        given(torch.float32, MANY - 1),
        given(torch.float64, MANY),
        given(torch.float32, MANY, on_gpu=False),
    ):
        assert fft.transforms_for(other) is torch.fft


def test_a_gpu_without_kernels_stays_with_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_preferred, "gpu_refusal", lambda _: "they are not built")
    for in_graph in (False, True):
        assert fft.transforms_for(given(torch.float32, MANY), in_graph=in_graph) is torch.fft


def test_the_choice_is_compiled_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def is_preferred(x: torch.Tensor, *, in_graph: bool = False) -> bool:
        return _preferred._kernels_run(torch.device("cuda", 0))

    # dynamo cannot trace the search for a library: the answer is a constant
    monkeypatch.setattr(
        _preferred, "gpu_refusal", lambda _: None if os.stat(__file__).st_size else "empty"
    )
    monkeypatch.setattr(_preferred, "is_preferred", is_preferred)
    x = torch.randn(2, 3, 8, 9, 11)
    graphs: list[torch.fx.GraphModule] = []
    compiled = torch.compile(
        lambda x: resample(x, (9, 8, 12)),
        backend=lambda graph, _: (graphs.append(graph), graph)[1],
        fullgraph=True,
    )
    torch.testing.assert_close(compiled(x), resample(x, (9, 8, 12)))
    assert "fourier_transform" in graphs[0].code
