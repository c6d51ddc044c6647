"""Files of a model folder: read once into private memory, and no link leads out of the folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class FileRefused(ValueError):
    """A file that a model folder must not hold. The message names it and says why."""


def is_inside(path: Path, *folders: Path) -> bool:
    """True if `path`, with every link followed, lies in one of the folders."""
    real = path.resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in folders)


def read_inside(file: Path, *folders: Path, limit: int) -> bytes:
    """The content of a file in one of `folders`, of at most `limit` bytes.

    The copy is the process's own. A mapped file is not: who shortens it ends the process with SIGBUS.

    Raises:
        FileRefused: a link that leads elsewhere, something that is no regular file, or too many bytes.
        OSError: it is not there, or cannot be read.
    """
    real = file.resolve(strict=True)
    if not is_inside(real, *folders):
        raise FileRefused(
            f"{file} is a link that leads out of {folders[0]}: put the file itself there"
        )
    with open(real, "rb", opener=_open_without_waiting) as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise FileRefused(f"{file} is no regular file")
        if found.st_size > limit:
            raise FileRefused(
                f"{file} has {found.st_size} bytes, more than the {limit} that it may have"
            )
        return stream.read(found.st_size)


def _open_without_waiting(path: str, flags: int) -> int:
    """Open it as it was resolved; a pipe must not keep the reader waiting for a writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
