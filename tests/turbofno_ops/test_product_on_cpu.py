"""The product of modes, compiled for a CPU: both layouts against float64, in poisoned memory."""

from __future__ import annotations

import ctypes
import math
import random

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from turbofno_ops._native import Product

GUARD = 64
ERRORS = {0: 3e-6, 1: 5e-2, 2: 5e-2}
"""Precision of the kernels -> largest error of a value, relative to a sum whose terms do not cancel."""


def product(
    z: torch.Tensor,
    weight: torch.Tensor,
    row: int,
    *,
    channels_last: bool,
    input_last: bool | None = None,
    precision: int = 0,
    multiprocessors: int = 1,
) -> torch.Tensor:
    """The kernels' product of z [others, batch, c_in, modes] and weight [others, modes, c_in, c_out]; rows have `row` modes.

    `input_last` is by default `channels_last`.
    """
    input_last = channels_last if input_last is None else input_last
    library = compile_kernels("kernels/multiply_modes.cu", "plan/product_plan.cpp")
    others, batch, c_in, modes = z.shape
    c_out = weight.shape[-1]

    def as_stored(c: int, spare: int, *, last: bool) -> tuple[torch.Tensor, torch.Tensor]:
        pitch = -(-batch * c * row // 16) * 16
        flat = torch.full(
            (others * pitch + spare,), complex(math.nan, math.nan), dtype=torch.complex64
        )
        rows = flat[: others * pitch].view(others, pitch)[:, : batch * c * row]
        shape = (batch, row, c) if last else (batch, c, row)
        shown = rows.unflatten(1, shape)
        return flat, shown.transpose(-1, -2) if last else shown

    given, shown = as_stored(c_in, 0, last=input_last)
    shown[..., :modes] = z
    shown[..., modes:] = 1.0
    out, result = as_stored(c_out, GUARD, last=channels_last)
    of = Product(
        batch=batch, in_pitch=len(given) // others, out_pitch=(len(out) - GUARD) // others, c_in=c_in, c_out=c_out,
        others=others, modes=modes, row_modes=row, precision=precision, multiprocessors=multiprocessors,
        weights_settled=0, channels_last=channels_last, input_channels_last=input_last,
    )  # fmt: skip
    of.input, of.weight, of.out = given.data_ptr(), weight.data_ptr(), out.data_ptr()
    assert library.turbofno_product_unsupported(ctypes.byref(of)) is None
    assert library.turbofno_multiply_modes(ctypes.byref(of), None) == 0
    assert out[-GUARD:].isnan().all(), "beyond its end"
    assert not result[..., modes:].any(), "the modes that a row has too many"
    return result[..., :modes]


def error(found: torch.Tensor, z: torch.Tensor, weight: torch.Tensor) -> float:
    """The largest of a value, relative to a sum whose terms do not cancel."""
    wide = "kbcm,kmco->kbom", z.to(torch.complex128), weight.to(torch.complex128)
    least = torch.einsum(wide[0], wide[1].abs().square(), wide[2].abs().square()).sqrt()
    return float(((found - torch.einsum(*wide)).abs() / least).max())


@pytest.mark.parametrize("draw", range(tried(40, thoroughly=400)))
def test_drawn_products_equal_float64(draw: int) -> None:
    rng = random.Random(torch.initial_seed() + draw)
    modes = rng.choice([1, 2, 3, 4, 5, 7, 8, 9, 12])
    row = modes + (modes % 2 and modes >= 3 and rng.random() < 0.6)
    last = rng.random() < 0.6
    c_in, c_out = (
        rng.choice([1, 2, 7, 8, 9, 32, 33, 65]),
        rng.choice([1, 2, 15, 16, 17, 33, 64, 65, 130]),
    )
    input_last = last and rng.random() < 0.6
    c_in, c_out = c_in + c_in % 2 * input_last, c_out + c_out % 2 * last
    batch, others = rng.choice([1, 2, 3, 4, 7, 8, 9, 17, 33, 70]), rng.choice([1, 1, 2])
    z = torch.randn(others, batch, c_in, modes, dtype=torch.complex64)
    z *= 10.0 ** torch.randint(-6, 7, (others, batch, 1, 1))
    weight = torch.randn(others, modes, c_in, c_out, dtype=torch.complex64)
    precision = rng.randint(0, 2)
    found = product(
        z, weight, row, channels_last=last, input_last=input_last, precision=precision,
        multiprocessors=rng.choice([1, 5, 132]),
    )  # fmt: skip
    drawn = z.shape, weight.shape, row, last, input_last
    assert error(found, z, weight) < ERRORS[precision], drawn


@pytest.mark.parametrize("modes", [1, 2])
@pytest.mark.parametrize("c_in", [1, 2, 3])
def test_few_channels_become_many_that_are_last(c_in: int, modes: int) -> None:
    z = torch.randn(2, 9, c_in, modes, dtype=torch.complex64)
    weight = torch.randn(2, modes, c_in, 18, dtype=torch.complex64)
    z[:, 1] = math.nan
    found = product(z, weight, modes, channels_last=True, input_last=False)
    assert found[:, 1].isnan().all()
    others = [b for b in range(9) if b != 1]
    assert error(found[:, others], z[:, others], weight) < ERRORS[0]


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize(
    ("of_input", "of_weights"),
    [(1e-36, 1.0), (1e36, 1e-3), (1e-30, 1e34), (1e-20, 1e37), (1e30, 1e-30), (1.0, 1e-35)],
)
@pytest.mark.parametrize("batch", [1, 9])
def test_magnitudes(batch: int, of_input: float, of_weights: float, channels_last: bool) -> None:
    z = of_input * torch.randn(1, batch, 12, 3, dtype=torch.complex64)
    weight = of_weights * torch.randn(1, 3, 12, 18, dtype=torch.complex64)
    assert error(product(z, weight, 4, channels_last=channels_last), z, weight) < ERRORS[0]
