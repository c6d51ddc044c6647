"""The CUDA library from the outside, without a GPU: its plans, its limits, that it compiles, and what is said without it."""

from __future__ import annotations

import ctypes
import logging
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno_ops import (
    PRECISIONS,
    NativeStatus,
    _architecture,
    _cuda,
    _native,
    dispatch,
    native_status,
    spectral_conv,
)
from turbofno_ops.__main__ import report
from turbofno_ops.dispatch import Choice, choose

ROOT = Path(__file__).parents[2]
KERNELS = sorted((ROOT / "csrc" / "kernels").glob("*.cu"))
PLANS = sorted((ROOT / "csrc" / "plan").glob("*.cpp"))
CHECKS = sorted((ROOT / "tests" / "csrc").glob("*_check.cpp"))

needs_compiler = pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler (g++)")


def run(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(part) for part in command], capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def plan_library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    library = tmp_path_factory.mktemp("plan") / "plan.so"
    built = run(
        *("g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"),
        *(*PLANS, "-o", library),
    )
    assert built.returncode == 0, built.stderr
    return _native.declare(ctypes.CDLL(str(library)))


@pytest.fixture
def served_shapes(plan_library: ctypes.CDLL, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(_native, "_library", lambda: plan_library)
    _native.unsupported.cache_clear()
    yield
    _native.unsupported.cache_clear()


@needs_compiler
@pytest.mark.parametrize("check", CHECKS, ids=lambda p: p.stem)
def test_every_plan_fits_the_devices(check: Path, tmp_path: Path) -> None:
    program = tmp_path / "plan_check"
    flags = ("-std=c++17", "-O1", "-Wall", "-Wextra", "-Werror")
    built = run("g++", *flags, check, *PLANS, "-o", program)
    assert built.returncode == 0, built.stderr
    checked = run(program)
    assert checked.returncode == 0, checked.stdout[:2000]


def field_names(struct: str) -> list[str]:
    """Names of a struct's fields in the header, in order."""
    text = (ROOT / "csrc" / "api" / "turbofno.h").read_text()
    (body,) = re.findall(r"typedef struct \{([^}]*)\} " + struct + ";", text)
    code = re.sub(r"/\*.*?\*/", "", body, flags=re.S)
    declarations = [declaration.split() for declaration in code.split(";") if declaration.strip()]
    return [name.strip("*,") for words in declarations for name in words if name[-1] != "_"]


@pytest.mark.parametrize("stage", _native.STAGES)
def test_structures_are_those_of_the_header(stage: str) -> None:
    types = {"const", "void", "float", "int32_t", "int64_t"}
    declared = [name for name in field_names(f"turbofno_{stage}") if name not in types]
    structure = _native.STAGES[stage]
    sizes = [name for name, _ in structure._fields_][:-1]
    assert declared[: len(sizes)] == sizes
    assert len(declared) - len(sizes) == structure.pointers.size // ctypes.sizeof(ctypes.c_void_p)


@needs_compiler
@pytest.mark.usefixtures("served_shapes")
@pytest.mark.parametrize(
    ("batch", "channels", "size", "modes", "why"),
    [
        (65536, (64, 64), (1, 1024), (1, 16), None),
        (1, (256, 8), (4096, 4096), (128, 64), None),
        (1, (20, 48), (421, 421), (24, 12), None),
        (65537, (8, 8), (1, 64), (1, 8), "batch"),
        (1, (257, 8), (1, 64), (1, 8), "channel"),
        (1, (8, 8), (1, 32768), (1, 8), "16384 points"),
        (1, (8, 8), (1, 1024), (1, 200), "128 modes"),
        (1, (8, 8), (512, 64), (130, 12), "128 modes"),
        (1, (8, 8), (1, 64), (1, 40), "does not hold"),
    ],
)
def test_limits_of_the_kernels(
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, int],
    modes: tuple[int, int],
    why: str | None,
) -> None:
    for precision in PRECISIONS:
        reason = _cuda.stages_refusal(batch, channels, size, size, modes, precision=precision)
        if why is None:
            assert reason is None
        else:
            assert reason is not None
            assert why in reason


@needs_compiler
@pytest.mark.usefixtures("served_shapes")
def test_limits_of_a_chain() -> None:
    shape = (1, (8, 8), (64, 64), (64, 64), (12, 7))
    assert _cuda.stages_refusal(*shape, precision="fp32", projected=16) is None
    refused = _cuda.stages_refusal(*shape, precision="fp32", projected=17)
    assert refused is not None
    assert "16 channels" in refused


@needs_compiler
def test_workspace_grows_with_the_batch_beyond_32_bits(plan_library: ctypes.CDLL) -> None:
    sizes = {"batch": 65536, "c_in": 64, "c_out": 64, "h_in": 64, "h_out": 64}
    mix = _native.STAGES["mix"](**sizes, modes_h=12, modes_w=64)
    spectra = 65536 * 64 * 12 * 64 * 8
    assert plan_library.turbofno_mix_workspace_bytes(ctypes.byref(mix)) >= 2 * spectra


@pytest.fixture(scope="module")
def compiled(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[Path, Future[subprocess.CompletedProcess[str]]]]:
    """What the compiler said of every kernel, once it is through; as many at a time as there are cores."""
    folder = tmp_path_factory.mktemp("kernels")
    flags = ("-std=c++17", "-gencode=arch=compute_80,code=sm_80", "-Xcompiler=-Wall,-Wextra", "-c")
    with ThreadPoolExecutor(os.cpu_count()) as compilers:
        yield {
            source: compilers.submit(run, "nvcc", *flags, source, "-o", folder / f"{source.stem}.o")
            for source in KERNELS
        }


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="no CUDA compiler (nvcc)")
@pytest.mark.parametrize("source", KERNELS, ids=lambda p: p.stem)
def test_kernels_compile_without_warnings(
    source: Path, compiled: dict[Path, Future[subprocess.CompletedProcess[str]]]
) -> None:
    built = compiled[source].result()
    assert built.returncode == 0, built.stderr
    assert "warning" not in built.stderr


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has CUDA")
def test_without_cuda_everything_works_and_says_why() -> None:
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
@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, and code for it can be had")
def test_a_card_that_the_library_has_no_code_for_is_refused_in_words(
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
    assert refused.endswith("TURBOFNO_CUDA_ARCHITECTURES=90")


@needs_kernels
def test_the_card_that_is_there_has_code() -> None:
    assert _architecture.code_refusal(torch.device("cuda", 0)) is None


def test_another_library_can_be_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    named = tmp_path / "other.so"
    monkeypatch.setenv(_native.LIBRARY_VARIABLE, str(named))
    native_status.cache_clear()
    try:
        assert native_status().detail == f"TURBOFNO_LIBRARY names {named}, no file"
        named.write_bytes(b"not a library")
        native_status.cache_clear()
        assert f"{named} cannot be loaded" in native_status().detail
    finally:
        native_status.cache_clear()


def test_missing_library_is_explained(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(_native, "_candidates", lambda: [tmp_path / _native.LIBRARY])
    native_status.cache_clear()
    try:
        assert "was not built" in native_status().detail
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
def test_cards_are_refused_by_what_they_lack(
    monkeypatch: pytest.MonkeyPatch, major: int, minor: int, kib: int, why: str | None
) -> None:
    card = SimpleNamespace(
        name="card", major=major, minor=minor, shared_memory_per_multiprocessor=kib * 1024
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _: card)
    monkeypatch.setattr(_cuda, "native_status", lambda: NativeStatus(True, "kernels.so"))
    monkeypatch.setattr(_cuda, "code_refusal", lambda _: None)
    _cuda.gpu_refusal.cache_clear()
    try:
        refused = _cuda.gpu_refusal(torch.device("cuda", 0))
    finally:
        _cuda.gpu_refusal.cache_clear()
    assert refused is None if why is None else why in str(refused)


def test_kernels_are_chosen_where_they_serve() -> None:
    choice = choose((24, 12), (64, 64), (64, 64), cuda_refusal=None)
    assert choice.backend == "cuda"


def test_fallback_is_logged_once_with_its_reason(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatch, "_logged", set())
    choice = Choice(
        "gemm", f"{dispatch._PASSED_OVER}a channel count is not in 1 .. 256; matrix products"
    )
    with caplog.at_level(logging.WARNING, logger="turbofno_ops"):
        for _ in range(3):
            dispatch.log_fallback(choice)
    assert [record.getMessage() for record in caplog.records] == [
        "the CUDA kernels do not run this layer: a channel count is not in 1 .. 256; backend 'gemm' runs instead"
    ]
