"""Readers of safetensors, .npz and .json files, which check every claimed size first and load no pickles."""

from __future__ import annotations

import io
import json
import math
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from turbofno.models.core.stand_in import stand_in
from turbofno.models.importers.archive import Archive
from turbofno.models.importers.refusal import ImportRefused

_MAX_JSON_BYTES = 64 << 20
_MAX_AXES = 16


def read_safetensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file; the library checks the header against the file's size."""
    content = path.read_bytes()
    if instead := stand_in(content):
        raise ImportRefused(f"{path}: {instead}")
    try:
        return load(content)
    except (SafetensorError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ImportRefused(f"{path}: not a valid safetensors file: {error}") from error


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays in a .npz file, by name."""
    with Archive(path) as archive:
        return {
            name.removesuffix(".npy"): _npy(archive.read(name), f"{path}: {name}")
            for name in archive.names
        }


def read_json(path: Path) -> dict[str, Any]:
    """The object in a .json file."""
    if path.stat().st_size > _MAX_JSON_BYTES:
        raise ImportRefused(
            f"{path} has more than {_MAX_JSON_BYTES:,} bytes, too many for settings"
        )
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ImportRefused(f"{path} is not valid JSON: {error}") from None
    if not isinstance(content, dict):
        raise ImportRefused(f"{path} must hold a JSON object")
    return content


def _npy(content: bytes, label: str) -> NDArray[Any]:
    stream = io.BytesIO(content)
    try:
        version = np.lib.format.read_magic(stream)
        reader = np.lib.format.read_array_header_1_0
        if version != (1, 0):
            reader = np.lib.format.read_array_header_2_0
        shape, fortran, dtype = reader(stream)
    except (ValueError, TypeError, SyntaxError, RecursionError, MemoryError, TokenError) as error:
        raise ImportRefused(f"{label}: not a .npy file: {str(error)[:200]}") from None
    if dtype.kind not in "fiub" or dtype.hasobject:
        raise ImportRefused(f"{label} is an array of {dtype}, expected real numbers")
    values = memoryview(content)[stream.tell() :]
    fits = len(shape) <= _MAX_AXES and all(0 <= n <= len(values) for n in shape)
    if not fits or math.prod(shape) * dtype.itemsize != len(values):
        raise ImportRefused(
            f"{label} is damaged: shape {list(shape)} of {dtype} does not fit its {len(values):,} bytes"
        )
    return np.frombuffer(values, dtype).reshape(shape, order="F" if fortran else "C")


def as_tensor(value: Any, label: str) -> Tensor:
    """An array, tensor, nested list or number as a float64 tensor."""
    try:
        if isinstance(value, Tensor) and value.is_complex():
            raise TypeError("complex values")
        if isinstance(value, Tensor):
            # numpy has no bfloat16 and no lazily negated arrays
            value = value.double().resolve_neg()
        array = np.asarray(value, dtype=np.float64)
    except (ValueError, TypeError, OverflowError) as error:
        raise ImportRefused(f"{label} must be real numbers: {error}") from None
    if array.size == 0:
        raise ImportRefused(f"{label} is empty")
    if not np.isfinite(array).all():
        raise ImportRefused(f"{label} holds NaN or infinite values")
    return torch.tensor(array, dtype=torch.float64)
