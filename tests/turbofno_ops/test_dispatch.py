"""Choice of the backend, and its record."""

from __future__ import annotations

import threading

import pytest
import torch

from turbofno_ops import explain, last_choice, spectral_conv
from turbofno_ops.dispatch import choose, fft_flops, gemm_flops

X = torch.randn(1, 2, 64, 64)
FEW = torch.randn(2, 2, 24, 12, dtype=torch.complex64)
ALL = torch.randn(2, 2, 64, 33, dtype=torch.complex64)


def test_few_modes_run_as_matrix_products_and_the_record_says_so() -> None:
    spectral_conv(X, FEW)
    choice = last_choice()
    assert choice is not None
    assert choice.backend == "gemm"
    assert choice == explain(X, FEW)


def test_many_modes_of_a_long_axis_run_through_fft() -> None:
    long = torch.randn(1, 1, 16384)
    weight = torch.randn(1, 1, 8193, dtype=torch.complex64)
    spectral_conv(long, weight)
    choice = last_choice()
    assert choice is not None
    assert choice.backend == "reference"
    assert "matrix products need" in choice.reason


def test_sizes_with_large_prime_factors_favour_matrix_products() -> None:
    # 19 times the operations in both cases: too many at 420 = 4 * 3 * 5 * 7, but not at the prime 421
    modes = (256, 128)
    assert choose(modes, (420, 420), (420, 420)).backend == "reference"
    assert choose(modes, (421, 421), (421, 421)).backend == "gemm"


@pytest.mark.parametrize("backend", ["reference", "gemm"])
def test_a_requested_backend_runs(backend: str) -> None:
    spectral_conv(X, ALL, backend=backend)
    choice = last_choice()
    assert choice is not None
    assert (choice.backend, choice.reason) == (backend, "requested by the caller")


def test_last_choice_is_per_thread() -> None:
    spectral_conv(X, FEW, backend="gemm")
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(last_choice()))
    thread.start()
    thread.join()
    assert seen == [None]


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="'reference', 'gemm'"):
        choose((12,), (64,), (64,), requested="cufft")


def test_operation_counts() -> None:
    # 64 x 64, 24 x 12 modes: last axis 64 rows of a 64 x 24 product, then one of 26 x 64 x 24
    assert gemm_flops((24, 12), (64, 64)) == 2 * 64 * 64 * 24 + 2 * 26 * 64 * 24
    assert fft_flops((64, 64)) == 2.5 * 4096 * 12
