"""Helpers of GPU tests: a skip mark, and poisoned memory."""

from __future__ import annotations

import math

import pytest
import torch

from turbofno_ops import native_status

ON_GPU = torch.cuda.is_available() and native_status().loaded
needs_kernels = pytest.mark.skipif(not ON_GPU, reason="needs a GPU and the library of CUDA kernels")


def poison() -> None:
    """Fill the memory of the next allocations with NaN."""
    torch.cuda.empty_cache()
    blocks = [torch.full((count,), math.nan, device="cuda") for count in [2**17] * 6 + [2**26]]
    torch.cuda.synchronize()
    del blocks
