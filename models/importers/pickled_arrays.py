"""numpy arrays and scalars in pickles, rebuilt from the bytes in their stubs."""

from __future__ import annotations

import math
import reprlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Stub

_KINDS = {"f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "b1"}
_MAX_AXES = 16


def is_array(value: Any) -> bool:
    """True if `value` is the stub of a numpy array or scalar."""
    return isinstance(value, Stub) and value.cls.name in ("_reconstruct", "scalar", "_frombuffer")


def as_array(stub: Stub) -> NDArray[Any]:
    """The numpy array or scalar of a stub.

    Raises:
        ImportRefused: not real numbers, or a shape that does not fit the bytes.
    """
    try:
        if stub.cls.name == "scalar":
            dtype, raw = stub.args
            return _array(dtype, raw, (), "C")
        if stub.cls.name == "_frombuffer":
            raw, dtype, shape, order = stub.args
            return _array(dtype, raw, shape, order)
        _, shape, dtype, fortran, raw = stub.attributes["__state__"]
        return _array(dtype, raw, shape, "F" if fortran else "C")
    except (KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
        raise ImportRefused(f"the pickle holds a damaged numpy array: {error}") from error


def _array(dtype: Any, raw: Any, shape: Any, order: Any) -> NDArray[Any]:
    kind = dtype.args[0] if isinstance(dtype, Stub) and dtype.args else None
    if kind not in _KINDS or not isinstance(raw, bytes | bytearray):
        raise ImportRefused(f"the pickle holds a numpy array of {kind!r}, expected real numbers")
    state = dtype.attributes.get("__state__", (3, "<"))
    byte_order = state[1] if state[1] in ("<", ">") else "<"
    real = np.dtype(f"{byte_order}{kind}")
    if (
        not isinstance(shape, tuple)
        or len(shape) > _MAX_AXES
        or not all(isinstance(n, int) and 0 <= n <= len(raw) for n in shape)
    ):
        raise ImportRefused(
            f"the pickle holds a numpy array of impossible shape {reprlib.repr(shape)}"
        )
    if math.prod(shape) * real.itemsize != len(raw):
        raise ImportRefused("the pickle holds a numpy array whose shape does not fit its bytes")
    return np.frombuffer(raw, real).reshape(shape, order="F" if order == "F" else "C")
