"""Memory that the processes of a group on one host write to: each to that of the others, by the copy engines of their GPUs."""

from __future__ import annotations

import logging
import math
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist

from turbofno_ops.description import Size

if TYPE_CHECKING:
    from turbofno_ops._slab import Slab

_log = logging.getLogger("turbofno_ops")

_READ = 0
"""Channel of the signal that a process has read all it got. Exchanges have those after it."""
_TIMEOUT_MS = 600_000
"""A process that waits longer for another one fails, as it does in NCCL by default."""
_ALIGNMENT = 512  # bytes
_BOOT = Path("/proc/sys/kernel/random/boot_id")


class SymmetricMemory:
    """As many bytes of every process, for rounds of exchanges between all of them.

    An exchange copies a part to each of the others, beside the work of all multiprocessors, and signals it. In the next round a
    process writes once the others have read what it wrote before. Signals travel behind the work of a stream.
    """

    def __init__(self, slab: Slab, nbytes: int, device: torch.device) -> None:
        """Allocate `nbytes`, which all processes do together.

        Raises:
            RuntimeError: Too little memory, or a device cannot reach another one's.
        """
        # 10 ms, for few programs
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed._symmetric_memory import rendezvous

        self.nbytes = nbytes
        self._rank, self._device = slab.rank, device
        # not by `empty` of that module, which keeps the memory for itself when the tensor is gone
        self._memory = _SymmetricMemory.empty_strided_p2p((nbytes,), (1,), torch.uint8, device)
        self._handle = rendezvous(self._memory, slab.group)
        self._peers = [(slab.rank + i) % slab.count for i in range(1, slab.count)]
        self._copies = torch.cuda.Stream(device, priority=-1)
        self._read: torch.cuda.Event | None = None
        self._tensors: list[list[torch.Tensor]] = []
        self._exchanges = 0

    def tensors(self, shapes: Sequence[Sequence[Size]], dtype: torch.dtype) -> list[torch.Tensor]:
        """Begin a round: return this process's tensors in the memory.

        Args:
            shapes: Those of the tensors of each process, in `nbytes_of` bytes at most.
            dtype: Theirs.
        """
        self._exchanges = 0
        if self._read is not None:
            torch.cuda.current_stream(self._device).wait_event(self._read)
            with torch.cuda.stream(self._copies):
                self.await_signals(_READ)
        self._tensors = [
            [
                self._handle.get_buffer(rank, shape, dtype, first // dtype.itemsize)
                for shape, first in zip(of, _offsets(of, dtype), strict=False)
            ]
            for rank, of in enumerate(shapes)
        ]
        return self._tensors[self._rank]

    def swap(
        self, which: int, sends: Sequence[torch.Tensor], spans: Sequence[range]
    ) -> list[_Arrival]:
        """Begin to write a tensor to every other process, behind the work of the current stream.

        Args:
            which: Number of the tensor to write to, among those of a process.
            sends: A contiguous tensor for each process; may be empty.
            spans: Its first axis there, for each process that writes.
        """
        self._exchanges += 1
        own = spans[self._rank]
        self._copies.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._copies):
            for peer in self._peers:
                if sends[peer].numel():
                    self._tensors[peer][which][own.start : own.stop].copy_(sends[peer])
                self._handle.put_signal(peer, self._exchanges, _TIMEOUT_MS)
            sent = self._copies.record_event()
        return [_Arrival(self, self._exchanges, sent)]

    def end(self) -> None:
        """End the round: work of the current stream has read the tensors, so that the others may write again."""
        for peer in self._peers:
            self._handle.put_signal(peer, _READ, _TIMEOUT_MS)
        self._read = torch.cuda.current_stream(self._device).record_event()

    def await_signals(self, channel: int, behind: torch.cuda.Event | None = None) -> None:
        """Let the current stream wait for an event, and for a signal of every other process."""
        if behind is not None:
            torch.cuda.current_stream(self._device).wait_event(behind)
        for peer in self._peers:
            self._handle.wait_signal(peer, channel, _TIMEOUT_MS)


class _Arrival:
    """An exchange that is under way."""

    def __init__(self, memory: SymmetricMemory, channel: int, sent: torch.cuda.Event) -> None:
        self._memory, self._channel, self._sent = memory, channel, sent

    def wait(self) -> None:
        """Let the current stream wait until this process has sent its parts and has those of the others."""
        self._memory.await_signals(self._channel, behind=self._sent)


def _offsets(shapes: Sequence[Size], dtype: torch.dtype) -> list[int]:
    """Return the first byte of tensors that lie one behind the other, and the first byte after them."""
    firsts = [0]
    for shape in shapes:
        nbytes = math.prod(shape) * dtype.itemsize
        firsts.append(firsts[-1] + -(-nbytes // _ALIGNMENT) * _ALIGNMENT)
    return firsts


def nbytes_of(shapes: Sequence[Size], dtype: torch.dtype) -> int:
    """Return the bytes that tensors of a process need."""
    return _offsets(shapes, dtype)[-1]


_MEMORIES: WeakKeyDictionary[dist.ProcessGroup, dict[torch.device, SymmetricMemory | None]] = (
    WeakKeyDictionary()
)


def symmetric_memory(slab: Slab, nbytes: int, device: torch.device) -> SymmetricMemory | None:
    """Return memory of `nbytes` or more, kept as long as the group, or None where the processes have to send messages.

    None on CPUs and on several hosts, where a device does not reach another one or has too little memory, and in a CUDA graph,
    which would keep the addresses. All processes call this together, with the same arguments.
    """
    if device.type != "cuda" or slab.count == 1 or torch.cuda.is_current_stream_capturing():
        return None
    memories = _MEMORIES.setdefault(slab.group, {})
    found = memories.get(device)
    if found is not None and found.nbytes < nbytes:
        torch.cuda.synchronize(device)
        slab.most(0, device)  # nobody writes to it any more
        del found, memories[device]
    if device not in memories:
        memories[device] = _created(slab, nbytes, device)
    return memories[device]


def _created(slab: Slab, nbytes: int, device: torch.device) -> SymmetricMemory | None:
    """Allocate the memory; all processes come to the same answer."""
    hosts: list[object] = [None] * slab.count
    with torch.cuda.device(device):
        boot = _BOOT.read_text() if _BOOT.is_file() else ""
        dist.all_gather_object(hosts, (socket.gethostname(), boot), group=slab.group)
    reason, memory = "another one cannot", None
    if len(set(hosts)) > 1:
        reason = "they are on several hosts"
    else:
        torch.cuda.empty_cache()  # PyTorch's allocator does not see what this one needs
        try:
            memory = SymmetricMemory(slab, nbytes, device)
        except RuntimeError as error:
            reason = str(error)
    if slab.most(int(memory is None), device):
        _log.info("processes share no memory, and exchange by messages: %s", reason)
        return None
    return memory
