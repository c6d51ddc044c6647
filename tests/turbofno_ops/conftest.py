"""Fixtures of the kernels' tests."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture
def strict_float32() -> None:
    """PyTorch, which the kernels are compared with, in plain float32: its default convolves in TF32."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def _one_thread() -> None:
    """As many threads as there are: how the kernels share their work is tested too."""
