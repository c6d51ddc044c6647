"""Zip and tar containers read in memory: nothing is extracted, and what they claim is checked before it is read."""

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
# The zip library reads the whole directory into objects before anything can be asked of it.
MAX_DIRECTORY_BYTES = 8 << 20
# Only .npz files are compressed; fields of normalisers are small, and floats hardly shrink.
MAX_INFLATED_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    size: int
    stored: bool


class Archive:
    """The regular files in a zip or tar file, by name. Use it as a context manager.

    The archive is a file, or its bytes; `label` is what messages call it.

    Raises:
        ImportRefused: links, devices, names that lead out of the archive, names that occur twice,
            members larger than the file that holds them, compression other than deflate or that
            unpacks to more than 256 MiB.
    """

    def __init__(self, source: Path | bytes, label: str = "") -> None:
        self.label = label or str(source)
        self._file: BinaryIO = source.open("rb") if isinstance(source, Path) else io.BytesIO(source)
        self._read: Callable[[str], bytes]
        try:
            # Old tar checkpoints can happen to satisfy the zip test, so tar comes first.
            members = self._open_tar() if is_tar(self._file) else self._open_zip()
            self._check(members)
        except ImportRefused:
            self._file.close()
            raise
        except Exception as error:
            # On hostile input the parsers of the standard library raise errors of many kinds.
            self._file.close()
            raise ImportRefused(f"{self.label}: damaged or truncated archive: {error}") from error
        self._sizes = {member.name: member.size for member in members}

    @property
    def names(self) -> list[str]:
        """The members' names, in the order of the archive."""
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
            raise ImportRefused(f"{self.label}: there is no {name} in the archive")
        if limit is not None and self._sizes[name] > limit:
            raise ImportRefused(
                f"{self.label}: {name} has {self._sizes[name]:,} bytes, more than the {limit:,} it may have"
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
            # one byte more than claimed: at the end of the member its checksum is compared
            with archive.open(name) as member:
                return member.read(self._sizes[name] + 1)

        self._read = read
        members = []
        for info in archive.infolist():
            if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # the zip library unpacks the other methods without any bound
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
                # a negative size leads back to a member that was read already, for ever
                raise ImportRefused(
                    f"{self.label}: more than {MAX_MEMBERS:,} members, or one of {info.size:,} bytes"
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
                f"{self.label}: {len(members):,} members, more than a checkpoint has"
            )
        for name, count in Counter(member.name for member in members).items():
            if count > 1:
                raise ImportRefused(
                    f"{self.label}: {name} occurs twice, so that readers may differ on what is in it"
                )
            parts = PurePosixPath(name)
            if parts.is_absolute() or ".." in parts.parts or "\\" in name or "\0" in name:
                raise ImportRefused(f"{self.label}: the name {name!r} leads out of the archive")
        stored = sum(member.size for member in members if member.stored)
        if stored > self._file.seek(0, io.SEEK_END):
            raise ImportRefused(
                f"{self.label}: its members claim {stored:,} bytes, more than the file has: damaged, "
                "or a bomb"
            )
        inflated = sum(member.size for member in members if not member.stored)
        if inflated > MAX_INFLATED_BYTES:
            raise ImportRefused(
                f"{self.label}: unpacks to {inflated:,} bytes, more than the "
                f"{MAX_INFLATED_BYTES:,} allowed"
            )


class _Directory:
    """A file as the zip library sees it while it reads the directory, which may not be huge."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.seek, self.tell = file.seek, file.tell

    def read(self, size: int = -1) -> bytes:
        if size > MAX_DIRECTORY_BYTES:
            raise ImportRefused(
                f"an archive with a directory of {size:,} bytes, more than the {MAX_DIRECTORY_BYTES:,} of "
                "any checkpoint"
            )
        return self._file.read(size)


def is_zip(file: BinaryIO) -> bool:
    """Whether `file` ends as a zip archive does, be it a damaged one."""
    try:
        return zipfile.is_zipfile(file)
    except (zipfile.BadZipFile, ValueError):
        return True


def is_tar(file: BinaryIO) -> bool:
    """Whether an uncompressed tar archive starts at the beginning of `file` (tarfile would also decompress)."""
    file.seek(0)
    magic = file.read(512)[257:262]
    file.seek(0)
    return magic == b"ustar"
