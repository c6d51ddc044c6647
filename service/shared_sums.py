"""What limits bound, summed up over all front ends: each counts its own part, in memory that all of them share.

The kernel distributes connections by chance, so a share of a limit for each front end would refuse some requests too early.
"""

from __future__ import annotations

import mmap
import os
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from turbofno.service.settings import Settings

_INTEGER_BYTES = 8


class SharedSum:
    """A sum to which each process adds."""

    def __init__(self, parts: memoryview | None = None, own: int = 0) -> None:
        """`parts` has a signed integer of 64 bits for each process, this one's at `own`; by default it is the only one."""
        self._parts = _integers(bytearray(_INTEGER_BYTES)) if parts is None else parts
        self._own = own

    def add(self, more: int) -> None:
        """Add to this process's part."""
        self._parts[self._own] += more

    @property
    def part(self) -> int:
        """This process's part."""
        return self._parts[self._own]

    @property
    def total(self) -> int:
        """The sum over all processes."""
        return sum(self._parts)


class SharedSums:
    """The sums of a service."""

    def __init__(self, settings: Settings, memory: str = "", own: int = 0) -> None:
        """`memory` is the file of a `SumsMemory`; `own` is the index of this front end.

        By default it is the only one.
        """
        parts: list[memoryview | None] = [None] * _count(settings)
        if memory:
            with open(memory, "r+b") as file:
                integers, each = _integers(mmap.mmap(file.fileno(), 0)), settings.frontends
            parts = [integers[at * each : (at + 1) * each] for at in range(len(parts))]
        self.connections, self.bytes, *of_models = [SharedSum(one, own) for one in parts]
        self.bytes_of_models = dict(zip(_limited_models(settings), of_models, strict=True))
        """Of the models whose bytes are limited."""


class SumsMemory:
    """The memory of the sums of all front ends, for the process that starts these."""

    def __init__(self, settings: Settings) -> None:
        descriptor = os.memfd_create("turbofno-sums")
        weakref.finalize(self, os.close, descriptor)
        self.file = f"/proc/{os.getpid()}/fd/{descriptor}"
        self._each = settings.frontends
        os.ftruncate(descriptor, _count(settings) * self._each * _INTEGER_BYTES)
        self._integers = _integers(mmap.mmap(descriptor, 0))

    def forget(self, index: int) -> None:
        """Count nothing any more of a front end that has ended."""
        for at in range(index, len(self._integers), self._each):
            self._integers[at] = 0


def _count(settings: Settings) -> int:
    return 2 + len(_limited_models(settings))


def _limited_models(settings: Settings) -> list[str]:
    return [name for name, one in settings.model_limits.items() if one.bytes]


def _integers(memory: bytearray | mmap.mmap) -> memoryview:
    return memoryview(memory).cast("q")
