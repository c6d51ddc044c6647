"""Malicious archives and headers: links, names that lead out, duplicate members, false sizes, bombs."""

from __future__ import annotations

import io
import json
import stat
import struct
import tarfile
import time
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from turbofno.models.importers import archive as archive_module
from turbofno.models.importers.archive import Archive
from turbofno.models.importers.detect import read_checkpoint
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.tensor_files import read_npz, read_safetensors


def tar_of(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for info, content in members:
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()


def tar_member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def zip_of(*members: tuple[str | zipfile.ZipInfo, bytes]) -> bytes:
    stream = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(stream, "w") as archive:
        warnings.simplefilter("ignore", UserWarning)
        for name, content in members:
            archive.writestr(name, content)
    return stream.getvalue()


def symlink(name: str) -> zipfile.ZipInfo:
    info = zipfile.ZipInfo(name)
    info.external_attr = (stat.S_IFLNK | 0o777) << 16
    return info


def claiming(content: bytes, size: int) -> bytes:
    """The zip with the uncompressed size in its directory replaced (of its only member)."""
    raw = bytearray(content)
    entry = raw.index(b"PK\x01\x02")
    raw[entry + 24 : entry + 28] = struct.pack("<I", size)
    return bytes(raw)


def deflated(size: int) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("mean.npy", bytes(size))
    return stream.getvalue()


ARGS = ("args.json", b"{}")
CONTAINERS: dict[str, tuple[bytes, str]] = {
    "tar symlink": (tar_of((tar_member("model.pt", tarfile.SYMTYPE, "/etc/passwd"), b"")), "link"),
    "tar hard link": (tar_of((tar_member("model.pt", tarfile.LNKTYPE, "x"), b"")), "link"),
    "tar device": (tar_of((tar_member("model.pt", tarfile.CHRTYPE), b"")), "device"),
    "tar leads out": (tar_of((tar_member("../../model.pt"), b"x")), "leads out"),
    "tar absolute": (tar_of((tar_member("/etc/cron.d/x"), b"x")), "leads out"),
    "tar twice": (tar_of((tar_member("a"), b"1"), (tar_member("a"), b"2")), "occurs twice"),
    "tar truncated": (tar_of((tar_member("args.json"), bytes(4096)))[:2048], "damaged|truncated|no args"),
    "zip symlink": (zip_of((symlink("model.pt"), b"/etc/passwd"), ARGS), "link"),
    "zip leads out": (zip_of(("../model.pt", b"x"), ARGS), "leads out"),
    "zip absolute": (zip_of(("/model.pt", b"x"), ARGS), "leads out"),
    "zip backslash": (zip_of(("..\\model.pt", b"x"), ARGS), "leads out"),
    "zip twice": (zip_of(ARGS, ARGS), "occurs twice"),
    "zip claims more than the file": (claiming(zip_of(ARGS), 10**9), "more than the file"),
}  # fmt: skip


@pytest.mark.parametrize("name", CONTAINERS)
def test_container_is_refused(name: str, tmp_path: Path) -> None:
    content, says = CONTAINERS[name]
    (tmp_path / "model.mdlus").write_bytes(content)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ImportRefused, match=says):
        read_checkpoint(tmp_path / "model.mdlus")
    assert sorted(tmp_path.rglob("*")) == before


def test_an_honest_container_is_read(tmp_path: Path) -> None:
    for content in (zip_of(("a/b", b"12")), tar_of((tar_member("a/b"), b"12"))):
        with Archive(content, "honest") as archive:
            assert archive.names == ["a/b"]
            assert archive.read("a/b") == b"12"


def test_bomb_is_refused_before_it_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(archive_module, "MAX_INFLATED_BYTES", 1 << 20)
    content = deflated(8 << 20)
    assert len(content) < 20_000
    (tmp_path / "honest.npz").write_bytes(content)
    with pytest.raises(ImportRefused, match="unpacks to 8,388,608 bytes"):
        read_npz(tmp_path / "honest.npz")
    (tmp_path / "lying.npz").write_bytes(claiming(content, 1000))
    with pytest.raises(ImportRefused, match="damaged"):
        read_npz(tmp_path / "lying.npz")


def test_a_compressed_giant_pickle_in_a_torch_zip_is_refused(tmp_path: Path) -> None:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/data.pkl", bytes(65 << 20))
    (tmp_path / "model.pt").write_bytes(stream.getvalue())
    with pytest.raises(ImportRefused, match="at most 67,108,864 are allowed"):
        read_checkpoint(tmp_path / "model.pt")


def safetensors(header: object, data: bytes = b"", length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


@pytest.mark.parametrize(
    "content",
    [
        safetensors({}, length=10 << 30),
        safetensors({"a": {"dtype": "F32", "shape": [1 << 40], "data_offsets": [0, 4]}}, bytes(4)),
        safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 1 << 42]}}, bytes(4)),
        safetensors({"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}, bytes(8)),
        safetensors({"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}, bytes(4)),
        b"\x00" * 7,
    ],
    ids=["10 GB header", "shape", "offsets", "hole", "truncated", "too short"],
)  # fmt: skip
def test_safetensors_with_a_false_header_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(ImportRefused, match="not a valid safetensors file"):
        read_safetensors(tmp_path / "model.safetensors")


def npz_with(header: bytes) -> bytes:
    magic = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header
    return zip_of(("mean.npy", magic + bytes(8)))


@pytest.mark.parametrize(
    ("header", "says"),
    [
        (b"{'descr': '<f8', 'fortran_order': False, 'shape': (1000000000, 1000000)}\n", "does not fit"),
        (b"{'descr': '|O', 'fortran_order': False, 'shape': (1,)}\n", "an array of object"),
        (b"__import__('os').system('true')\n", "not a .npy file"),
        (b"(" * 5000 + b"\n", "not a .npy file"),
    ],
)  # fmt: skip
def test_npy_with_a_false_header_is_refused(header: bytes, says: str, tmp_path: Path) -> None:
    (tmp_path / "norm.npz").write_bytes(npz_with(header))
    with pytest.raises(ImportRefused, match=says):
        read_npz(tmp_path / "norm.npz")


def test_npz_as_numpy_writes_it_is_read(tmp_path: Path) -> None:
    arrays = {"mean": np.random.randn(3, 4).astype("f4").T, "std": np.random.rand(2)}
    np.savez_compressed(tmp_path / "norm.npz", **arrays)
    found = read_npz(tmp_path / "norm.npz")
    assert all(np.array_equal(found[name], array) for name, array in arrays.items())


def mutations(content: bytes, generator: torch.Generator) -> list[bytes]:
    """Copies that are truncated, have changed bytes, or a repeated piece."""

    def number(limit: int) -> int:
        return int(torch.randint(limit, (), generator=generator))

    result = [content[: number(len(content))] for _ in range(20)]
    for _ in range(40):
        raw = bytearray(content)
        for _ in range(1 + number(4)):
            raw[number(len(raw))] = number(256)
        result.append(bytes(raw))
    for _ in range(10):
        at, length = number(len(content)), number(64)
        result.append(content[:at] + content[at : at + length] + content[at:])
    return result


def _saved(legacy: bool) -> bytes:
    stream = io.BytesIO()
    state = {"fc0.weight": torch.randn(3, 2), "conv0.weights1": torch.randn(2, 2, 3) + 0j}
    torch.save(state, stream, _use_new_zipfile_serialization=not legacy)
    return stream.getvalue()


MAKERS: dict[str, Callable[[], bytes]] = {
    "torch zip.pt": lambda: _saved(legacy=False),
    "torch legacy.pt": lambda: _saved(legacy=True),
    "zip.mdlus": lambda: zip_of(("model.pt", _saved(legacy=False)), ARGS, ("metadata.json", b"{}")),
    "tar.mdlus": lambda: tar_of((tar_member("model.pt"), _saved(legacy=False)), (tar_member("args.json"), b"{}")),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
@pytest.mark.parametrize("name", MAKERS)
def test_damage_of_any_kind_ends_in_a_refusal(name: str, tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(torch.initial_seed() % 2**62)
    started = time.monotonic()
    for content in mutations(MAKERS[name](), generator):
        (tmp_path / name.split()[-1]).write_bytes(content)
        try:
            read_checkpoint(tmp_path / name.split()[-1])
        except ImportRefused:
            continue
    assert time.monotonic() - started < 20
