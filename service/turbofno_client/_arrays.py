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

    Raises BadInput for anything else, and for what numpy would drop: masked values, units, names of swapped axes.
    """
    _check_labels(values, what)
    tensor: Any = values
    if _is_of_pint(tensor):
        # It warns if numpy converts it.
        tensor = tensor.magnitude
    try:
        # By the class: labels of pandas and xarray are attributes of an array.
        if hasattr(type(tensor), "detach") and not tensor.is_complex():
            # numpy cannot convert torch tensors that require gradients, are on a GPU, hold bfloat16 or are lazily negated.
            tensor = tensor.detach().float().cpu().resolve_neg()
        elif hasattr(type(tensor), "compute"):
            # numpy's conversion of Dask arrays drops masks.
            tensor = tensor.compute()
        # Variables of netCDF4 become masked arrays.
        array = np.asanyarray(tensor)
    except (ValueError, TypeError, RuntimeError) as error:
        raise BadInput(f"{what} must be an array of real numbers: {error}") from None
    _check_mask(array, what)
    if array.dtype.name == "bfloat16":
        array = array.astype(np.float32)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be an array of real numbers, got dtype {array.dtype}")
    return np.asarray(array, dtype="<f4", order="C")


def _check_labels(values: Any, what: str) -> None:
    """Raise BadInput for an array, or a sequence of arrays, with masked values, a unit, or axes such as (y, x)."""
    if isinstance(values, list | tuple):
        for value in values:
            # Most of a long list are numbers, of numpy too, which have no labels.
            if isinstance(value, list | tuple) or (
                hasattr(value, "dtype") and not isinstance(value, np.generic)
            ):
                _check_labels(value, what)
        return
    _check_mask(values, what)
    # Quantities of astropy, unyt and pint; other libraries have a unit as text, to be read by people.
    if isinstance(values, np.ndarray) or _is_of_pint(values):
        unit = str(getattr(values, "unit", getattr(values, "units", "")))
        # Columns of astropy have None.
        if unit not in ("", "dimensionless", "None"):
            raise BadInput(
                f"{what} must be plain numbers in the model's units, got the unit {unit}: convert them, for example with "
                "fields.to_value(unit) of astropy or fields.m_as(unit) of pint"
            )
    axes = [name for name in dimensions(values) if name in ("x", "y", "z")]
    if axes != sorted(axes):
        raise BadInput(
            f"{what} must have the axes {', '.join(sorted(axes))} in this order, got {', '.join(axes)}: use "
            f"fields.transpose(..., {', '.join(map(repr, sorted(axes)))}), or fields.to_numpy() if the model's axes "
            f"are {', '.join(axes)}"
        )


def _is_of_pint(values: Any) -> bool:
    return hasattr(type(values), "magnitude")


def _check_mask(values: Any, what: str) -> None:
    if np.ma.is_masked(values):
        raise BadInput(
            f"{what} must be an array without masked values, which would be sent as what the mask hides: give them a "
            "value with .filled(value)"
        )


def dimensions(values: Any) -> tuple[Any, ...]:
    """The names of the axes of an array of xarray or scipp, or a variable of netCDF4; () for any other array."""
    names = getattr(values, "dims", getattr(values, "dimensions", ()))
    return names if isinstance(names, tuple) else ()


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
    ((first, reference), *others) = arrays.items()
    expected = dimensions(reference)
    for name, values in others:
        found = dimensions(values)
        if found != expected and sorted(map(str, found)) == sorted(map(str, expected)):
            raise BadInput(
                f"{name!r} has the axes {', '.join(map(str, found))}, {first!r} has {', '.join(map(str, expected))}, expected "
                "the same order in all: use .transpose()"
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
