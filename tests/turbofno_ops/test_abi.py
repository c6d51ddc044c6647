"""The C interface of the CUDA kernels: independent of PyTorch, and equal in the header and in ctypes."""

from __future__ import annotations

import ctypes
import re
import shutil
import subprocess
import zlib
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from pathlib import Path
from typing import Any

import pytest

from turbofno_ops import ACTIVATIONS, PRECISIONS, _native
from turbofno_ops._activations import parse_activation
from turbofno_ops._tile_program import _KINDS
from turbofno_ops.fft._transform import KINDS

ROOT = Path(__file__).parents[2]
SOURCES = sorted(path for path in (ROOT / "csrc").rglob("*") if path.is_file())
HEADER = ROOT / "csrc" / "api" / "turbofno.h"
CODE = re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.S)

STRUCTURES: dict[str, type[ctypes.Structure]] = {
    "step": _native.Step,
    "window": _native.Window,
    "tile": _native.Tile,
    "tile_plan": _native.TilePlan,
    "row_analysis": _native.RowAnalysis,
    "operand": _native.Operand,
    "transform": _native.Transform,
    "product": _native.Product,
    "spectral": _native.Spectral,
    "batched_spectral": _native.BatchedSpectral,
    "moments": _native.Moments,
    "norm": _native.Norm,
    "fft": _native.Fft,
    "plane_axis": _native.PlaneAxis,
    "plane_transform": _native.PlaneTransform,
    "ntt": _native.Ntt,
    "octaves": _native.Octaves,
    "fluxes": _native.Fluxes,
    "flow": _native.Flow,
}
TYPES: dict[str, Any] = {
    "int32_t": c_int32,
    "int64_t": c_int64,
    "double": c_double,
    "float": c_float,
    "turbofno_step": _native.Step,
    "turbofno_window": _native.Window,
    "turbofno_plane_axis": _native.PlaneAxis,
}
SYSTEM_HEADERS = re.compile(r"cuda_\w+\.h|std(int|def)\.h|[a-z_]+")  # the last matches C++ headers

needs_c_compiler = pytest.mark.skipif(shutil.which("gcc") is None, reason="no C compiler (gcc)")


def macro(name: str) -> int:
    (value,) = re.findall(rf"#define {name} (\d+)", CODE)
    return int(value)


def header_fields(structure: str) -> list[tuple[str, Any]]:
    """Return names and ctypes of the fields of a structure in the header, in order."""
    (body,) = re.findall(rf"typedef struct \{{([^}}]*)\}} turbofno_{structure};", CODE)
    found = []
    for declaration in filter(None, (part.strip() for part in body.split(";"))):
        base, names = re.fullmatch(r"(?:const )?(\w+)\s+(.*)", declaration, flags=re.S).groups()
        for name in names.split(","):
            pointer, field, count = re.fullmatch(r"\s*(\*?)(\w+)(?:\[(\w+)\])?\s*", name).groups()
            kind = c_void_p if pointer else TYPES[base]
            found.append((field, kind * macro(count) if count else kind))
    return found


def enumeration(name: str) -> dict[str, int]:
    (body,) = re.findall(rf"typedef enum \{{([^}}]*)\}} turbofno_{name};", CODE)
    numbers = re.findall(r"TURBOFNO_(\w+) = (\d+)", body)
    assert len(numbers) == body.count("=")
    return {key.lower(): int(number) for key, number in numbers}


def test_every_structure_has_a_ctypes_counterpart() -> None:
    assert re.findall(r"typedef struct \{[^}]*\} turbofno_(\w+);", CODE) == list(STRUCTURES)


@pytest.mark.parametrize("name", STRUCTURES)
def test_fields_are_those_of_the_header(name: str) -> None:
    assert header_fields(name) == [(field[0], field[1]) for field in STRUCTURES[name]._fields_]


@needs_c_compiler
def test_offsets_and_sizes_are_those_of_a_c_compiler(tmp_path: Path) -> None:
    lines, expected = [], []
    for name, structure in STRUCTURES.items():
        lines.append(f'printf("%zu\\n", sizeof(turbofno_{name}));')
        expected.append(ctypes.sizeof(structure))
        for field, _ in header_fields(name):
            where = f"offsetof(turbofno_{name}, {field})"
            size = f"sizeof(((turbofno_{name} *)0)->{field})"
            lines.append(f'printf("%zu\\n%zu\\n", {where}, {size});')
            twin = getattr(structure, field)
            expected += [twin.offset, twin.size]
    source, program = tmp_path / "layout.c", tmp_path / "layout"
    includes = f'#include <stdio.h>\n#include "{HEADER}"\n'
    source.write_text(f"{includes}int main(void) {{\n{chr(10).join(lines)}\nreturn 0;\n}}\n")
    flags = ("-std=c99", "-Wall", "-Wextra", "-Werror", "-pedantic")
    subprocess.run(["gcc", *flags, str(source), "-o", str(program)], check=True)
    listed = subprocess.run([program], capture_output=True, text=True, check=True).stdout
    assert [int(line) for line in listed.split()] == expected


def test_activations_have_the_header_s_numbers() -> None:
    assert {name: parse_activation(name).number for name in ACTIVATIONS} == enumeration(
        "activation"
    )


def test_precisions_have_the_header_s_numbers() -> None:
    # fp16 is a precision of transforms only
    names = [*PRECISIONS, "fp16"]
    assert {name: i for i, name in enumerate(names)} == enumeration("precision")


def test_kinds_of_transforms_have_the_header_s_numbers() -> None:
    assert {name: i for i, name in enumerate(KINDS)} == enumeration("transform_kind")


def test_steps_have_the_header_s_numbers() -> None:
    # Source and Restore both load a field, and a norm is a per-sample affine map
    called = {"Source": "load", "Restore": "load", "Normalize": "affine", "Save": "store"}
    numbers = enumeration("step_kind")
    for kind, number in _KINDS.items():
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", kind.__name__).lower()
        assert numbers[called.get(kind.__name__, name)] == number
    assert set(numbers.values()) == set(_KINDS.values())


def test_lengths_of_arrays_are_the_header_s() -> None:
    assert macro("TURBOFNO_MAX_STEPS") == _native.MAX_STEPS
    assert macro("TURBOFNO_MAX_SLABS") == _native.MAX_SLABS
    assert macro("TURBOFNO_PLAN_WORDS") == _native.PLAN_WORDS
    assert macro("TURBOFNO_DOT_OUTPUTS") == _native.DOT_OUTPUTS
    assert macro("TURBOFNO_FLUX_MODES") == _native.FLUX_MODES
    assert macro("TURBOFNO_FLOW_MODES") == _native.FLOW_MODES


def test_the_interface_s_checksum_is_that_of_the_header() -> None:
    """A library that was compiled from other declarations is not loaded."""
    declarations = re.sub(r"#define TURBOFNO_ABI \d+", "", CODE)
    checksum = zlib.crc32(" ".join(declarations.split()).encode()) & 0x7FFFFFFF
    assert macro("TURBOFNO_ABI") == _native.ABI == checksum


def test_functions_take_the_structures_of_the_header() -> None:
    declared = {
        name: re.findall(r"turbofno_(\w+) \*", arguments)
        for name, arguments in re.findall(r"turbofno_(\w+)\(([^)]*)\);", CODE)
        if arguments != "void"
    }
    twins = {structure: name for name, structure in STRUCTURES.items()}
    ours = _native.LAUNCHES | _native.REFUSALS | _native.SIZES
    assert declared == {name: [twins[one] for one in given] for name, given in ours.items()}


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: path.name)
def test_sources_include_only_the_project_cpp_and_cuda_headers(source: Path) -> None:
    included = re.findall(r'#include [<"]([^>"]+)[>"]', source.read_text())
    for name in included:
        own = (source.parent / name).is_file()
        assert own or SYSTEM_HEADERS.fullmatch(name), name


def test_the_built_library_has_no_pytorch_symbols() -> None:
    built = [path for path in _native._candidates() if path.is_file()]
    if not built or shutil.which("nm") is None:
        pytest.skip(f"{_native.LIBRARY} was not built here, or there is no nm")
    listed = subprocess.run(
        ["nm", "--dynamic", "--demangle", str(built[0])], capture_output=True, text=True, check=True
    ).stdout
    assert re.search(r"\bT turbofno_tile_program$", listed, flags=re.M)
    # without addresses, which may look like names
    names = re.findall(r"^[ \da-f]* [A-Za-z] (.*)$", listed, flags=re.M)
    assert len(names) == len(listed.splitlines())
    assert [name for name in names if re.search(r"torch|c10|caffe2|\bat::|\bPy_", name)] == []
