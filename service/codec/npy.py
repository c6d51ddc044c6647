"""The .npy and .npz formats, read without unpickling, without eval, and with a limit on inflation."""

from __future__ import annotations

import io
import math
import re
import struct
import zipfile
import zlib
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from turbofno.service.codec.fields import (
    INPUT,
    MAX_RANK,
    Array,
    ResponseData,
    bytes_of,
    check_names,
    shaped,
)
from turbofno.service.errors import BadRequest, InvalidField, NotAcceptable, PayloadTooLarge

_MAGIC = b"\x93NUMPY"
_MAX_HEADER = 4096
_MAX_MEMBERS = 64
_CENTRAL_ENTRY = b"PK\x01\x02"
_ENTRY = re.compile(
    r"\s*'(?P<key>descr|fortran_order|shape)'\s*:\s*"
    r"(?:'(?P<text>[^']*)'|(?P<flag>True|False)|\((?P<dims>[0-9, ]*)\))\s*(?:,|$)"
)
_FLOAT = re.compile(r"[<>=]f[248]")


def decode_npy(body: bytes | memoryview) -> dict[str, Array]:
    """Read one .npy array, named "input": a view of `body`, in the byte order of the file.

    Raises:
        BadRequest: not an .npy file, truncated, or followed by more bytes.
        InvalidField: a dtype other than float16, float32 or float64, such as object.
    """
    return {INPUT: _read_array(body, name="the .npy body")}


def decode_npz(body: bytes | memoryview, *, max_bytes: int) -> dict[str, Array]:
    """Read the arrays of an .npz archive, stored or deflated, of at most `max_bytes` after inflation.

    Raises:
        BadRequest: not a zip archive, damaged, encrypted, or with members other than .npy.
        InvalidField: an array with a dtype other than float16, float32 or float64.
        PayloadTooLarge: too many members, or more than `max_bytes` when inflated.
    """
    raw = bytes(body)
    # zipfile builds an object for each directory entry on opening, so count entries before.
    if raw.count(_CENTRAL_ENTRY) > _MAX_MEMBERS:
        raise PayloadTooLarge(
            f"the .npz archive has more than {_MAX_MEMBERS} members, expected one for each input"
        )
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return _read_members(archive, max_bytes=max_bytes)
    except _ZIP_ERRORS as error:
        raise BadRequest(f"the body is not a readable .npz archive: {error}") from None


def encode_npy(answer: ResponseData) -> tuple[bytes, memoryview]:
    """The pieces of an .npy file (float32, C order) of the only array of a response; the values are a view if possible.

    Raises:
        NotAcceptable: there are several arrays, which .npy cannot hold.
    """
    if len(answer.outputs) != 1:
        raise NotAcceptable(
            f"an .npy body holds one array, the response has {list(answer.outputs)}: send the inputs "
            f"as one array named '{INPUT}', or use 'Accept: application/x-npz'"
        )
    (array,) = answer.outputs.values()
    return _pieces(array)


def _pieces(array: NDArray[np.float32]) -> tuple[bytes, memoryview]:
    return _header(array.shape), bytes_of(array)


@lru_cache(maxsize=256)
def _header(shape: tuple[int, ...]) -> bytes:
    """The bytes before the values of an .npy file, for float32 of this shape in C order."""
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        header, {"descr": "<f4", "fortran_order": False, "shape": shape}
    )
    return header.getvalue()


def encode_npz(answer: ResponseData) -> tuple[bytes]:
    """Encode a response as an uncompressed .npz archive of float32 arrays."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_STORED) as archive:
        for name, array in answer.outputs.items():
            archive.writestr(f"{name}.npy", b"".join(_pieces(array)))
    return (buffer.getvalue(),)


_ZIP_ERRORS = (
    zipfile.BadZipFile,
    zipfile.LargeZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    UnicodeError,
    ValueError,
)
"""Exceptions of Python's zipfile for damaged, encrypted or unusual archives."""


def _read_members(archive: zipfile.ZipFile, *, max_bytes: int) -> dict[str, Array]:
    members = archive.infolist()
    if not members:
        raise BadRequest("the .npz archive is empty, expected an .npy member for each input")
    check_names([member.filename for member in members])
    total = sum(member.file_size for member in members)
    if total > max_bytes:
        raise PayloadTooLarge(
            f"the .npz archive inflates to {total} bytes, expected at most {max_bytes}: send fewer fields"
        )
    arrays: dict[str, Array] = {}
    for member in members:
        name = member.filename.removesuffix(".npy")
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise BadRequest(
                f"member '{name}' has an unsupported compression, expected none or deflate"
            )
        if name in arrays:
            raise BadRequest(f"the .npz archive has two members named '{name}', expected one")
        with archive.open(member) as stream:
            # Limit the read to the declared size: the stream may inflate to far more.
            data = stream.read(member.file_size)
        arrays[name] = _read_array(data, name=f"member '{name}'")
    return arrays


def _read_array(data: bytes | memoryview, *, name: str) -> Array:
    view = memoryview(data).cast("B")
    if bytes(view[:6]) != _MAGIC or len(view) < 10:
        raise BadRequest(f"{name} is not an .npy file: write it with numpy.save")
    major, minor = view[6], view[7]
    if major not in (1, 2, 3):
        raise BadRequest(f"{name} has .npy format version {major}, expected 1, 2 or 3")
    if minor:
        raise BadRequest(
            f"{name} has .npy format version {major}.{minor}, expected {major}.0: curl -d leaves zero bytes out, use "
            "--data-binary"
        )
    width = 2 if major == 1 else 4
    start = 8 + width
    length = int.from_bytes(view[8:start], "little")
    if len(view) < start or length > min(_MAX_HEADER, len(view) - start):
        raise BadRequest(
            f"{name} declares an .npy header of {length} bytes, expected at most {_MAX_HEADER} and at most the "
            f"{max(0, len(view) - start)} bytes that follow"
        )
    header = bytes(view[start : start + length]).decode("latin-1")
    dtype, fortran_order, shape = _parse_header(header, name=name)
    count = math.prod(shape)
    present = len(view) - start - length
    if present != count * dtype.itemsize:
        raise BadRequest(
            f"{name} has {present} bytes after its header, shape {list(shape)} of {dtype} needs "
            f"{count * dtype.itemsize}"
        )
    flat = np.frombuffer(view[start + length :], dtype=dtype, count=count)
    return shaped(flat, shape, name=name, order="F" if fortran_order else "C")


def _parse_header(header: str, *, name: str) -> tuple[np.dtype[np.floating], bool, tuple[int, ...]]:
    """Match the header's three entries, without evaluating it as numpy does."""
    text = header.strip()
    found: dict[str, str] = {}
    position, end = 1, len(text) - 1
    while position < end and (match := _ENTRY.match(text, position, end)):
        kind = {"descr": "text", "fortran_order": "flag", "shape": "dims"}[match["key"]]
        if match[kind] is None or match["key"] in found:
            break
        found[match["key"]] = match[kind]
        position = match.end()
    if text[:1] + text[-1:] != "{}" or text[position:end].strip() or len(found) != 3:
        raise InvalidField(
            f"{name} has an .npy header that does not describe a plain array: {text[:120]!r}; write it with numpy.save"
        )
    if not _FLOAT.fullmatch(found["descr"]):
        raise InvalidField(
            f"{name} has dtype {found['descr']!r}, expected float32, float16 or float64 "
            f"(object arrays are never unpickled): convert it with array.astype('float32')"
        )
    dims = [part.strip() for part in found["shape"].split(",") if part.strip()]
    if len(dims) > MAX_RANK or any(len(dim) > 18 or not dim.isdigit() for dim in dims):
        raise InvalidField(f"{name} has shape ({found['shape']}), which no model accepts")
    return np.dtype(found["descr"]), found["fortran_order"] == "True", tuple(map(int, dims))
