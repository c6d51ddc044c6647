"""Zip and tar archives read in memory, without extraction; sizes in the directory are checked before reading."""

from __future__ import annotations

import io
import stat
import tarfile
import zipfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from types import TracebackType
from typing import BinaryIO, Self

from turbofno.models.importers.refusal import ImportRefused

MAX_MEMBERS = 100_000
# zipfile reads the whole directory before it returns.
MAX_DIRECTORY_BYTES = 8 << 20
# Only .npz files are compressed; normalisers are small.
MAX_INFLATED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    stored: bool


class Archive:
    """The regular files in a zip or tar file, by name. Use it as a context manager.

    `source` is a path or the archive's bytes; `label` names it in error messages.

    Raises:
        ImportRefused: links, devices, names that lead out of the archive, duplicate names, members
            larger than the file itself, compression other than deflate, more than 256 MiB unpacked.
    """

    def __init__(self, source: Path | bytes, label: str = "") -> None:
        self.label = label or str(source)
        self._file: BinaryIO = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        self._read: Callable[[str], bytes]
        try:
            # A tar file may pass the zip test by chance, so test for tar first.
            members = self._open_tar() if is_tar(self._file) else self._open_zip()
            self._check(members)
        except ImportRefused:
            self._file.close()
            raise
        except Exception as error:
            # zipfile and tarfile raise many kinds of errors on damaged files.
            self._file.close()
            raise ImportRefused(f"{self.label}: damaged or truncated archive: {error}") from error
        self._sizes = {member.name: member.size for member in members}

    @property
    def names(self) -> list[str]:
        """The members' names in archive order."""
        return list(self._sizes)

    def size(self, name: str) -> int:
        """Bytes in the member `name`."""
        return self._sizes[name]

    def read(self, name: str, *, limit: int | None = None) -> bytes:
        """The content of the member `name`, of at most `limit` bytes.

        Raises:
            ImportRefused: no such member, a larger one, or a damaged one.
        """
        if name not in self._sizes:
            raise ImportRefused(f"{self.label}: the archive has no {name}")
        if limit is not None and self._sizes[name] > limit:
            raise ImportRefused(
                f"{self.label}: {name} has {self._sizes[name]:,} bytes; at most {limit:,} are allowed"
            )
        try:
            content = self._read(name)
        except Exception as error:
            raise ImportRefused(f"{self.label}: {name} is damaged or truncated: {error}") from error
        if len(content) != self._sizes[name]:
            raise ImportRefused(f"{self.label}: {name} is truncated")
        return content

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.close()

    def _open_zip(self) -> list[_Member]:
        archive = zipfile.ZipFile(_Directory(self._file))
        archive.fp = self._file

        def read(name: str) -> bytes:
            # Reading one byte past the claimed size makes zipfile compare the checksum.
            with archive.open(name) as member:
                return member.read(self._sizes[name] + 1)

        self._read = read
        members = []
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile has no output limit for the other methods
                raise ImportRefused(
                    f"{self.label}: {info.filename} is compressed by method {info.compress_type}, "
                    "expected none or deflate"
                )
            mode = info.external_attr >> 16
            if mode and stat.S_IFMT(mode) not in (0, stat.S_IFREG, stat.S_IFDIR):
                raise ImportRefused(
                    f"{self.label}: {info.filename} is a link or device, not a file"
                )
            if info.orig_filename != info.filename:
                raise ImportRefused(
                    f"{self.label}: {info.orig_filename!r} is not a plain file name"
                )
            if not info.is_dir():
                stored = info.compress_type == zipfile.ZIP_STORED
                members.append(_Member(info.filename, info.file_size, stored))
        return members

    def _open_tar(self) -> list[_Member]:
        archive = tarfile.TarFile(fileobj=self._file)
        infos: dict[str, tarfile.TarInfo] = {}
        members = []
        for count, info in enumerate(archive):
            if count > MAX_MEMBERS or info.size < 0:
                # a negative size makes tarfile loop over the same member
                raise ImportRefused(
                    f"{self.label}: it has more than {MAX_MEMBERS:,} members, or one of {info.size:,} bytes"
                )
            if info.isdir():
                continue
            if not info.isreg() or info.issparse():
                raise ImportRefused(f"{self.label}: {info.name} is a link or device, not a file")
            infos[info.name] = info
            members.append(_Member(info.name, info.size, stored=True))

        def read(name: str) -> bytes:
            file = archive.extractfile(infos[name])
            return file.read() if file is not None else b""

        self._read = read
        return members

    def _check(self, members: Sequence[_Member]) -> None:
        if len(members) > MAX_MEMBERS:
            raise ImportRefused(
                f"{self.label}: it has {len(members):,} members; at most {MAX_MEMBERS:,} are allowed"
            )
        for name, count in Counter(member.name for member in members).items():
            if count > 1:
                raise ImportRefused(
                    f"{self.label}: {name} occurs twice, and other programs may read the other copy"
                )
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
                raise ImportRefused(f"{self.label}: the name {name!r} leads out of the archive")
        stored = sum(member.size for member in members if member.stored)
        if stored > self._file.seek(0, io.SEEK_END):
            raise ImportRefused(
                f"{self.label}: its members claim {stored:,} bytes, more than the file has; the file is damaged "
                "or malicious"
            )
        inflated = sum(member.size for member in members if not member.stored)
        if inflated > MAX_INFLATED_BYTES:
            raise ImportRefused(
                f"{self.label}: it unpacks to {inflated:,} bytes; at most {MAX_INFLATED_BYTES:,} are "
                "allowed"
            )


class _Directory:
    """A file that refuses the large read with which zipfile would load a huge directory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise ImportRefused(
                f"the archive's directory has {size:,} bytes; at most {MAX_DIRECTORY_BYTES:,} are "
                "allowed"
            )
        return self._file.read(size)


def is_zip(file: BinaryIO) -> bool:
    """True if `file` ends like a zip archive, perhaps a damaged one."""
    try:
        return zipfile.is_zipfile(file)
    except (zipfile.BadZipFile, ValueError):
        return True


def is_tar(file: BinaryIO) -> bool:
    """True if `file` begins like an uncompressed tar archive (tarfile.is_tarfile also accepts compressed ones)."""
    file.seek(0)
    magic = file.read(512)[257:262]
    file.seek(0)
    return magic == b"ustar"
