"""Arrays of any library to the bytes of a request, and bytes of an answer to numpy arrays."""

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
    """Any array of real numbers, also a torch tensor with gradients or in bfloat16, as little-endian float32.

    Raises BadInput for anything else.
    """
    tensor: Any = values
    if hasattr(tensor, "detach") and not tensor.is_complex():
        # numpy takes no tensor of torch that needs gradients, is on a GPU, or holds bfloat16.
        tensor = tensor.detach().float().cpu()
    try:
        array = np.asarray(tensor)
    except ValueError as error:
        raise BadInput(f"{what} must be an array of real numbers: {error}") from None
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be an array of real numbers, got dtype {array.dtype}")
    return np.asarray(array, dtype="<f4", order="C")


def encode(inputs: Inputs) -> tuple[str, bytes]:
    """Media type and bytes of one array, or of named ones. Raises BadInput."""
    if isinstance(inputs, Mapping):
        return NPZ, npz_bytes(inputs)
    return NPY, _npy_bytes(real(inputs))


def npz_bytes(arrays: Mapping[str, ArrayLike]) -> bytes:
    """An uncompressed .npz archive of float32 arrays. Raises BadInput."""
    if not arrays:
        raise BadInput("there are no fields: give each input channel of the model by its name")
    buffer = io.BytesIO()
    # numpy.savez has keywords of its own, which may be names of channels.
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, values in arrays.items():
            archive.writestr(f"{name}.npy", _npy_bytes(real(values, repr(name))))
    return buffer.getvalue()


def decode(response: httpx.Response, media_type: str) -> Any:
    """The array, or the arrays by name, of an answer's body; the inverse of `encode`. Raises ServerError."""
    return npz_arrays(response) if media_type == NPZ else _npy_array(response)


def npz_arrays(response: httpx.Response) -> Named:
    """The arrays of an answer in .npz, by name. Raises ServerError."""
    try:
        with np.load(io.BytesIO(response.content), allow_pickle=False) as archive:
            return {name: np.asarray(array, np.float32) for name, array in archive.items()}
    except (ValueError, TypeError, AttributeError, EOFError, zipfile.BadZipFile):
        message = "the answer is not an .npz archive: is this a turbofno server?"
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
        message = "the answer is not a .npy array: is this a turbofno server?"
        raise ServerError(message, response) from None
