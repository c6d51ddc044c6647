"""Small files that exhaust the memory of an ordinary reader, make it loop without end, or crash it."""

from __future__ import annotations

import io
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable

_FULL = 450_000


def lying_deflate() -> bytes:
    """A .npz member of half a gigabyte that claims to be 1,000 bytes."""
    squeeze = zlib.compressobj(9, zlib.DEFLATED, -15)
    data = b"".join(squeeze.compress(bytes(1 << 24)) for _ in range(32)) + squeeze.flush()
    name = b"mean.npy"
    common = struct.pack("<HHHHHIIIHH", 20, 0, 8, 0, 0x21, 0, len(data), 1000, len(name), 0)
    local = b"PK\x03\x04" + common + name + data
    central = b"PK\x01\x02\x14\x00" + common + struct.pack("<HHHII", 0, 0, 0, 0, 0) + name
    return local + central + _end(1, len(central), len(local))


def lzma_member() -> bytes:
    """A member compressed by a method that zipfile unpacks without an output limit."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_LZMA) as archive:
        archive.writestr("mean.npy", bytes(1 << 22))
    return stream.getvalue()


def giant_directory() -> bytes:
    entry = b"PK\x01\x02" + bytes(24) + struct.pack("<H", 1) + bytes(16) + b"a"
    count = (9 << 20) // len(entry)
    return entry * count + _end(count % 65536, len(entry) * count, 0)


def tar_that_goes_back(kind: bytes) -> bytes:
    """A tar member of negative size, so that the next header is the member itself."""
    info = tarfile.TarInfo("model.pt")
    info.type, info.size = kind, -512
    return info.tobuf(tarfile.GNU_FORMAT) + bytes(10240)


def pax_that_goes_back() -> bytes:
    info = tarfile.TarInfo("model.pt")
    info.pax_headers = {"size": "-1536"}
    return info.tobuf(tarfile.PAX_FORMAT) + bytes(10240)


def doubled(levels: int = 60) -> bytes:
    """Instructions for a tuple that contains a tuple twice, which contains a tuple twice, and so on."""
    return b")" + b"2\x86" * levels


def _many_times(value: bytes, call: bytes, times: int) -> bytes:
    """A pickle that memoizes `value` and runs `call` on it `times` times."""
    return b"\x80\x02" + value + b"q\x000" + call * times + b"N."


def pickles() -> dict[str, bytes]:
    """Pickles that are short, but expensive to read."""
    pairs = b"](" + b"K\x01K\x01\x86" * 20_000 + b"e"
    numbers = b"](" + b"K\x01" * 100_000 + b"e"
    table = b"}(" + b"".join(b"X\x06\0\0\0%06dN" % i for i in range(50_000)) + b"u"
    stub = b"ctorch.nn.modules.linear\nLinear\n)R"
    text = b"X" + struct.pack("<I", 4 << 20) + b"x" * (4 << 20)
    storage = b"((X\x07\0\0\0storagectorch\nFloatStorage\n"
    return {
        "doubled tuples": b"\x80\x02" + doubled() + b".",
        "doubled lists": b"\x80\x02]q\x00" + b"](h\x00h\x00eq\x00" * 60 + b".",
        "doubled dict": b"\x80\x02}q\x00" + b"}(K\x01h\x00K\x02h\x00uq\x00" * 60 + b".",
        "doubled tuples as a name": b"\x80\x02" + doubled() + b"K\x01\x93.",
        "doubled tuples as arguments": b"\x80\x02ctorch\nSize\n" + doubled() + b"\x85R" * 2 + b".",
        "doubled tuples as an encoding": (
            b"\x80\x02c_codecs\nencode\nX\x01\0\0\0x" + doubled() + b"\x86R."
        ),
        "doubled tuples as the key of a storage": (
            b"\x80\x02" + storage[1:] + doubled() + b"X\x03\0\0\0cpuK\x01tQ."
        ),
        "a list inside itself": b"\x80\x02]q\x00h\x00a.",
        "many dicts of one list": _many_times(pairs, b"ccollections\nOrderedDict\nh\x00\x85R", 20_000),
        "many sets of one list": _many_times(numbers, b"cbuiltins\nset\nh\x00\x85R", 20_000),
        "many objects of one state": _many_times(table, stub + b"h\x00b", 10_000),
        "one text encoded many times": _many_times(
            text, b"c_codecs\nencode\nh\x00X\x06\0\0\0latin1\x86R", 10_000
        ),
        "nothing but sets": b"\x80\x04(" + b"\x8f" * 3_000_000 + b"t.",
        "nothing but marks": b"\x80\x04" + b"(" * 3_000_000 + b".",
        "an integer of megabytes": b"\x80\x02\x8b" + struct.pack("<i", 8 << 20) + b"\x7f" * (8 << 20) + b".",
        "a decimal of megabytes": b"F" + b"1" * (8 << 20) + b"\n.",
        "an axis for every number": (
            b"\x80\x02ctorch._utils\n_rebuild_tensor\n(NK\x00(" + b"K\x01" * _FULL + b"t("
            + b"K\x01" * _FULL + b"ttR."
        ),
        "an extension code": b"\x80\x02\x84\xff\xff\xff\x7f.",
    }  # fmt: skip


def files() -> dict[str, tuple[str, Callable[[], bytes]]]:
    """Archives by name: suffix and a function that returns the content."""
    return {
        "deflate that lies": (".npz", lying_deflate),
        "lzma": (".npz", lzma_member),
        "a giant directory": (".pt", giant_directory),
        "tar, negative size": (".mdlus", lambda: tar_that_goes_back(tarfile.REGTYPE)),
        "tar, negative size of a folder": (".mdlus", lambda: tar_that_goes_back(tarfile.DIRTYPE)),
        "tar, negative size of a long name": (".mdlus", lambda: tar_that_goes_back(b"L")),
        "tar, negative size of no known kind": (".mdlus", lambda: tar_that_goes_back(b"Z")),
        "tar, negative size in an extended header": (".mdlus", pax_that_goes_back),
        "a 10 GB header": (".safetensors", lambda: struct.pack("<Q", 10 << 30) + b"{}"),
        "overlapping tensors": (".safetensors", overlapping_tensors),
    }


def overlapping_tensors() -> bytes:
    one = b'"%d":{"dtype":"F32","shape":[2],"data_offsets":[%d,%d]}'
    header = b"{" + one % (0, 0, 8) + b"," + one % (1, 4, 12) + b"}"
    return struct.pack("<Q", len(header)) + header + bytes(12)


def _end(count: int, size: int, offset: int) -> bytes:
    return b"PK\x05\x06" + struct.pack("<HHHHIIH", 0, 0, count, count, size, offset, 0)
