"""Helpers of GPU tests: a skip mark, and poisoned memory."""

from __future__ import annotations

import math

import pytest
import torch

from turbofno_ops import native_status

needs_kernels = pytest.mark.skipif(
    not torch.cuda.is_available() or not native_status().loaded,
    reason="needs a GPU and the library of CUDA kernels",
)


def poison() -> None:
    """Fill the memory of the next allocations with NaN."""
    torch.cuda.empty_cache()
    blocks = [torch.full((count,), math.nan, device="cuda") for count in [2**17] * 6 + [2**26]]
    torch.cuda.synchronize()
    del blocks
