"""Numbers of open connections: each front end counts its own, in memory that all of them share."""

from __future__ import annotations

import mmap
import os

_COUNT = "q"
_COUNT_BYTES = 8


def shared_counts(processes: int) -> int:
    """A memory file with a count for each of so many processes. Returns its descriptor."""
    file = os.memfd_create("turbofno-connections")
    os.ftruncate(file, processes * _COUNT_BYTES)
    return file


class OpenConnections:
    """Counts the open connections of this process, and adds those of the others.

    The kernel distributes connections by chance, so a share of the limit for each process would refuse some too early.
    """

    def __init__(self, counts: int | None = None, own: int = 0) -> None:
        """`counts` is of `shared_counts`, and is closed; `own` is the index of this process. By default it is the only one."""
        if counts is None:
            memory: bytearray | mmap.mmap = bytearray(_COUNT_BYTES)
        else:
            memory = mmap.mmap(counts, 0)
            os.close(counts)
        self._counts, self._own = memoryview(memory).cast(_COUNT), own
        # A predecessor's connections ended with it.
        self._counts[own] = 0

    def opened(self) -> int:
        """Count one more. Returns the number of all processes together."""
        self._counts[self._own] += 1
        return sum(self._counts)

    def closed(self) -> None:
        """Count one less."""
        self._counts[self._own] -= 1
