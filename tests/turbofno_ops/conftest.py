"""Fixtures of the kernels' tests."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from turbofno_ops import _native

PLANS = sorted((Path(__file__).parents[2] / "csrc" / "plan").glob("*.cpp"))
CXX_FLAGS = ("-std=c++17", "-Wall", "-Wextra", "-Werror")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    """A command's end, whatever it was, and what it said."""
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )


@pytest.fixture
def strict_float32() -> None:
    """PyTorch, which the kernels are compared with, in plain float32: its default convolves in TF32."""
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.matmul.allow_tf32 = False


@pytest.fixture
def _one_thread() -> None:
    """As many threads as there are: how the kernels share their work is tested too."""


@pytest.fixture(scope="session")
def plan_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """The kernels' host code alone: plans, and what is refused."""
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++)")
    library = tmp_path_factory.mktemp("plan") / "plan.so"
    built = run("g++", *CXX_FLAGS, "-shared", "-fPIC", *PLANS, "-o", library)
    assert built.returncode == 0, built.stderr
    plans = ctypes.CDLL(str(library))
    _native.declare_host(plans, _native.REFUSALS, ctypes.c_char_p)
    return plans


@pytest.fixture
def served_shapes(plan_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host code alone answer which shapes the kernels serve."""
    monkeypatch.setattr(_native, "_library", lambda: plan_library)
