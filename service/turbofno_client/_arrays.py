"""Arrays of any library to request bodies, and response bodies to numpy arrays."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from typing import Any, TypeAlias

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._errors import BadInput, ServerError

NPY = "application/x-npy"
NPZ = "application/x-npz"

Fields: TypeAlias = NDArray[np.float32]
Named: TypeAlias = dict[str, Fields]
Inputs: TypeAlias = ArrayLike | Mapping[str, ArrayLike]


def real(values: ArrayLike, what: str = "fields") -> Fields:
    """Convert any array of real numbers to little-endian float32, also a torch tensor with gradients or in bfloat16.

    Raises BadInput for anything else.
    """
    tensor: Any = values
    if _is_masked(tensor):
        raise BadInput(
            f"{what} must be an array without masked values, which would be sent as what the mask hides: give them a "
            "value with .filled(value)"
        )
    try:
        if hasattr(tensor, "detach") and not tensor.is_complex():
            # numpy cannot convert torch tensors that require gradients, are on a GPU, hold bfloat16 or are lazily negated.
            tensor = tensor.detach().float().cpu().resolve_neg()
        array = np.asarray(tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadInput(f"{what} must be an array of real numbers: {error}") from None
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be an array of real numbers, got dtype {array.dtype}")
    return np.asarray(array, dtype="<f4", order="C")


def _is_masked(values: Any) -> bool:
    """True for an array with masked values, and for sequences that hold one, whose masks numpy would drop."""
    if isinstance(values, list | tuple):
        holders = (list, tuple, np.ma.MaskedArray)
        return any(_is_masked(value) for value in values if isinstance(value, holders))
    return bool(np.ma.is_masked(values))


def encode(inputs: Inputs) -> tuple[str, bytes]:
    """Encode an array as .npy, or a dict of arrays as .npz; return media type and bytes. Raises BadInput."""
    if isinstance(inputs, Mapping):
        return NPZ, npz_bytes(inputs)
    return NPY, _npy_bytes(real(inputs))


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    """Encode arrays as an uncompressed .npz archive of float32. Raises BadInput."""
    if not arrays:
        raise BadInput(
            "the dict of fields is empty, expected an array for each input channel of the model"
        )
    buffer = io.BytesIO()
    # numpy.savez takes names as keywords, which may collide with its own.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in arrays.items():
            archive.writestr(f"{name}.npy", _npy_bytes(real(values, repr(name))))
    return buffer.getvalue()


def decode(response: httpx.Response, media_type: str) -> Any:
    """Decode a response body to an array or a dict of arrays; the inverse of `encode`. Raises ServerError."""
    return npz_arrays(response) if media_type == NPZ else _npy_array(response)


def npz_arrays(response: httpx.Response) -> Named:
    """Decode an .npz response to arrays by name. Raises ServerError."""
    try:
        with np.load(io.BytesIO(response.content), allow_pickle=False) as archive:
            return {name: np.asarray(array, np.float32) for name, array in archive.items()}
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        message = "the response is not an .npz archive: is this a turbofno server?"
        raise ServerError(message, response) from None


def _npy_bytes(array: Fields) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, allow_pickle=False)
    return buffer.getvalue()


def _npy_array(response: httpx.Response) -> Fields:
    try:
        array = np.lib.format.read_array(io.BytesIO(response.content), allow_pickle=False)
        return np.asarray(array, dtype=np.float32)
    except (ValueError, TypeError):
        message = "the response is not a .npy array: is this a turbofno server?"
        raise ServerError(message, response) from None
