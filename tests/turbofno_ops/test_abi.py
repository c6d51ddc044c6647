"""The CUDA library asks PyTorch for nothing but its stable C interface, so one binary serves many versions of it."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch

from turbofno_ops import _native

ROOT = Path(__file__).parents[2]
BINDINGS = ROOT / "csrc" / "bindings" / "torch_cuda.cpp"
# from CMakeLists.txt: the oldest PyTorch served, whose interface the headers hide all newer functions of
TARGET = "-DTORCH_TARGET_VERSION=0x020b000000000000"

STABLE = re.compile(r"(aoti_)?torch_\w+")
UNSTABLE = re.compile(r"\b(at|c10|caffe2|torch)::")


def undefined(binary: Path, *options: str) -> list[str]:
    """What the dynamic linker has to find elsewhere, demangled."""
    listed = subprocess.run(
        ["nm", "--undefined-only", "--demangle", *options, str(binary)],
        capture_output=True,
        text=True,
        check=True,
    )
    return [line.split(maxsplit=1)[1] for line in listed.stdout.splitlines() if line]


def judge(symbols: list[str]) -> None:
    assert [name for name in symbols if UNSTABLE.search(name)] == []
    # else nothing was looked at
    assert len([name for name in symbols if STABLE.fullmatch(name)]) > 10


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler (nvcc)")
def test_bindings_use_the_stable_interface_only(tmp_path: Path) -> None:
    headers = Path(torch.__path__[0]) / "include"
    compiled = tmp_path / "torch_cuda.o"
    subprocess.run(
        [
            *("nvcc", "-std=c++20", "-DUSE_CUDA", TARGET, f"-isystem={headers}"),
            *("-c", str(BINDINGS), "-o", str(compiled)),
        ],
        check=True,
    )
    judge(undefined(compiled))


def test_built_library_uses_the_stable_interface_only() -> None:
    built = [path for path in _native._candidates() if path.is_file()]
    if not built:
        pytest.skip(f"{_native.LIBRARY} was not built here")
    judge(undefined(built[0], "--dynamic"))


def test_target_is_the_one_that_is_built() -> None:
    assert TARGET.removeprefix("-D") in (ROOT / "CMakeLists.txt").read_text()


def test_a_violation_is_seen() -> None:
    stable = [f"aoti_torch_function_{i}" for i in range(20)]
    judge([*stable, "std::terminate()"])
    for name in (
        "c10::Error::Error()",
        "at::empty(c10::ArrayRef<long>)",
        "vtable for torch::autograd::Node",
    ):
        with pytest.raises(AssertionError):
            judge([*stable, name])
