"""The product of modes of slabs, on a GPU and compiled for a CPU: drawn shapes against float64, in memory full of NaN."""

from __future__ import annotations

import ctypes
import math
import random

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno_ops._native import MAX_SLABS, Product, launch

KERNEL = "kernels/multiply_modes.cu", "plan/product_plan.cpp"
ERRORS = {0: 3e-6, 1: 5e-2, 2: 5e-2}
"""Precision of the kernels -> largest error of a value, relative to a sum whose terms do not cancel."""


def run(of: Product, device: str) -> None:
    if device == "cuda":
        launch("multiply_modes", of)
        torch.cuda.synchronize()
        return
    library = compile_kernels(*KERNEL)
    assert library.turbofno_multiply_modes(ctypes.byref(of), None) == 0


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=needs_kernels)])
@pytest.mark.parametrize("draw", range(tried(24, thoroughly=240)))
def test_drawn_products_of_slabs_equal_float64(draw: int, device: str) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    slabs = rng.choice([1, 2, 3, 4, 5, MAX_SLABS])
    modes = rng.choice([1, 2, 3, 4, 5, 8, 9, 24])
    row = modes + (modes % 2 and modes >= 3 and rng.random() < 0.6)
    c_in, c_out = rng.choice([1, 2, 7, 9, 20, 33]), rng.choice([1, 2, 15, 17, 20, 64])
    batch, others = rng.choice([1, 1, 2, 9, 33]), rng.choice([1, 2, 5])
    precision = rng.randint(0, 2)
    z = torch.randn(slabs, others, batch, c_in, row, dtype=torch.complex64)
    weight = torch.randn(others, modes, c_in, c_out, dtype=torch.complex64)
    factors = torch.polar(torch.ones(2, slabs, others), 6 * torch.rand(2, slabs, others))

    pitches = [batch * c * row + rng.choice([0, 16]) for c in (c_in, c_out)]
    nan = complex(math.nan, math.nan)
    given, out = (
        torch.full((slabs, others, pitch), nan, dtype=torch.complex64) for pitch in pitches
    )
    given[..., : batch * c_in * row] = z.flatten(2)
    given, out, on_device, of_weight = (t.to(device) for t in (given, out, factors, weight))
    of = Product(
        batch=batch, in_pitch=pitches[0], out_pitch=pitches[1], c_in=c_in, c_out=c_out, others=others,
        modes=modes, row_modes=row, precision=precision, multiprocessors=rng.choice([1, 5, 132]), slabs=slabs,
    )  # fmt: skip
    of.weight = of_weight.data_ptr()
    of.part_factors, of.product_factors = (f.data_ptr() for f in on_device)
    for slab in range(slabs):
        of.parts[slab], of.products[slab] = given[slab].data_ptr(), out[slab].data_ptr()
    run(of, device)

    wide = [t.to(torch.complex128) for t in (factors, z, weight)]
    total = (wide[0][0, :, :, None, None, None] * wide[1])[..., :modes]
    expected = torch.einsum("kbcm,kmco->kbom", total.sum(0), wide[2])
    least = torch.einsum("kbcm,kmco->kbom", total.abs().square().sum(0), wide[2].abs().square())
    found = out.cpu()
    assert found[..., batch * c_out * row :].isnan().all(), "between the modes"
    result = found[..., : batch * c_out * row].view(slabs, others, batch, c_out, row)
    assert not result[..., modes:].any(), "the modes that a row has too many"
    scaled = expected * wide[0][1, :, :, None, None, None]
    error = float(((result[..., :modes] - scaled).abs() / least.sqrt()).max())
    assert error < ERRORS[precision], (z.shape, weight.shape, precision)


def test_slabs_that_the_kernel_does_not_take_are_refused() -> None:
    of = Product(
        batch=1, in_pitch=8, out_pitch=8, c_in=2, c_out=2, others=1, modes=4, row_modes=4, multiprocessors=1
    )  # fmt: skip
    asked = compile_kernels(*KERNEL).turbofno_product_unsupported
    asked.restype = ctypes.c_char_p
    of.slabs = MAX_SLABS + 1
    assert asked(ctypes.byref(of)) == b"more than 8 slabs"
    of.slabs, of.channels_last = 2, 1
    assert asked(ctypes.byref(of)) == b"channels of slabs are last"
