"""A ring buffer in the front end's memory for the frames of one rollout.

Every frame occupies the next entry, even without fields, until the front end acknowledges it. While no entry is free,
the engine reads no more frames, so the rollout pauses.
"""

from __future__ import annotations

import asyncio

import numpy as np

from turbofno.service.engine.interface import Fields, Frame
from turbofno.service.processes.memory import HEAVY_BYTES

_RING_BYTES = 1024 * 1024
_MAX_ENTRIES = 256


def ring_size(field_bytes: int, steps: int) -> int:
    """Number of entries for a rollout: few, since the engine buffers unread frames too."""
    return max(1, min(_RING_BYTES // field_bytes, _MAX_ENTRIES, steps))


async def copy_completely(to: Fields, source: Fields) -> None:
    """Copy, off the event loop if large. A cancelled caller waits for the end of the copy.

    Else the copy could write to memory that was freed and reused.
    """
    if to.nbytes <= HEAVY_BYTES:
        np.copyto(to, source)
        return
    copying = asyncio.ensure_future(asyncio.to_thread(np.copyto, to, source))
    try:
        await asyncio.shield(copying)
    except asyncio.CancelledError:
        await asyncio.wait({copying})
        raise


class Writer:
    """The engine's end. The front end copies each entry before it acknowledges it."""

    def __init__(self, ring: Fields) -> None:
        self._ring = ring
        self._next = 0
        self._free = asyncio.Semaphore(len(ring))

    async def put(self, frame: Frame) -> Frame:
        """Wait for a free entry and copy the frame into it. Returns the frame with its fields there."""
        await self._free.acquire()
        if frame.fields is not None:
            entry = self._ring[self._next]
            await copy_completely(entry, frame.fields)
            frame.fields = entry
        self._next = (self._next + 1) % len(self._ring)
        return frame

    def ack(self) -> None:
        """Free the oldest entry."""
        self._free.release()
