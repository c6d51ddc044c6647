"""The library of CUDA kernels: find it, load it, say why not; its structures (csrc/api/turbofno.h) and its calls."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch

LIBRARY = "libturbofno_cuda.so"
MOST_STEPS = 16
LIBRARY_VARIABLE = "TURBOFNO_LIBRARY"
"""Names another build of the library, for a comparison or a proof."""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Whether the CUDA kernels are loaded, from where or why not, in words."""

    loaded: bool
    detail: str


class Step(ctypes.Structure):
    """turbofno_step"""

    _fields_: ClassVar = [
        *[(name, c_int32) for name in ("kind", "activation")],
        ("parameter", c_float),
        *[(name, c_int32) for name in ("channels", "channel_first", "terms", "hidden")],
        ("per_sample", c_int32),
        *[(name, c_void_p) for name in ("field", "first", "second", "scale", "shift")],
        ("second_shift", c_void_p),
    ]


class Tile(ctypes.Structure):
    """turbofno_tile"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "outer")],
        *[(name, c_int32) for name in ("points", "width", "channels", "modes", "next_modes")],
        *[(name, c_int32) for name in ("precision", "multiprocessors", "shared_bytes")],
        *[(name, c_int32) for name in ("weights_settled", "steps")],
        *[(name, c_void_p) for name in ("mixed", "spectra", "synthesis", "analysis", "workspace")],
        ("step", Step * MOST_STEPS),
    ]


class Transform(ctypes.Structure):
    """turbofno_transform"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("outer", "inner", "pitch")],
        *[(name, c_int32) for name in ("points", "modes", "inverse", "precision")],
        ("multiprocessors", c_int32),
        *[(name, c_void_p) for name in ("input", "out", "table")],
    ]


class Product(ctypes.Structure):
    """turbofno_product"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "in_pitch", "out_pitch")],
        *[(name, c_int32) for name in ("c_in", "c_out", "others", "modes", "precision")],
        ("multiprocessors", c_int32),
        *[(name, c_void_p) for name in ("input", "weight", "out")],
    ]


class Moments(ctypes.Structure):
    """turbofno_moments"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "outer")],
        *[(name, c_int32) for name in ("points", "channels", "modes", "precision")],
        *[(name, c_void_p) for name in ("spectra", "field", "moments", "workspace")],
    ]


class Norm(ctypes.Structure):
    """turbofno_norm"""

    _fields_: ClassVar = [
        ("batch", c_int64),
        *[(name, c_int32) for name in ("channels", "groups", "width")],
        ("eps", c_float),
        *[(name, c_void_p) for name in ("moments", "offset", "weight", "bias", "scale", "shift")],
    ]


LAUNCHES = {
    "tile_program": Tile,
    "transform_axis": Transform,
    "multiply_modes": Product,
    "spectral_moments": Moments,
    "field_moments": Moments,
    "norm_affine": Norm,
}
UNSUPPORTED = {"tile": Tile, "transform": Transform, "product": Product}
WORKSPACES = {"tile": Tile, "moments": Moments}


def _candidates() -> list[Path]:
    """The library that TURBOFNO_LIBRARY names; else beside this file, and where an editable install put what it built."""
    import turbofno_ops

    if named := os.environ.get(LIBRARY_VARIABLE):
        return [Path(named)]
    return [Path(folder) / LIBRARY for folder in turbofno_ops.__path__]


@cache
def native_status() -> NativeStatus:
    """Load the CUDA kernels on the first call; afterwards the same answer. Starts nothing on a GPU."""
    if torch.version.cuda is None:
        return NativeStatus(False, f"PyTorch {torch.__version__} is built without CUDA")
    found = [path for path in _candidates() if path.is_file()]
    if not found and LIBRARY_VARIABLE in os.environ:
        return NativeStatus(False, f"{LIBRARY_VARIABLE} names {_candidates()[0]}, no file")
    if not found:
        return NativeStatus(
            False,
            f"{LIBRARY} was not built; install the package from its sources where nvcc is",
        )
    try:
        declare(ctypes.CDLL(str(found[0])))
    except OSError as error:
        return NativeStatus(False, f"{found[0]} cannot be loaded: {error}")
    except AttributeError as error:
        return NativeStatus(False, f"{found[0]} is of another version of this package: {error}")
    return NativeStatus(True, str(found[0]))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give the library's functions their types."""
    for name, structure in LAUNCHES.items():
        function = getattr(library, f"turbofno_{name}")
        function.argtypes, function.restype = [ctypes.POINTER(structure), c_void_p], ctypes.c_int
    for name, structure in UNSUPPORTED.items():
        function = getattr(library, f"turbofno_{name}_unsupported")
        function.argtypes, function.restype = [ctypes.POINTER(structure)], ctypes.c_char_p
    for name, structure in WORKSPACES.items():
        function = getattr(library, f"turbofno_{name}_workspace_bytes")
        function.argtypes, function.restype = [ctypes.POINTER(structure)], ctypes.c_size_t
    library.turbofno_last_cuda_error.restype = ctypes.c_char_p
    return library


@cache
def _library() -> ctypes.CDLL:
    return declare(ctypes.CDLL(native_status().detail))


def unsupported(what: str, shape: Tile | Transform | Product) -> str | None:
    """Why the loaded kernels do not serve a 'tile', 'transform' or 'product' of this shape, or None if they do."""
    reason: bytes | None = getattr(_library(), f"turbofno_{what}_unsupported")(ctypes.byref(shape))
    return reason.decode() if reason is not None else None


def workspace_bytes(what: str, shape: Tile | Moments) -> int:
    """Bytes that a 'tile' program or 'moments' need besides their results, on the current device."""
    count: int = getattr(_library(), f"turbofno_{what}_workspace_bytes")(ctypes.byref(shape))
    return count


def launch(name: str, arguments: ctypes.Structure) -> None:
    """Launch kernels on the current stream of the current CUDA device; their tensors must live until it has passed.

    Raises:
        RuntimeError: CUDA refused; the message has its words.
    """
    library = _library()
    stream = torch.cuda.current_stream().cuda_stream
    status = getattr(library, f"turbofno_{name}")(ctypes.byref(arguments), stream)
    if status:
        words = library.turbofno_last_cuda_error().decode()
        raise RuntimeError(f"turbofno: {name} failed (status {status}); CUDA says: {words}")
