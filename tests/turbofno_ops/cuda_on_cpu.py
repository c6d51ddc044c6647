"""Compile the kernels' own sources for a CPU (tests/csrc/cuda_on_cpu), to test them without a GPU.

What was compiled stays in build/cuda_on_cpu, for other processes and later runs, until a source changes.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import re
import shutil
import subprocess
import tempfile
from ctypes import c_char_p, c_int, c_size_t, c_void_p
from functools import cache
from pathlib import Path

import pytest
import torch

from turbofno_ops import _native

ROOT = Path(__file__).parents[2]
EMULATION = ROOT / "tests" / "csrc" / "cuda_on_cpu"
CSRC = ROOT / "csrc"
COMPILED = ROOT / "build" / "cuda_on_cpu"
FLAGS = (
    "-std=c++17", "-O1", "-Wall", "-Wextra", "-Wno-unknown-pragmas", "-Wno-unused-function",
    "-Wno-psabi", "-ffp-contract=off", "-fPIC",
)  # fmt: skip
_ASM = re.compile(r"\basm\s*(?:volatile)?\s*\(")
_DYNAMIC = re.compile(r"extern __shared__ (?:__align__\(\d+\) )?([\w:]+(?: \w+)*) (\w+)\[\];")
_STRING = re.compile(r'"(?:[^"\\]|\\.)*"')


@cache
def compile_kernels(*sources: str) -> ctypes.CDLL:
    """Compile kernels so that their launches run on the CPU, on host pointers and with stream None.

    The launch check (csrc/kernels/launch.cpp) is added. Launches are as turbofno_ops._native declares them and return its
    status; turbofno_last_cuda_error() has the words of a failed one.

    Args:
        sources: Names in csrc, say "kernels/norms.cu" and "plan/spectral_plan.cpp"; or absolute paths in `EMULATION`.

    Returns:
        The library, with the types of those functions declared that it has.

    Example:
        >>> library = compile_kernels("kernels/norms.cu")  # doctest: +SKIP
        >>> library.turbofno_norm_affine(norm, None)  # doctest: +SKIP
        0
    """
    if shutil.which("g++") is None:
        pytest.skip("no C++ compiler (g++)")
    if torch.cuda.is_available():
        pytest.skip(
            "a GPU runs the kernels themselves; CUDA's library has the names of the emulation"
        )
    own = [str(EMULATION / name) for name in ("runtime.cpp", "ptx.cpp")]
    objects = [_object(source) for source in (*sources, "kernels/launch.cpp", *own)]
    name = f"{'+'.join(Path(source).stem for source in sources)}.so"
    return _declared(ctypes.CDLL(str(made(name, "-shared", *objects))))


@cache
def _folder() -> Path:
    """Return a folder with csrc as C++ and what was compiled, named after the sources and the compiler."""
    copied = {
        f"{name}/{path.name}": path
        for name in ("kernels", "plan", "api")
        for path in (CSRC / name).iterdir()
    }
    copied |= {f"kernels/{path.name}": path for path in EMULATION.glob("*.cu")}
    read = {Path(__file__), *EMULATION.iterdir(), *EMULATION.parent.glob("*.cpp"), *copied.values()}
    known = hashlib.sha256(subprocess.run(["g++", "-v"], capture_output=True, check=True).stderr)
    for path in sorted(read):
        known.update(f"{path.relative_to(ROOT)}\0".encode() + path.read_bytes() + b"\0")
    folder = COMPILED / known.hexdigest()[:16]
    COMPILED.mkdir(parents=True, exist_ok=True)
    with (COMPILED / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return folder
        for old in filter(Path.is_dir, COMPILED.iterdir()):
            shutil.rmtree(old)
        new = Path(tempfile.mkdtemp(dir=COMPILED))
        for name, path in copied.items():
            (new / name).parent.mkdir(exist_ok=True)
            (new / name).write_text(as_cpp(path.read_text()))
        return new.rename(folder)


@cache
def _object(source: str) -> Path:
    """Compile a source and return its object file."""
    path = _folder() / source  # an absolute name stays as it is
    if path.suffix == ".cu":
        path = _folder() / "kernels" / path.name
    # nvcc includes cuda_runtime.h by itself, too
    headers = ("-I", EMULATION, "-include", "cuda_runtime.h")
    name = f"{path.parent.name}_{path.stem}.o"
    return made(name, *FLAGS, *headers, "-x", "c++", "-c", path)


def made(name: str, *arguments: str | Path) -> Path:
    """Return the file that g++ makes of sources in csrc and tests/csrc by these arguments, unless it was made before."""
    command = ["g++", *map(str, arguments)]
    called = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
    file = _folder() / f"{called}_{name}"
    with file.with_name(f"{file.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not file.exists():
            part = f"{file}.part"
            built = subprocess.run(
                [*command, "-o", part], capture_output=True, text=True, check=False
            )
            assert built.returncode == 0, built.stderr[:8000]
            Path(part).rename(file)
    return file


def _declared(library: ctypes.CDLL) -> ctypes.CDLL:
    for name, structures in _native.LAUNCHES.items():
        if hasattr(library, f"turbofno_{name}"):
            function = getattr(library, f"turbofno_{name}")
            function.argtypes = [*map(ctypes.POINTER, structures), c_void_p]
            function.restype = c_int
    for functions, result in ((_native.REFUSALS, c_char_p), (_native.SIZES, c_size_t)):
        present = {n: s for n, s in functions.items() if hasattr(library, f"turbofno_{n}")}
        _native.declare_host(library, present, result)
    library.turbofno_last_cuda_error.restype = c_char_p
    return library


def as_cpp(source: str) -> str:
    """Return C++: inline PTX calls the emulation's execute(), dynamic shared memory is a pointer.

    Example:
        >>> as_cpp('asm volatile("bar.sync %0;" ::"r"(index) : "memory");')
        '::cuda_on_cpu::execute("bar.sync %0;", {::cuda_on_cpu::input(index)});'
    """
    source = _DYNAMIC.sub(r"auto *\2 = static_cast<\1 *>(::cuda_on_cpu::dynamic_shared());", source)
    parts, at = [], 0
    while found := _ASM.search(source, at):
        parts.append(source[at : found.start()])
        end = _end(source, found.end())
        written = source[found.start() : end + 1]
        # a macro's operands are unknown here; such instructions need a GPU that the emulation is not
        parts.append(written if "__VA_ARGS__" in written else _call(source[found.end() : end]))
        at = end + 1
    return "".join([*parts, source[at:]])


def _pieces(text: str, separator: str) -> list[str]:
    """Split at a separator outside strings and brackets."""
    pieces, depth, start, at = [], 0, 0, 0
    while at < len(text):
        if string := _STRING.match(text, at):
            at = string.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0 and text[at] == separator:
            pieces.append(text[start:at])
            start = at + 1
        at += 1
    return [*pieces, text[start:]]


def _end(text: str, at: int) -> int:
    """Return the place of the bracket that closes the one before `at`."""
    depth = 1
    while True:
        if string := _STRING.match(text, at):
            at = string.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if depth == 0:
            return at
        at += 1


def _call(asm: str) -> str:
    instruction, *lists = _pieces(asm, ":")
    operands = []
    for kind, operand_list in zip(("output", "input"), lists, strict=False):
        for operand in filter(str.strip, _pieces(operand_list, ",")):
            expression = operand[operand.index('"', operand.index('"') + 1) + 1 :].strip()
            operands.append(f"::cuda_on_cpu::{kind}{expression}")
    return f"::cuda_on_cpu::execute({instruction.strip()}, {{{', '.join(operands)}}})"
