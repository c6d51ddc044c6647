"""Fixtures of the kernels' tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from tests.turbofno_ops.cuda_on_cpu import made
from turbofno_ops import _native

PLANS = sorted((Path(__file__).parents[2] / "csrc" / "plan").glob("*.cpp"))
CXX_FLAGS = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """Run a command and return its status and output."""
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )


@pytest.fixture
def strict_float32() -> None:
    """Disable TF32 in PyTorch, which the kernels are compared with; it is the default of convolutions."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def _one_thread() -> None:
    """Override the global fixture: use all threads, to test how kernels share their work."""


@pytest.fixture(scope="session")
def plan_file() -> Path:
    """The kernels' host code (csrc/plan), compiled without CUDA."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++)")
    return made("plan.so", *CXX_FLAGS, "-shared", "-fPIC", *PLANS)


@pytest.fixture(scope="session")
def plan_library(plan_file: Path) -> ctypes.CDLL:
    """The loaded host code."""
    plans = ctypes.CDLL(str(plan_file))
    _native.declare_host(plans, _native.REFUSALS, ctypes.c_char_p)
    return plans


@pytest.fixture
def served_shapes(plan_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Answer support checks by the host code, without the CUDA library."""
    monkeypatch.setattr(_native, "_library", lambda: plan_library)
