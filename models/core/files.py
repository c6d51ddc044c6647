"""Reading files of a model folder: into private memory, and never through a link out of the folder."""

from __future__ import annotations

import os
import stat
from pathlib import Path


class FileRefused(ValueError):
    """A file that may not be read. The message names it and gives the reason."""


def is_inside(path: Path, *folders: Path) -> bool:
    """True if `path`, with every link followed, lies in one of the folders."""
    real = path.resolve()
    return any(real.is_relative_to(folder.resolve()) for folder in folders)


def read_inside(file: Path, *folders: Path, limit: int) -> bytes:
    """The content of a file in one of `folders`, of at most `limit` bytes.

    The file is copied, not mapped: if a mapped file is truncated, its reader dies of SIGBUS.

    Raises:
        FileRefused: a link out of the folders, not a regular file, or more than `limit` bytes.
        OSError: the file is missing or cannot be read.
    """
    # not Path.resolve, which before Python 3.13 raises RuntimeError for a loop
    real = Path(os.path.realpath(file, strict=True))
    if not is_inside(real, *folders):
        raise FileRefused(
            f"{file} is a link that leads out of {folders[0]}: replace the link by the file itself"
        )
    with open(real, "rb", opener=_open_nonblocking) as stream:
        found = os.fstat(stream.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise FileRefused(f"{file} is not a regular file")
        if found.st_size > limit:
            raise FileRefused(f"{file} has {found.st_size} bytes; at most {limit} are allowed")
        return stream.read(found.st_size)


def _open_nonblocking(path: str, flags: int) -> int:
    """Open without following links, and without blocking on a pipe."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
