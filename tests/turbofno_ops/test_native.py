"""The CUDA library without a GPU: plans, limits, compilation, and the status without a library."""

from __future__ import annotations

import ctypes
import logging
import os
import random
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.thorough import tried
from tests.turbofno_ops.conftest import CXX_FLAGS, run
from tests.turbofno_ops.cuda_on_cpu import made
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno_ops import (
    PRECISIONS,
    NativeStatus,
    _architecture,
    _cuda_layer,
    _native,
    _support,
    dispatch,
    native_status,
    spectral_conv,
)
from turbofno_ops.__main__ import report
from turbofno_ops._choice import Choice
from turbofno_ops._stages import (
    MLP,
    AddMap,
    Project,
    Step,
    Store,
    Synthesis,
)
from turbofno_ops._support import A100, program_refusal
from turbofno_ops.description import PointwiseMap
from turbofno_ops.dispatch import choose

ROOT = Path(__file__).parents[2]
# The tile kernels take a minute each, and the installation compiles them anyway.
ALL_KERNELS = sorted((ROOT / "csrc" / "kernels").glob("*.cu"))
KERNELS = [k for k in ALL_KERNELS if tried(0, 1) or not k.stem.startswith("tile_")]
CHECKS = sorted((ROOT / "tests" / "csrc").glob("*_check.cpp"))


@pytest.mark.parametrize("check", CHECKS, ids=lambda p: p.stem)
def test_every_plan_fits_the_devices(check: Path, plan_file: Path) -> None:
    program = made(check.stem, *CXX_FLAGS, check, plan_file)
    checked = run(program, str(random.getrandbits(32)))
    assert checked.returncode == 0, checked.stdout[:2000]


LAYER: dict[str, Any] = {
    "batch": 4, "channels": (32, 32), "size": (64, 64), "modes": (24, 12), "precision": "fp32"
}  # fmt: skip


def layer_refusal(**changes: Any) -> str | None:
    """Return the refusal of a layer, bypassing the cache."""
    of = LAYER | changes
    size, judge = of["size"], _cuda_layer._layer_refusal.__wrapped__
    device = torch.device("cuda")
    return judge(
        of["batch"], of["channels"], size, of.get("out_size", size), of["modes"], of["precision"], device
    )  # fmt: skip


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({}, None),
        ({"batch": 65536, "channels": (64, 64), "size": (1024,), "modes": (16,)}, None),
        ({"batch": 1, "channels": (256, 8), "size": (4096, 4096), "modes": (128, 64)}, None),
        ({"channels": (20, 48), "size": (421, 421), "out_size": (64, 33)}, None),
        ({"size": (16, 17, 19), "modes": (8, 7, 5)}, None),
        ({"size": (8, 7, 6, 5), "modes": (3, 4, 6, 3)}, None),
        ({"batch": 65537}, "batch is not in 1 .. 65536"),
        ({"channels": (257, 8)}, "channel count is not in 1 .. 256"),
        ({"channels": (8, 300)}, "channel count is not in 1 .. 256"),
        ({"size": (64, 32768)}, "16384 points"),
        ({"size": (32768, 64)}, "16384 points"),
        ({"size": (64, 1024), "modes": (24, 200)}, "128 modes"),
        ({"size": (512, 64), "modes": (130, 12)}, "128 modes"),
        ({"modes": (24, 40)}, "last axis does not hold the kept modes"),
        ({"size": (16, 64)}, "grid does not hold the kept modes"),
        ({"out_size": (64, 20)}, "last axis does not hold the kept modes"),
    ],
)
def test_limits_of_a_layer(
    changes: dict[str, Any], why: str | None, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_support, "device_limits", lambda _: A100)
    refused = layer_refusal(**changes, precision=precision)
    assert refused is None if why is None else why in str(refused)


def identity(out: int, channels: int) -> PointwiseMap:
    return PointwiseMap(torch.empty(out, channels, device="meta"))


@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize(
    ("channels", "step", "why"),
    [
        (128, MLP(identity(256, 128), "gelu", identity(128, 256)), None),
        (256, MLP(identity(1024, 256), "gelu", identity(256, 1024)), None),
        (8, MLP(identity(16, 8), "gelu", identity(257, 16)), "channels are not in 1 .. 256"),
        (8, Project((identity(16, 8),), "none"), None),
        (256, Project((identity(512, 256), identity(17, 512)), "gelu"), None),
        (8, Project((identity(257, 8),), "none"), "channels are not in 1 .. 256"),
        (8, AddMap(torch.empty(8, 300, device="meta")), "map takes more than 256 channels"),
    ],
)
def test_limits_of_a_step(channels: int, step: Step, why: str | None) -> None:
    ends = () if isinstance(step, Project) else (Store(),)
    refused = program_refusal(
        (Synthesis(), step, *ends),
        batch=2,
        channels=channels,
        channels_of_x=300,
        size=(64, 64),
        modes=12,
        next_modes=12,
        precision="fp32",
    )
    assert refused is None if why is None else why in str(refused)


def test_workspace_is_counted_beyond_32_bits(plan_library: ctypes.CDLL) -> None:
    # one row split over many multiprocessors, with one sum per split
    tile = _native.Tile(
        batch=64, outer=1, points=16384, width=256, channels=256, next_modes=128,
        multiprocessors=1 << 20, shared_bytes=227 * 1024, steps=2,
        window=_native.Window(outer=1, points=16384, rows=1, pitch=1),
    )  # fmt: skip
    tile.step[0].channels, tile.step[1].kind = 256, 8
    plan = _native.TilePlan()
    assert plan_library.turbofno_tile_prepare(tile, plan) is None
    sums = 64 * 256 * 128 * 8
    assert plan.workspace_bytes % sums == 0
    assert plan.workspace_bytes > 2**32


@pytest.fixture(scope="module")
def compiled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[Path, Future[subprocess.CompletedProcess[str]]]]:
    """Compile all kernels in parallel; a future of the compiler's output for each."""
    folder = tmp_path_factory.mktemp("kernels")
    flags = ["-std=c++17", "-gencode=arch=compute_80,code=sm_80", "-Xcompiler=-Wall,-Wextra", "-c"]
    # Warnings come before optimisation, which takes most of the time; newer versions of nvcc can leave it out.
    if "--Ofast-compile" in run("nvcc", "--help").stdout:
        flags.append("--Ofast-compile=max")
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        yield {
            source: compilers.submit(run, "nvcc", *flags, source, "-o", folder / f"{source.stem}.o")
            for source in KERNELS
        }


@pytest.mark.timeout(900)  # compilations run in parallel, so each takes longer
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler (nvcc)")
@pytest.mark.parametrize("source", KERNELS, ids=lambda p: p.stem)
def test_kernels_compile_without_warnings(
    source: Path, compiled: dict[Path, Future[subprocess.CompletedProcess[str]]]
) -> None:
    built = compiled[source].result()
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has CUDA")
def test_status_without_cuda() -> None:
    status = native_status()
    assert not status.loaded
    assert "built without CUDA" in status.detail
    assert status.detail in report()
    assert "cuda" not in report().splitlines()[2]
    with pytest.raises(ValueError, match="backend 'cuda' cannot run this layer: x is on cpu"):
        spectral_conv(
            torch.zeros(1, 1, 8), torch.zeros(1, 1, 2, dtype=torch.complex64), backend="cuda"
        )


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler (nvcc)")
@pytest.mark.skipif(torch.cuda.is_available(), reason="the driver may compile code for a real GPU")
def test_a_gpu_without_code_in_the_library_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    library = tmp_path / "kernels.so"
    source = ROOT / "csrc" / "kernels" / "architecture.cu"
    built = run("nvcc", "-shared", "-Xcompiler=-fPIC", "-arch=sm_80", source, "-o", library)
    assert built.returncode == 0, built.stderr
    card = SimpleNamespace(name="card", major=9, minor=0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    monkeypatch.setattr(_architecture, "native_status", lambda: NativeStatus(True, str(library)))
    refused = str(_architecture.code_refusal(torch.device("cuda", 0)))
    assert "no code for card (sm_90): the library holds neither machine code" in refused
    assert "TURBOFNO_CUDA_ARCHITECTURES=90 " in refused


@needs_kernels
def test_this_gpu_has_code() -> None:
    assert _architecture.code_refusal(torch.device("cuda", 0)) is None


def test_library_variable_selects_a_library(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    named = tmp_path / "other.so"
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(named))
    native_status.cache_clear()
    try:
        assert native_status().detail == f"TURBOFNO_LIBRARY names {named}, which is not a file"
        named.write_bytes(b"not a library")
        native_status.cache_clear()
        assert f"{named} cannot be loaded" in native_status().detail
    finally:
        native_status.cache_clear()


def test_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv(_native.LIBRARY_VARIABLE, raising=False)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_native, "_candidates", lambda: [tmp_path / _native.LIBRARY])
    native_status.cache_clear()
    try:
        assert "is not installed" in native_status().detail
        (tmp_path / _native.LIBRARY).write_bytes(b"not a library")
        native_status.cache_clear()
        assert "cannot be loaded" in native_status().detail
    finally:
        native_status.cache_clear()


@pytest.mark.parametrize(
    ("major", "minor", "kib", "why"),
    [
        (8, 0, 164, None),
        (9, 0, 228, None),
        (10, 0, 228, None),
        (7, 0, 96, "compute capability 8.0"),
        (8, 6, 100, "160 KiB of shared memory"),
        (12, 0, 100, "160 KiB of shared memory"),
    ],
)
def test_unsupported_gpus_are_refused(
    monkeypatch: pytest.MonkeyPatch, major: int, minor: int, kib: int, why: str | None
) -> None:
    card = SimpleNamespace(
        name="card", major=major, minor=minor, shared_memory_per_multiprocessor=kib * 1024
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(_support, "native_status", lambda: NativeStatus(True, "kernels.so"))
    monkeypatch.setattr(_support, "code_refusal", lambda _: None)
    _support.gpu_refusal.cache_clear()
    try:
        refused = _support.gpu_refusal(torch.device("cuda", 0))
    finally:
        _support.gpu_refusal.cache_clear()
    assert refused is None if why is None else why in str(refused)


def test_kernels_are_chosen_where_supported() -> None:
    choice = choose((24, 12), (64, 64), (64, 64), cuda_refusal=None)
    assert choice.backend == "cuda"


def test_fallback_is_logged_once_with_its_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_logged", set())
    choice = Choice(
        "gemm", f"{dispatch._CUDA_REFUSED}a channel count is not in 1 .. 256; matrix products"
    )
    with caplog.at_level(logging.WARNING, logger="turbofno_ops"):
        for _ in range(3):
            dispatch.log_fallback(choice)
    assert [record.getMessage() for record in caplog.records] == [
        "the CUDA kernels do not run this layer: a channel count is not in 1 .. 256; backend 'gemm' runs instead"
    ]
