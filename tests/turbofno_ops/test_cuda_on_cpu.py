"""The emulation of CUDA on a CPU: results, and launches that must fail."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.turbofno_ops.cuda_on_cpu import EMULATION, compile_kernels


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    return compile_kernels(str(EMULATION / "self_test.cu"))


def run_sum(library: ctypes.CDLL, mode: int) -> tuple[int, torch.Tensor, torch.Tensor]:
    values, sums = torch.randn(7, 96), torch.full((7,), torch.nan)
    status = library.self_test_sum(
        ctypes.c_void_p(values.data_ptr()), ctypes.c_void_p(sums.data_ptr()), 7, mode
    )
    return status, values, sums


def test_barriers_and_shuffles(library: ctypes.CDLL) -> None:
    status, values, sums = run_sum(library, 0)
    assert status == 0
    assert (sums - values.sum(1)).abs().max() < 1e-4


def test_matrix_product_of_a_warp(library: ctypes.CDLL) -> None:
    a, b, out = torch.randn(16, 16), torch.randn(16, 8), torch.empty(16, 8)
    both = torch.cat([a.flatten(), b.flatten()])
    status = library.self_test_product(
        ctypes.c_void_p(both.data_ptr()), ctypes.c_void_p(out.data_ptr())
    )
    assert status == 0
    assert (out - a.half().float() @ b.half().float()).abs().max() < 1e-5


@pytest.mark.parametrize(
    ("mode", "why"),
    [
        (1, b"waits forever at __syncthreads; 1 of 96 threads have ended"),
        (2, b"writes beyond its dynamic shared memory"),
        (3, b"more shared memory than cudaFuncSetAttribute has allowed"),
    ],
)
def test_wrong_launches_fail(library: ctypes.CDLL, mode: int, why: bytes) -> None:
    status, _, _ = run_sum(library, mode)
    assert status == 3
    assert why in library.turbofno_last_cuda_error()
    assert run_sum(library, 0)[0] == 0  # the next launch runs
