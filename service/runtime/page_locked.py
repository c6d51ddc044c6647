"""Page-locks the memory of front ends, so that the GPU reads fields and writes answers there directly (zero-copy).

CUDA registers such memory by address for the whole process, as does this module.
"""

from __future__ import annotations

import ctypes
import logging
import math
import queue
import threading
import weakref
from array import array
from bisect import bisect
from typing import TYPE_CHECKING, Any

import torch

from turbofno.service.runtime.batch_copy import Spans

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from turbofno.service.engine.interface import Fields

logger = logging.getLogger(__name__)

_MIN_BYTES = 16 << 10
"""Least average size for zero-copy; smaller arrays are gathered: a copy for each takes the driver longer, and the GPU."""

_regions: dict[int, int] = {}
"""Start address -> end address (exclusive) of locked memory."""


def lock(memory: NDArray[np.uint8], size: int, device: torch.device) -> threading.Thread:
    """Page-lock the first `size` bytes of `memory` for a CUDA device while that array or a view of it exists.

    Its `base` is kept until the memory is unlocked. Until the returned thread has ended, and if locking fails, arrays
    there are staged like all others.
    """
    # A thread, since it takes about a second for a gigabyte, and CUDA would report an error to the same thread's next call.
    thread = threading.Thread(target=_lock, args=(memory, size, device), daemon=True)
    thread.start()
    return thread


def _lock(memory: NDArray[np.uint8], size: int, device: torch.device) -> None:
    start = memory.ctypes.data
    with torch.cuda.device(device):
        status = torch.cuda.cudart().cudaHostRegister(start, size, 0)
    if int(status):
        logger.warning("%d bytes of shared memory could not be page-locked: %s", size, status)
        return
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    threading.Thread(target=_unlock, args=(ended, start, device, memory.base), daemon=True).start()
    _regions[start] = start + size
    weakref.finalize(memory, _forget, start, ended).atexit = False


def locked_spans(arrays: Sequence[Fields]) -> Spans | None:
    """The spans of arrays that the GPU should access directly: all are locked, contiguous and large enough; else None."""
    sizes = array("Q", [one.nbytes for one in arrays])
    if not _regions or sum(sizes) < _MIN_BYTES * len(sizes):
        return None
    try:
        addresses = array("Q", map(_address, arrays))
    except (TypeError, ValueError):
        # One is not writable, not contiguous or empty.
        return None
    regions = sorted(_regions.copy().items())
    for start, size in zip(addresses, sizes, strict=True):
        at = bisect(regions, (start, math.inf)) - 1
        if at < 0 or start + size > regions[at][1]:
            return None
    return Spans(addresses, sizes)


def _address(fields: Any) -> int:
    # Three times as fast as numpy's own ways.
    return ctypes.addressof(ctypes.c_char.from_buffer(fields))


def _forget(start: int, ended: queue.SimpleQueue[None]) -> None:
    """Runs on any thread, in garbage collection. Must not wait or call CUDA: that thread may hold a lock or be capturing a
    graph."""
    del _regions[start]
    ended.put(None)


def _unlock(
    ended: queue.SimpleQueue[None],
    start: int,
    device: torch.device,
    base: object,  # noqa: ARG001 - referenced, so that the memory stays mapped until it is unlocked
) -> None:
    """Wait until the array is freed, then unlock; on its own thread."""
    ended.get()
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(start)
