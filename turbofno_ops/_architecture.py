"""Check that the library of CUDA kernels holds code for a card: cards come out after libraries, and builds leave some out."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from turbofno_ops._native import native_status


def code_refusal(device: torch.device) -> str | None:
    """Why the loaded library cannot run on this GPU, in words and with what to do, or None if it can."""
    reason: bytes | None = _asked("turbofno_device_unsupported", ctypes.c_char_p, device)
    if reason is None:
        return None
    found = torch.cuda.get_device_properties(device)
    return (
        f"this build of {native_status().detail} has no code for {found.name} (sm_{found.major}{found.minor}): "
        f"{reason.decode()}; install the package again from its sources where nvcc is, for another card than "
        f"those of CMakeLists.txt with -C cmake.define.TURBOFNO_CUDA_ARCHITECTURES={found.major}{found.minor}"
    )


def has_warpgroups(device: torch.device) -> bool:
    """True if the code that runs on this GPU multiplies by warpgroups."""
    return bool(_asked("turbofno_device_warpgroups", ctypes.c_int, device))


def _asked(name: str, result: type, device: torch.device) -> Any:
    function = getattr(ctypes.CDLL(native_status().detail), name)
    function.argtypes, function.restype = [], result
    with torch.cuda.device(device):
        return function()
