"""Frames of one rollout from an engine to a front end: through a ring of places in the front end's memory.

Every frame takes the next place, also one whose fields are not wanted; a place is free again when the front end says
that it took what stands there. While none is free the engine does not ask its rollout for more, so that it waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import numpy as np

from turbofno.service.processes.memory import HEAVY_BYTES

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from turbofno.service.engine.interface import Fields, Frame

_RING_BYTES = 1024 * 1024
_MOST_PLACES = 256


def places(field_bytes: int, steps: int) -> int:
    """How many places the ring of a rollout should have: few, as the engine keeps frames that nobody took too."""
    return max(1, min(_RING_BYTES // field_bytes, _MOST_PLACES, steps))


async def copy_whole(to: Fields, source: Fields) -> None:
    """Copy, off the event loop if that takes long; once begun it is carried through, even if the caller is cancelled.

    So nothing is written any more once the caller has ended: the memory may be someone else's then.
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
    """The engine's end."""

    def __init__(self, ring: Fields) -> None:
        self._ring = ring
        self._next = 0
        self._free = asyncio.Semaphore(len(ring))

    async def put(self, frame: Frame) -> Frame:
        """Wait for a free place, and fill it. The frame as it stands there."""
        await self._free.acquire()
        if frame.fields is not None:
            place = self._ring[self._next]
            await copy_whole(place, frame.fields)
            frame.fields = place
        self._next = (self._next + 1) % len(self._ring)
        return frame

    def taken(self) -> None:
        """The oldest place that was filled is free."""
        self._free.release()


class Reader:
    """The front end's end."""

    def __init__(self) -> None:
        self._arrived: asyncio.Queue[Frame | None] = asyncio.Queue()

    def arrived(self, frame: Frame) -> None:
        """The engine filled the next place, if the frame's fields are wanted."""
        self._arrived.put_nowait(frame)

    def ended(self) -> None:
        """No more will arrive."""
        self._arrived.put_nowait(None)

    async def frames(self) -> AsyncGenerator[Frame]:
        """What has arrived, in order, until the end. A frame's place may be filled again once the frame is given.

        It is a copy: whoever puts an answer together holds all frames, and the ring has room for few.
        """
        while (frame := await self._arrived.get()) is not None:
            if frame.fields is not None:
                fields = np.empty_like(frame.fields)
                await copy_whole(fields, frame.fields)
                frame.fields = fields
            yield frame
