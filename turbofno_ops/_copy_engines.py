"""Exchanges between slabs by the copy engines of their GPUs, beside the work of the multiprocessors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from turbofno_ops._graphs import capture_lock
from turbofno_ops._peer_memory import PeerMemory, aligned
from turbofno_ops._slab import Slab
from turbofno_ops.description import Size


class CopyEngines:
    """Writes parts of a field to memory of the other processes, which is used again by the next exchange.

    Copies run on a stream of their own, which meets those of the other processes in a barrier after each exchange of parts.

    Attributes:
        nbytes: Of the memory.
    """

    def __init__(self, rank: int, count: int, memory: PeerMemory, device: torch.device) -> None:
        # not the slab: its group would keep itself alive
        self._rank, self._count, self._memory, self._device = rank, count, memory, device
        self.nbytes = memory.nbytes
        self._copies = torch.cuda.Stream(device, priority=-1)
        self._used = torch.cuda.Event()
        self._tensors: list[list[torch.Tensor]] = []

    def tensors(self, shapes: Sequence[Sequence[Size]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Return this process's tensors, once all processes have used what they got before; `shapes` are those of each process."""
        # not for all of the current stream: a transform may have begun
        torch.cuda.current_stream(self._device).wait_event(self._used)
        self._copies.wait_event(self._used)
        with torch.cuda.stream(self._copies):
            self._memory.barrier()
        self._tensors = [
            [
                self._memory.of(rank, shape, dtype, first)
                for shape, first in zip(of, _places(of, dtype), strict=False)
            ]
            for rank, of in enumerate(shapes)
        ]
        return self._tensors[self._rank]

    def swap(
        self, which: int, sends: Sequence[torch.Tensor], spans: Sequence[range]
    ) -> list[_Arrival]:
        """Begin to write a contiguous tensor to each other process: to the elements `spans` of this one, of its tensor `which`."""
        own = spans[self._rank]
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            for peer in ((self._rank + i) % self._count for i in range(1, self._count)):
                if sends[peer].numel():
                    self._tensors[peer][which][own.start : own.stop].copy_(sends[peer])
            self._memory.barrier()
            return [_Arrival(self._copies.record_event(), self._device)]

    def end(self) -> None:
        """Let the tensors go, once the current stream has used them."""
        self._used.record(torch.cuda.current_stream(self._device))


@dataclass(frozen=True)
class _Arrival:
    """An exchange of parts that is under way."""

    done: torch.cuda.Event
    device: torch.device

    def wait(self) -> None:
        """Let the current stream wait until this process has sent its parts and has those of the others."""
        torch.cuda.current_stream(self.device).wait_event(self.done)


def copy_engines(
    slab: Slab, shapes: Sequence[Sequence[Size]], dtype: torch.dtype, device: torch.device
) -> CopyEngines | None:
    """Return what exchanges tensors of such shapes, of each process, by copy engines, or None where that is not possible.

    Its memory is kept as long as the group and grows with the largest tensors. None where there is no such memory, and in a
    CUDA graph, which would keep its addresses. All processes call this together, with the same arguments.
    """
    if device.type != "cuda" or slab.count == 1 or torch.cuda.is_current_stream_capturing():
        return None
    nbytes = max(_places(of, dtype)[-1] for of in shapes)
    kept = _KEPT.setdefault(slab.group, {}).setdefault(device, _Kept())
    held = 0 if kept.engines is None else kept.engines.nbytes
    if held < nbytes < kept.refused:
        with capture_lock:
            torch.cuda.synchronize(device)
        slab.most(0, device)
        # nobody writes to it any more
        with capture_lock:
            kept.engines = None
            torch.cuda.empty_cache()
        memory = slab.peer_memory(nbytes, device)
        if memory is None:
            kept.refused = nbytes
        else:
            kept.engines = CopyEngines(slab.rank, slab.count, memory, device)
    return kept.engines if nbytes < kept.refused else None


@dataclass
class _Kept:
    """What a group has on a device. `refused`: the least bytes that could not be had."""

    engines: CopyEngines | None = None
    refused: float = math.inf


_KEPT: WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, _Kept]] = WeakKeyDictionary()


def _places(shapes: Sequence[Size], dtype: torch.dtype) -> list[int]:
    """Return the first byte of tensors that lie one behind the other, and the first byte after them."""
    firsts = [0]
    for shape in shapes:
        firsts.append(firsts[-1] + aligned(math.prod(shape) * dtype.itemsize))
    return firsts
