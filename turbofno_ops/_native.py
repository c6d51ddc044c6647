"""The library of CUDA kernels: find it, load it, say why not, and ask it which shapes it serves."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch

LIBRARY = "libturbofno_cuda.so"
LIBRARY_VARIABLE = "TURBOFNO_LIBRARY"
"""Names another build of the library, for a comparison or a proof."""


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Whether the CUDA kernels are loaded, from where or why not, in words."""

    loaded: bool
    detail: str


def _structure(name: str, sizes: tuple[str, ...], pointers: int) -> type[ctypes.Structure]:
    """A struct of csrc/api/turbofno.h; its pointers stay null here."""
    first, *others = sizes
    fields = (
        (first, ctypes.c_int64),
        *((other, ctypes.c_int32) for other in others),
        ("precision", ctypes.c_int32),
        ("multiprocessors", ctypes.c_int32),
        ("pointers", ctypes.c_void_p * pointers),
    )
    return type(name, (ctypes.Structure,), {"_fields_": fields})


STAGES = {
    "analysis": _structure("turbofno_analysis", ("rows", "points", "modes"), 4),
    "mix": _structure(
        "turbofno_mix", ("batch", "c_in", "c_out", "h_in", "h_out", "modes_h", "modes_w"), 6
    ),
    "rows": _structure(
        "turbofno_rows",
        ("batch", "c_in", "c_out", "h", "w", "modes", "next_modes", "projected", "activation"),
        12,
    ),
}


def _candidates() -> list[Path]:
    """What TURBOFNO_LIBRARY names; else beside this file, and where an editable install put what it built."""
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
            f"{LIBRARY} was not built; install where nvcc is, with pip's --no-build-isolation",
        )
    try:
        torch.ops.load_library(found[0])
    except OSError as error:
        return NativeStatus(False, f"{found[0]} cannot be loaded: {error}")
    return NativeStatus(True, str(found[0]))


def declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Give the C functions that need no GPU their types."""
    for stage, structure in STAGES.items():
        for what, result in (
            ("unsupported", ctypes.c_char_p),
            ("workspace_bytes", ctypes.c_size_t),
        ):
            function = getattr(library, f"turbofno_{stage}_{what}")
            function.argtypes, function.restype = [ctypes.POINTER(structure)], result
    return library


@cache
def _library() -> ctypes.CDLL:
    return declare(ctypes.CDLL(native_status().detail))


@lru_cache(maxsize=4096)
def unsupported(stage: str, **sizes: int) -> str | None:
    """Why the loaded kernels do not serve a stage ('analysis', 'mix', 'rows') of these sizes, or None if they do."""
    shape = STAGES[stage](**sizes, multiprocessors=1)
    reason: bytes | None = getattr(_library(), f"turbofno_{stage}_unsupported")(ctypes.byref(shape))
    return reason.decode() if reason is not None else None


@lru_cache(maxsize=4096)
def workspace_bytes(stage: str, **sizes: int) -> int:
    """Bytes that a stage of these sizes needs besides its results, on a GPU of so many multiprocessors."""
    shape = STAGES[stage](**sizes)
    count: int = getattr(_library(), f"turbofno_{stage}_workspace_bytes")(ctypes.byref(shape))
    return count
