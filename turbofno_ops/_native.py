"""The library of CUDA kernels: loading, structures (csrc/api/turbofno.h) and calls."""

from __future__ import annotations

import ctypes
import os
from ctypes import c_double, c_float, c_int32, c_int64, c_void_p
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import ClassVar

import torch

LIBRARY = "libturbofno_cuda.so"
MAX_STEPS = 16
MAX_SLABS = 8
PLAN_WORDS = 128
DOT_OUTPUTS = 4
FLUX_MODES = 16
FLOW_MODES = 10
ABI = 1310537932
LIBRARY_VARIABLE = "TURBOFNO_LIBRARY"
"""Environment variable with the path of another build of the library."""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Load status of the CUDA kernels.

    Attributes:
        loaded: True if the kernels are loaded.
        detail: Path of the library, or the reason why it is not loaded.
    """

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


class Window(ctypes.Structure):
    """turbofno_window"""

    _fields_: ClassVar = [
        ("outer", c_int64),
        *[(name, c_int32) for name in ("points", "rows", "pitch", "first")],
    ]


class Tile(ctypes.Structure):
    """turbofno_tile"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "outer")],
        *[(name, c_int32) for name in ("points", "width", "channels", "modes", "next_modes")],
        *[(name, c_int32) for name in ("precision", "multiprocessors", "shared_bytes")],
        *[(name, c_int32) for name in ("warpgroups", "weights_settled", "steps", "channels_last")],
        ("window", Window),
        *[(name, c_void_p) for name in ("mixed", "spectra", "synthesis", "analysis")],
        *[(name, c_void_p) for name in ("synthesis_phases", "analysis_phases", "workspace")],
        *[(name, c_void_p) for name in ("x_scales", "scales")],
        ("step", Step * MAX_STEPS),
    ]


class TilePlan(ctypes.Structure):
    """turbofno_tile_plan"""

    _fields_: ClassVar = [
        ("workspace_bytes", c_int64),
        ("cost", c_double),
        *[(name, c_int32) for name in ("segment_points", "stores_split", "maps_few")],
        ("opaque", c_int32 * PLAN_WORDS),
    ]


class RowAnalysis(ctypes.Structure):
    """turbofno_row_analysis"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "outer")],
        *[(name, c_int32) for name in ("points", "channels", "modes", "precision")],
        *[(name, c_int32) for name in ("multiprocessors", "shared_bytes", "warpgroups")],
        *[(name, c_int32) for name in ("weights_settled", "channels_last")],
        *[(name, c_void_p) for name in ("field", "spectra", "table", "workspace")],
    ]


class Operand(ctypes.Structure):
    """turbofno_operand"""

    _fields_: ClassVar = [
        *[(name, c_int32) for name in ("columns", "terms", "padded_columns", "precision")],
        *[(name, c_void_p) for name in ("matrix", "operand")],
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
        *[(name, c_int32) for name in ("c_in", "c_out", "others", "modes", "row_modes")],
        *[(name, c_int32) for name in ("precision", "multiprocessors", "weights_settled")],
        *[(name, c_int32) for name in ("channels_last", "input_channels_last")],
        *[(name, c_void_p) for name in ("input", "weight", "out")],
        ("slabs", c_int32),
        *[(name, c_void_p * MAX_SLABS) for name in ("parts", "products")],
        *[(name, c_void_p) for name in ("part_factors", "product_factors")],
    ]


class Spectral(ctypes.Structure):
    """turbofno_spectral"""

    _fields_: ClassVar = [
        ("batch", c_int64),
        *[(name, c_int32) for name in ("c_in", "c_out", "rows", "out_rows", "kept", "modes")],
        *[(name, c_int32) for name in ("row_modes", "clusters", "weights_settled")],
        *[(name, c_void_p) for name in ("input", "weight", "out", "in_table", "out_table")],
    ]


class BatchedSpectral(ctypes.Structure):
    """turbofno_batched_spectral"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "in_pitch", "out_pitch")],
        *[(name, c_int32) for name in ("channels", "rows", "out_rows", "kept", "others", "modes")],
        *[(name, c_int32) for name in ("row_modes", "precision", "multiprocessors")],
        *[(name, c_int32) for name in ("shared_bytes", "warpgroups", "weights_settled")],
        *[(name, c_void_p) for name in ("input", "weight", "out", "in_table", "out_table")],
    ]


class Moments(ctypes.Structure):
    """turbofno_moments"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("batch", "outer")],
        *[(name, c_int32) for name in ("points", "channels", "modes", "precision")],
        ("channels_last", c_int32),
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


class Fft(ctypes.Structure):
    """turbofno_fft"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("outer", "inner")],
        *[(name, c_int64) for name in ("in_outer", "in_inner", "in_point")],
        *[(name, c_int64) for name in ("out_outer", "out_inner", "out_point")],
        ("twiddle_points", c_int64),
        *[(name, c_int32) for name in ("points", "in_head", "in_tail", "out_head", "out_tail")],
        *[(name, c_int32) for name in ("kind", "inverse", "precision")],
        *[(name, c_int32) for name in ("multiprocessors", "shared_bytes")],
        ("scale", c_float),
        *[(name, c_void_p) for name in ("input", "out", "table")],
    ]


class PlaneAxis(ctypes.Structure):
    """turbofno_plane_axis"""

    _fields_: ClassVar = [
        *[(name, c_int32) for name in ("points", "in_head", "in_tail", "out_head", "out_tail")],
        ("table", c_void_p),
    ]


class PlaneTransform(ctypes.Structure):
    """turbofno_plane_transform"""

    _fields_: ClassVar = [
        ("planes", c_int64),
        *[(name, PlaneAxis) for name in ("height", "width")],
        *[(name, c_int32) for name in ("kind", "inverse", "shared_bytes")],
        ("scale", c_float),
        *[(name, c_void_p) for name in ("input", "out")],
    ]


class Ntt(ctypes.Structure):
    """turbofno_ntt"""

    _fields_: ClassVar = [
        ("lines", c_int64),
        *[(name, c_int32) for name in ("points", "prime", "inverse", "negacyclic")],
        *[(name, c_int32) for name in ("radix", "exchange", "multiprocessors", "shared_bytes")],
        *[(name, c_void_p) for name in ("input", "factor", "out", "table", "workspace")],
    ]


class Octaves(ctypes.Structure):
    """turbofno_octaves"""

    _fields_: ClassVar = [
        ("fields", c_int64),
        *[(name, c_int32) for name in ("places", "kept", "points", "octaves", "parts")],
        ("scale", c_float),
        *[(name, c_void_p) for name in ("spectrum", "place_octaves", "out")],
    ]


class Fluxes(ctypes.Structure):
    """turbofno_fluxes"""

    _fields_: ClassVar = [
        *[(name, c_int64) for name in ("fields", "a_pitch", "u_pitch")],
        *[(name, c_int32) for name in ("rows", "points")],
        *[(name, c_void_p) for name in ("a", "u", "across", "along", "out")],
    ]


class Flow(ctypes.Structure):
    """turbofno_flow"""

    _fields_: ClassVar = [
        ("fields", c_int64),
        *[(name, c_float) for name in ("viscosity", "time")],
        *[(name, c_void_p) for name in ("before", "after", "forcing", "out")],
    ]


LAUNCHES: dict[str, tuple[type[ctypes.Structure], ...]] = {
    "tile_program": (Tile, TilePlan),
    "analyze_rows": (RowAnalysis,),
    "pack_operand": (Operand,),
    "transform_axis": (Transform,),
    "multiply_modes": (Product,),
    "spectral_product": (Spectral,),
    "batched_spectral_product": (BatchedSpectral,),
    "spectral_moments": (Moments,),
    "field_moments": (Moments,),
    "norm_affine": (Norm,),
    "mixed_radix_fft": (Fft,),
    "plane_fft": (PlaneTransform,),
    "dense_dft": (Fft,),
    "half_fft": (Fft,),
    "number_theoretic_transform": (Ntt,),
    "octave_energies": (Octaves,),
    "project_fluxes": (Fluxes,),
    "vorticity_residual": (Flow,),
}
REFUSALS: dict[str, tuple[type[ctypes.Structure], ...]] = {
    "tile_prepare": (Tile, TilePlan),
    "analyze_rows_unsupported": (RowAnalysis,),
    "transform_unsupported": (Transform,),
    "product_unsupported": (Product,),
    "spectral_unsupported": (Spectral,),
    "batched_spectral_unsupported": (BatchedSpectral,),
    "mixed_radix_fft_unsupported": (Fft,),
    "plane_fft_unsupported": (PlaneTransform,),
    "dense_dft_unsupported": (Fft,),
    "half_fft_unsupported": (Fft,),
    "ntt_unsupported": (Ntt,),
}
SIZES: dict[str, tuple[type[ctypes.Structure], ...]] = {
    "analyze_rows_workspace_bytes": (RowAnalysis,),
    "operand_bytes": (Operand,),
    "moments_workspace_bytes": (Moments,),
    "ntt_workspace_bytes": (Ntt,),
}


def _candidates() -> list[Path]:
    """Return the path in TURBOFNO_LIBRARY, else paths in the package's folders (an editable install has two)."""
    import turbofno_ops

    if named := os.environ.get(LIBRARY_VARIABLE):
        return [Path(named)]
    return [Path(folder) / LIBRARY for folder in turbofno_ops.__path__]


@cache
def native_status() -> NativeStatus:
    """Load the CUDA kernels at the first call and return their status. Starts nothing on a GPU.

    Example:
        >>> native_status().loaded  # doctest: +SKIP
        True
    """
    if torch.version.cuda is None:
        return NativeStatus(False, f"PyTorch {torch.__version__} is built without CUDA")
    found = [path for path in _candidates() if path.is_file()]
    if not found and LIBRARY_VARIABLE in os.environ:
        return NativeStatus(
            False, f"{LIBRARY_VARIABLE} names {_candidates()[0]}, which is not a file"
        )
    if not found:
        return NativeStatus(
            False,
            f"{LIBRARY} is not installed; install the package from source on a machine with nvcc",
        )
    try:
        declare(ctypes.CDLL(str(found[0])))
    except OSError as error:
        return NativeStatus(False, f"{found[0]} cannot be loaded: {error}")
    except AttributeError as error:
        return NativeStatus(False, f"{found[0]} is of another version of this package: {error}")
    return NativeStatus(True, str(found[0]))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Declare the types of the library's functions. Raises AttributeError if it has another interface."""
    for name, structures in LAUNCHES.items():
        function = getattr(library, f"turbofno_{name}")
        function.argtypes = [*map(ctypes.POINTER, structures), c_void_p]
        function.restype = ctypes.c_int
    declare_host(library, REFUSALS, ctypes.c_char_p)
    declare_host(library, SIZES, ctypes.c_size_t)
    if (abi := library.turbofno_abi()) != ABI:
        raise AttributeError(f"its interface has the checksum {abi}, this package's has {ABI}")
    library.turbofno_last_cuda_error.restype = ctypes.c_char_p
    return library


def declare_host(
    library: ctypes.CDLL, functions: dict[str, tuple[type[ctypes.Structure], ...]], result: type
) -> None:
    """Declare the types of host functions."""
    for name, structures in functions.items():
        function = getattr(library, f"turbofno_{name}")
        function.argtypes, function.restype = list(map(ctypes.POINTER, structures)), result


@cache
def _library() -> ctypes.CDLL:
    return declare(ctypes.CDLL(native_status().detail))


def refusal(function: str, *arguments: ctypes.Structure) -> str | None:
    """Return the reason why the kernels do not support a shape, or None if they do; `function` is one of REFUSALS."""
    reason: bytes | None = getattr(_library(), f"turbofno_{function}")(*arguments)
    return reason.decode() if reason is not None else None


def bytes_of(function: str, *arguments: ctypes.Structure) -> int:
    """Return the bytes of a result or workspace; `function` is one of SIZES."""
    count: int = getattr(_library(), f"turbofno_{function}")(*arguments)
    return count


def launch(name: str, *arguments: ctypes.Structure) -> None:
    """Launch kernels on the current stream of the current CUDA device. Their tensors must live until they have run.

    Raises:
        RuntimeError: The launch failed; the message has CUDA's error.
    """
    library = _library()
    # the public API would construct a Stream object at every launch
    stream = torch._C._cuda_getCurrentRawStream(torch.cuda.current_device())
    status = getattr(library, f"turbofno_{name}")(*arguments, stream)
    if status:
        words = library.turbofno_last_cuda_error().decode()
        raise RuntimeError(f"turbofno: {name} failed (status {status}); CUDA error: {words}")
