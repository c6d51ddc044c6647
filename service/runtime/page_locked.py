"""Other processes' memory, page-locked: the GPU reads fields from it and writes answers to it without a detour.

CUDA knows such memory by its addresses, for the whole process, and so does this module.
"""

from __future__ import annotations

import logging
import queue
import threading
import weakref
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np
    from numpy.typing import NDArray

    from turbofno.service.engine.interface import Fields

logger = logging.getLogger(__name__)

MAX_BYTES = 128 << 20
"""Of each memory, from its start: what is locked is taken from the machine even while it is empty."""
_MIN_BYTES = 256 << 10
"""Arrays smaller than this on average are gathered: a copy of its own costs each of them about 5 us and calls that
give the interpreter lock away."""

_regions: dict[int, int] = {}
"""First address -> one past the last."""


def lock(memory: NDArray[np.uint8], device: torch.device) -> threading.Thread:
    """Page-lock the start of `memory` for a CUDA device, for as long as that array lives; its views keep it alive.

    What it stands in, its `base`, is kept a moment longer, until the memory is unlocked. Until the thread that is
    returned has ended, and if the system refuses, fields there are copied as all others.
    """
    # It takes a tenth of a second; and CUDA keeps an error for whatever the same thread calls next.
    thread = threading.Thread(target=_lock, args=(memory, device), daemon=True)
    thread.start()
    return thread


def _lock(memory: NDArray[np.uint8], device: torch.device) -> None:
    start, size = memory.ctypes.data, min(memory.nbytes, MAX_BYTES)
    with torch.cuda.device(device):
        status = torch.cuda.cudart().cudaHostRegister(start, size, 0)
    if int(status):
        logger.warning("%d bytes of a front end could not be page-locked: %s", size, status)
        return
    ended: queue.SimpleQueue[None] = queue.SimpleQueue()
    threading.Thread(target=_unlock, args=(ended, start, device, memory.base), daemon=True).start()
    _regions[start] = start + size
    weakref.finalize(memory, _forget, start, ended).atexit = False


def zero_copy(arrays: Sequence[Fields]) -> bool:
    """Whether the GPU should copy each of these by itself: all are locked, and large enough."""
    return (
        bool(_regions)
        and sum(array.nbytes for array in arrays) >= _MIN_BYTES * len(arrays)
        and all(map(_locked, arrays))
    )


def _locked(array: Fields) -> bool:
    start = array.__array_interface__["data"][0]
    stop = start + array.nbytes
    return array.flags.carray and any(
        first <= start and stop <= past for first, past in _regions.copy().items()
    )


def _forget(start: int, ended: queue.SimpleQueue[None]) -> None:
    """On whatever thread lets go last or collects garbage. Neither waits nor calls CUDA: that thread may be capturing a
    graph, which such a call would break, or hold any lock."""
    del _regions[start]
    ended.put(None)


def _unlock(
    ended: queue.SimpleQueue[None],
    start: int,
    device: torch.device,
    base: object,  # noqa: ARG001 - held, so that the memory stays mapped and nothing else comes to lie there
) -> None:
    """Wait for the end of the array, then unlock; on a thread of its own."""
    ended.get()
    with torch.cuda.device(device):
        torch.cuda.cudart().cudaHostUnregister(start)
