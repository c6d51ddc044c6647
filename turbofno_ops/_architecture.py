"""Check which code the library of CUDA kernels holds for a GPU."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from turbofno_ops._native import native_status


def code_refusal(device: torch.device) -> str | None:
    """Return the reason why the loaded library cannot run on this GPU and the remedy, or None if it can."""
    reason: bytes | None = _query_library("turbofno_device_unsupported", ctypes.c_char_p, device)
    if reason is None:
        return None
    found = torch.cuda.get_device_properties(device)
    return (
        f"this build of {native_status().detail} has no code for {found.name} (sm_{found.major}{found.minor}): "
        f"{reason.decode()}; install the package from source on a machine with nvcc, with "
        f"-C cmake.define.TURBOFNO_CUDA_ARCHITECTURES={found.major}{found.minor} if CMakeLists.txt does not list this GPU"
    )


def has_warpgroups(device: torch.device) -> bool:
    """True if the code that runs on this GPU uses wgmma."""
    return bool(_query_library("turbofno_device_warpgroups", ctypes.c_int, device))


def cluster_count(device: torch.device) -> int:
    """Return how many clusters of 16 thread blocks this GPU runs at once, with the code that it has."""
    return int(_query_library("turbofno_device_clusters", ctypes.c_int, device))


def _query_library(name: str, result: type, device: torch.device) -> Any:
    function = getattr(ctypes.CDLL(native_status().detail), name)
    function.argtypes, function.restype = [], result
    with torch.cuda.device(device):
        return function()
