"""Shared memory: a front end's slots, and the engine's view of them.

Each front end makes its own memory, without a name, and lends it to the engines as an open file. So it ends with the
last process that has it open, whichever way that ends; and a front end that is started again starts with fresh
memory, in which nothing that its predecessor left behind can be written.
"""

from __future__ import annotations

import bisect
import math
import mmap
import os
import secrets
import weakref
from collections import deque
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from turbofno.service.errors import PayloadTooLarge, Unavailable
from turbofno.service.processes.messages import Attach
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from turbofno.service.engine.interface import Fields

    Span: TypeAlias = tuple[int, Sequence[int]]
    """A float32 array, C-contiguous, in a front end's memory: the byte where it begins, and its shape."""

HEAVY_BYTES = 1 << 20
"""Fields longer than this (about 0.2 ms) are copied off the event loop."""

_PAGE = 4096
_ALIGNMENT = 64
_FLOAT = np.dtype(np.float32)


class SlotMemory:
    """Memory that a front end owns and hands out in slots. A slot is free again once nothing refers to it."""

    def __init__(self, size: int) -> None:
        self._name = f"turbofno-{secrets.token_hex(8)}"
        self._fd = os.memfd_create(self._name)
        weakref.finalize(self, os.close, self._fd)
        os.ftruncate(self._fd, size)
        self._size = size
        self._map = mmap.mmap(self._fd, size)
        self._start: int = np.frombuffer(self._map, np.uint8).ctypes.data
        self._free = [(0, size)]
        """Start and stop, in bytes; in order, never adjoining."""
        self._slots: dict[int, tuple[weakref.ref[NDArray[np.uint8]], int, int]] = {}
        """By the identity of a reference to each: such an array has no hash."""
        # Garbage is collected on any thread, at any time, even while the list above changes.
        self._given_back: deque[weakref.ref[NDArray[np.uint8]]] = deque()

    @property
    def used_bytes(self) -> int:
        """Bytes in slots."""
        self._take_back()
        return self._size - sum(stop - start for start, stop in self._free)

    def attachment(self) -> Attach:
        """What an engine needs to see this memory."""
        return Attach(os.getpid(), self._fd, self._name, self._size)

    def slot(self, size: int) -> NDArray[np.uint8]:
        """`size` uninitialised bytes, page-aligned.

        Raises:
            PayloadTooLarge: there never is room for so many.
            Unavailable: there is none now.
        """
        self._take_back()
        needed = max(1, -(-size // _PAGE)) * _PAGE
        if needed > self._size:
            raise PayloadTooLarge(
                f"the request's fields, or its answer, take {size} bytes, the limit is {self._size} "
                f"({env_name('shared_memory_bytes')}); send fewer fields in a request"
            )
        # First fit: low pages are used again and again, and high ones never touched, so never committed.
        index = next((i for i, (a, b) in enumerate(self._free) if b - a >= needed), None)
        if index is None:
            raise Unavailable(
                f"the shared memory of this front end has no room for {size} more bytes: "
                f"it has {self._size} ({env_name('shared_memory_bytes')}). Retry after the time in Retry-After.",
                retry_after=1.0,
            )
        start, stop = self._free[index]
        if stop - start == needed:
            del self._free[index]
        else:
            self._free[index] = (start + needed, stop)
        array = np.frombuffer(self._map, np.uint8, size, start)
        given = weakref.ref(array, self._given_back.append)
        self._slots[id(given)] = given, start, start + needed
        return array

    def buffer(self, size: int, aligned_at: int) -> memoryview:
        """`size` bytes, the one at `aligned_at` on a 64-byte boundary."""
        padding = -aligned_at % _ALIGNMENT
        return memoryview(self.slot(size + padding).data)[padding:]

    def array(self, shape: tuple[int, ...]) -> Fields:
        """An uninitialised float32 array."""
        return np.ndarray(shape, _FLOAT, self.slot(4 * math.prod(shape)))

    def holds(self, fields: Fields) -> bool:
        """Whether an array lies in this memory."""
        return 0 <= _address(fields) - self._start < self._size

    def span(self, fields: Fields) -> Span:
        """Place of an array of this memory."""
        return _address(fields) - self._start, fields.shape

    def at(self, span: Span) -> Fields:
        """The float32 array there, for as long as somebody else holds its slot."""
        start, shape = span
        return np.ndarray(shape, _FLOAT, self._map, start)

    def _take_back(self) -> None:
        while self._given_back:
            _, start, stop = self._slots.pop(id(self._given_back.popleft()))
            index = bisect.bisect(self._free, (start, stop))
            if index < len(self._free) and self._free[index][0] == stop:
                stop = self._free.pop(index)[1]
            if index and self._free[index - 1][1] == start:
                start = self._free.pop(index - 1)[0]
                index -= 1
            self._free.insert(index, (start, stop))


class AttachedMemory:
    """A front end's memory, as an engine sees it; unmapped once no array refers to it."""

    def __init__(self, attachment: Attach) -> None:
        """Raises OSError if the front end is gone."""
        path = f"/proc/{attachment.pid}/fd/{attachment.fd}"
        # Another process may have been given the number of one that is gone.
        if attachment.name not in os.readlink(path):
            raise FileNotFoundError(f"{path} is not {attachment.name}")
        fd = os.open(path, os.O_RDWR)
        try:
            # one array, of which all others are views: it ends before the memory does
            self.bytes = np.frombuffer(mmap.mmap(fd, attachment.size), np.uint8)
            self._start = _address(self.bytes)
        finally:
            os.close(fd)

    def span(self, fields: Fields) -> Span:
        """Place of an array of this memory."""
        return _address(fields) - self._start, fields.shape

    def array(self, span: Span) -> Fields:
        """The float32 array there."""
        start, shape = span
        return np.ndarray(shape, _FLOAT, self.bytes, start)


def _address(array: NDArray[Any]) -> int:
    address: int = array.__array_interface__["data"][0]
    return address
