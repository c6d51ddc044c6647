"""Shared memory: a front end's slots, and the engine's view of them.

Each front end creates its own anonymous memory file, which engines open through /proc. It disappears with the last
process that has it open, and a restarted front end gets new memory, to which no old request can write.
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import math
import mmap
import os
import secrets
import weakref
from collections import deque
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from turbofno.service.engine.interface import Fields
from turbofno.service.errors import PayloadTooLarge, Unavailable
from turbofno.service.processes.messages import Attach
from turbofno.service.settings import env_name

Span: TypeAlias = tuple[int, Sequence[int]]
"""A C-contiguous float32 array in a front end's memory: byte offset and shape."""

HEAVY_BYTES = 1 << 20
"""Larger arrays (copying takes over about 0.2 ms) are copied off the event loop."""

KEPT_BYTES = 128 << 20
"""What is beyond is given back to the system whenever no slot is in use, unless a memory keeps more."""

_PAGE = 4096
_ALIGNMENT = 64
_FLOAT = np.dtype(np.float32)
_NO_BYTES = ctypes.c_char * 0


class _Memory:
    """A memory file, mapped until no array refers to it."""

    def __init__(self, mapping: mmap.mmap) -> None:
        self.bytes = np.frombuffer(mapping, np.uint8)
        self._start = _address(self.bytes)

    def span(self, fields: Fields) -> Span:
        return _address(fields) - self._start, fields.shape

    def view(self, span: Span) -> Fields:
        """The array of a span. In a front end another array has to hold its slot."""
        start, shape = span
        return np.ndarray(shape, _FLOAT, self.bytes, start)


class SlotMemory(_Memory):
    """A front end's memory, allocated in slots. A slot is freed once no array refers to it.

    Its first `kept` bytes are never given back to the system: a GPU's engine page-locks them, and would go on to use pages that
    the memory no longer has. A slot is partly in them only if there is room nowhere else: the GPU cannot access it directly.
    """

    def __init__(self, size: int, kept: int | None = None) -> None:
        """`kept` is KEPT_BYTES if it is not given. Raises ValueError if the machine has no room for the memory."""
        self._name = f"turbofno-{secrets.token_hex(8)}"
        self._fd = os.memfd_create(self._name)
        weakref.finalize(self, os.close, self._fd)
        self._size = size
        try:
            os.ftruncate(self._fd, size)
            self._map = mmap.mmap(self._fd, size)
        except (OSError, OverflowError) as error:
            raise ValueError(
                f"there is no room for {size} bytes of shared memory ({error}): lower {env_name('shared_memory_bytes')}"
            ) from None
        super().__init__(self._map)
        self._kept = min(size, KEPT_BYTES if kept is None else kept)
        self._free = [(0, size)]
        """(start, stop) in bytes; sorted, never adjacent."""
        self._touched = 0
        """No byte from here on was used since memory was last given back."""
        self._slots: dict[int, tuple[weakref.ref[NDArray[np.uint8]], int, int]] = {}
        """id of the weak reference (arrays are not hashable) -> reference, start, stop."""
        # A queue, since garbage may be collected on any thread, even while `_free` changes.
        self._collected: deque[weakref.ref[NDArray[np.uint8]]] = deque()

    @property
    def used_bytes(self) -> int:
        self._reclaim()
        return self._size - sum(stop - start for start, stop in self._free)

    def attachment(self) -> Attach:
        """The message with which an engine opens this memory."""
        return Attach(os.getpid(), self._fd, self._name, self._size, self._kept)

    def slot(self, size: int) -> NDArray[np.uint8]:
        """`size` uninitialised bytes, page-aligned.

        Raises:
            PayloadTooLarge: more than all of the memory.
            Unavailable: no free block is large enough now.
        """
        self._reclaim()
        needed = max(1, -(-size // _PAGE)) * _PAGE
        if needed > self._size:
            raise PayloadTooLarge(
                f"the request's fields, or its answer, take {size} bytes, the limit is {self._size} "
                f"({env_name('shared_memory_bytes')}); send fewer fields in a request"
            )
        start = self._take(needed)
        if start is None:
            raise Unavailable(
                f"the shared memory of this process has no room for {size} more bytes: it has {self._size} "
                f"({env_name('shared_memory_bytes')} sets it). Retry after the time in Retry-After.",
                retry_after=1.0,
            )
        self._touched = max(self._touched, start + needed)
        array = np.frombuffer(self._map, np.uint8, size, start)
        given = weakref.ref(array, self._collected.append)
        self._slots[id(given)] = given, start, start + needed
        return array

    def buffer(self, size: int, aligned_at: int) -> memoryview:
        """`size` bytes, the one at `aligned_at` on a 64-byte boundary."""
        padding = -aligned_at % _ALIGNMENT
        return memoryview(self.slot(size + padding).data)[padding:]

    def array(self, shape: tuple[int, ...]) -> Fields:
        """An uninitialised float32 array."""
        return np.ndarray(shape, _FLOAT, self.slot(4 * math.prod(shape)))

    def contains(self, fields: Fields) -> bool:
        # All of ours are writable and contiguous.
        return fields.flags.carray and 0 <= _address(fields) - self._start < self._size

    def _take(self, needed: int) -> int | None:
        """Take so many bytes from the free blocks. Returns where they start, or None if there is no room."""
        for whole in (True, False):
            # First fit reuses low pages, so that high ones are never touched and never committed.
            for index, (start, stop) in enumerate(self._free):
                crosses = start < self._kept < start + needed
                first = self._kept if whole and crosses else start
                if stop - first >= needed:
                    rest = (start, first), (first + needed, stop)
                    self._free[index : index + 1] = [(a, b) for a, b in rest if a < b]
                    return first
        return None

    def _reclaim(self) -> None:
        while self._collected:
            _, start, stop = self._slots.pop(id(self._collected.popleft()))
            index = bisect.bisect(self._free, (start, stop))
            if index < len(self._free) and self._free[index][0] == stop:
                stop = self._free.pop(index)[1]
            if index and self._free[index - 1][1] == start:
                start = self._free.pop(index - 1)[0]
                index -= 1
            self._free.insert(index, (start, stop))
        if self._touched > self._kept and not self._slots:
            # Some sandboxes do not know it; then the memory stays.
            with contextlib.suppress(OSError):
                self._map.madvise(mmap.MADV_REMOVE, self._kept, self._touched - self._kept)
            self._touched = self._kept


class AttachedMemory(_Memory):
    """An engine's mapping of a front end's memory."""

    def __init__(self, attachment: Attach) -> None:
        """Raises OSError if the front end is gone."""
        path = f"/proc/{attachment.pid}/fd/{attachment.fd}"
        # The process id may have been reused.
        if attachment.name not in os.readlink(path):
            raise FileNotFoundError(f"{path} is not {attachment.name}")
        fd = os.open(path, os.O_RDWR)
        try:
            super().__init__(mmap.mmap(fd, attachment.size))
        finally:
            os.close(fd)
        self._kept = attachment.kept

    def copyable(self, fields: Fields) -> Fields:
        """An array of this memory, or its copy if it may be page-locked in part: CUDA then refuses to copy it."""
        start = _address(fields) - self._start
        return fields.copy() if start < self._kept < start + fields.nbytes else fields


def _address(array: NDArray[Any]) -> int:
    # Three times as fast as `__array_interface__`, which also interns strings: CPython's table of them grew.
    return ctypes.addressof(_NO_BYTES.from_buffer(array.data))
