"""The library of CUDA kernels: find it, load it, say why not, and ask it which shapes it serves."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

import torch

LIBRARY = "libturbofno_cuda.so"


@dataclass(frozen=True, slots=True)
class NativeStatus:
    """Whether the CUDA kernels are loaded, from where or why not, in words."""

    loaded: bool
    detail: str


class LayerShape(ctypes.Structure):
    """turbofno_layer of csrc/api/turbofno.h; its pointers stay null here."""

    _fields_ = (
        ("batch", ctypes.c_int64),
        *(
            (name, ctypes.c_int32)
            for name in (
                *("c_in", "c_out", "h_in", "w_in", "h_out", "w_out"),
                *("modes_h", "modes_w", "activation", "multiprocessors"),
            )
        ),
        ("pointers", ctypes.c_void_p * 10),
    )


def _candidates() -> list[Path]:
    """Beside this file, and where an editable install put what it built."""
    import turbofno_ops

    return [Path(folder) / LIBRARY for folder in turbofno_ops.__path__]


@cache
def native_status() -> NativeStatus:
    """Load the CUDA kernels on the first call; afterwards the same answer. Starts nothing on a GPU."""
    if torch.version.cuda is None:
        return NativeStatus(False, f"PyTorch {torch.__version__} is built without CUDA")
    found = [path for path in _candidates() if path.is_file()]
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
    library.turbofno_unsupported.argtypes = [ctypes.POINTER(LayerShape)]
    library.turbofno_unsupported.restype = ctypes.c_char_p
    library.turbofno_workspace_bytes.argtypes = [ctypes.POINTER(LayerShape)]
    library.turbofno_workspace_bytes.restype = ctypes.c_size_t
    return library


@cache
def _library() -> ctypes.CDLL:
    return declare(ctypes.CDLL(native_status().detail))


def layer_shape(
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    out_size: tuple[int, ...],
    modes: tuple[int, ...],
) -> LayerShape:
    """One 1D or 2D layer as the C interface describes it; 1D is 2D with one row."""
    ones = (1,) * (2 - len(size))
    return LayerShape(
        batch=batch,
        c_in=channels[0],
        c_out=channels[1],
        **dict(zip(("h_in", "w_in"), ones + size, strict=True)),
        **dict(zip(("h_out", "w_out"), ones + out_size, strict=True)),
        **dict(zip(("modes_h", "modes_w"), ones + modes, strict=True)),
        multiprocessors=1,
    )


@lru_cache(maxsize=4096)
def unsupported(
    batch: int,
    channels: tuple[int, int],
    size: tuple[int, ...],
    out_size: tuple[int, ...],
    modes: tuple[int, ...],
) -> str | None:
    """Why the loaded kernels do not serve this shape, in words, or None if they do."""
    shape = layer_shape(batch, channels, size, out_size, modes)
    reason: bytes | None = _library().turbofno_unsupported(ctypes.byref(shape))
    return reason.decode() if reason is not None else None
