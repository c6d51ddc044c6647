"""Slabs whose processes are threads."""

from __future__ import annotations

import math
import threading
from typing import Any, cast

import torch

from turbofno_ops._peer_memory import PeerMemory
from turbofno_ops._slab import Slab


class ThreadSlab(Slab):
    """A slab whose processes are threads."""

    shared: list[torch.Tensor]
    barrier: threading.Barrier
    reached: bool
    """Each reaches the memory of the others."""

    def _all(self, part: torch.Tensor) -> list[torch.Tensor]:
        return self._all_of(part.clone())

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        return part.copy_(torch.stack(self._all(part)).sum(0))

    def share_of_sum(self, part: torch.Tensor) -> torch.Tensor:
        return torch.stack(self._all(part)).sum(0).chunk(self.count)[self.rank].clone()

    def gather(self, share: torch.Tensor) -> torch.Tensor:
        return torch.cat(self._all(share))

    def peer_memory(self, nbytes: int, device: torch.device) -> PeerMemory | None:
        if not self.reached:
            return None
        own = torch.full((nbytes,), 255, dtype=torch.uint8, device=device)
        return cast("PeerMemory", ThreadMemory(self._all_of(own), self.barrier))

    def _all_of(self, part: torch.Tensor) -> list[torch.Tensor]:
        self.shared[self.rank] = part
        self.barrier.wait(20)
        found = list(self.shared)
        self.barrier.wait(20)
        return found


class ThreadMemory:
    """Memory of threads that all of them reach."""

    def __init__(self, memories: list[torch.Tensor], barrier: threading.Barrier) -> None:
        self._memories, self._barrier = memories, barrier
        self.nbytes = memories[0].nbytes

    def of(self, rank: int, shape: tuple[int, ...], dtype: torch.dtype, first: int) -> torch.Tensor:
        end = first + math.prod(shape) * dtype.itemsize
        return self._memories[rank][first:end].view(dtype).view(shape)

    def barrier(self) -> None:
        self._barrier.wait(20)


def slabs(count: int, *, reached: bool) -> list[ThreadSlab]:
    """Return the slabs of a group of threads."""
    barrier, shared = threading.Barrier(count), [torch.empty(0)] * count
    found = [ThreadSlab(cast(Any, None), rank, count) for rank in range(count)]
    for slab in found:
        object.__setattr__(slab, "shared", shared)
        object.__setattr__(slab, "barrier", barrier)
        object.__setattr__(slab, "reached", reached)
    return found
