"""Peers of the GPU benchmarks on a CPU: the published network, and the direct pipeline's choice of modes."""

from __future__ import annotations

import math

import pytest
import torch

from benchmarks.gpu.direct import complete, folded_weight, gather, mirror, scatter
from benchmarks.gpu.published import corners_of, fourier_layer, published
from tests.turbofno_ops.fourier_truth import relative_l2, spectral_conv_truth
from turbofno.models.core.checkpoint import load_model
from turbofno.models.zoo import TRAINED
from turbofno_ops import fourier_layer as own_layer

SHAPES = [((64,), (9,)), ((16, 20), (6, 4)), ((15, 21), (7, 11)), ((9, 9), (2, 1))]
THREE_AXES = [((8, 9, 10), (4, 5, 3)), ((6, 6, 7), (2, 6, 4))]


@pytest.mark.parametrize(("size", "modes"), SHAPES + THREE_AXES)
def test_published_layer_equals_our_layer(size: tuple[int, ...], modes: tuple[int, ...]) -> None:
    x = torch.randn(3, 4, *size, dtype=torch.float64)
    weight = torch.randn(4, 5, *modes, dtype=torch.complex128)
    skip, bias = torch.randn(5, 4).double(), torch.randn(5).double()
    theirs = fourier_layer(x, corners_of(weight), skip, bias)
    ours = own_layer(x, weight, skip_weight=skip, bias=bias, activation="gelu")
    assert relative_l2(theirs, ours) < 1e-12


@pytest.mark.parametrize("name", sorted(p.name for p in TRAINED.iterdir()))
def test_published_model_equals_our_model(name: str) -> None:
    model = load_model(TRAINED / name)
    module = model.module.double()
    size = model.config.grid.minimum
    x = torch.randn(2, module.arch.in_channels, *size, dtype=torch.float64)
    with torch.inference_mode():
        assert relative_l2(published(module)(x), module(x)) < 1e-12


@pytest.mark.parametrize(("size", "modes"), SHAPES)
def test_direct_pipeline_selects_the_kept_modes(
    size: tuple[int, ...], modes: tuple[int, ...]
) -> None:
    axes = tuple(range(2, 2 + len(size)))
    x = torch.randn(3, 4, *size, dtype=torch.float64)
    weight = torch.randn(4, 5, *modes, dtype=torch.complex128)
    bias = torch.randn(5, dtype=torch.float64)
    spectrum = torch.fft.rfftn(x, dim=axes)
    kept = torch.full((*modes, 3, 4), complex(math.nan), dtype=torch.complex128)
    gather(spectrum, kept)
    mixed = kept @ folded_weight(weight, size)
    out = torch.full((3, 5, *spectrum.shape[2:]), complex(math.nan), dtype=torch.complex128)
    scatter(mixed, out)
    complete(out, mirror(size, out.device), bias)
    column = torch.fft.ifft(out[..., 0].reshape(3, 5, -1))
    assert column.imag.abs().max() < 1e-12 * column.abs().max()
    field = torch.fft.irfftn(out, s=size, dim=axes, norm="forward")
    truth = spectral_conv_truth(x, weight) + bias.view(-1, *[1] * len(size))
    assert relative_l2(field, truth) < 1e-12
