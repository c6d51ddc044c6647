"""Memory that the processes of a group on one host read and write, each that of all: PyTorch's symmetric memory."""

from __future__ import annotations

import logging
import socket
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist

from turbofno_ops.description import Size

if TYPE_CHECKING:
    from torch._C._distributed_c10d import _SymmetricMemory

    from turbofno_ops._slab import Slab

ALIGNMENT = 512
"""Bytes to which parts of the memory are aligned."""

_log = logging.getLogger("turbofno_ops")

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_CHANNEL = 0  # of the signals of barriers
_made = count()
"""Numbers the memories of this process."""


class PeerMemory:
    """As many bytes of every process, mapped by all of them.

    Attributes:
        nbytes: Of each process.
    """

    def __init__(self, own: torch.Tensor, handle: _SymmetricMemory, timeout_ms: int) -> None:
        self._own, self._handle, self._timeout_ms = own, handle, timeout_ms
        self.nbytes = own.nbytes

    def of(self, rank: int, shape: Size, dtype: torch.dtype, first: int) -> torch.Tensor:
        """Return a tensor in the memory of a process, from its byte `first` on."""
        return self._handle.get_buffer(rank, shape, dtype, first // dtype.itemsize)

    def barrier(self) -> None:
        """Let the current stream wait for those of all processes, and see what they wrote before."""
        self._handle.barrier(_CHANNEL, self._timeout_ms)


def peer_memory(slab: Slab, nbytes: int, device: torch.device) -> PeerMemory | None:
    """Allocate so many bytes of every process, at least one, or return None where they have to send messages.

    That is on CPUs, on several hosts, and where a device does not reach another one's memory or has too little of it. All
    processes call this together, and all get memory or none. It waits for the device.
    """
    if device.type != "cuda":
        return None
    try:
        # 10 ms, for few programs
        from torch._C._distributed_c10d import _SymmetricMemory
        from torch.distributed._symmetric_memory import rendezvous

        backend = _SymmetricMemory.get_backend(device)
    except (ImportError, AttributeError) as error:
        _log.info("processes share no memory: %s", error)
        return None
    # a process whose last rendezvous was another one would wait for ever
    if backend != "CUDA" or not slab.alike(f"{_host()} {next(_made)}", device):
        return None
    own = handle = None
    reason = "another process cannot"
    try:
        own = _SymmetricMemory.empty_strided_p2p((nbytes,), (1,), torch.uint8, device)
    except RuntimeError as error:
        reason = str(error)
    # and so would the others of one without memory
    if not slab.most(int(own is None), device):
        assert own is not None
        try:
            handle = rendezvous(own, slab.group)
        except RuntimeError as error:
            reason = str(error)
            next(_made)  # it ended midway: processes that got further are no longer alike
    if slab.most(int(handle is None), device):
        _log.info("processes share no memory: %s", reason)
        return None
    assert own is not None
    assert handle is not None
    return PeerMemory(own, handle, _timeout_ms(slab.group, device))


def aligned(nbytes: int) -> int:
    """Return the next multiple of `ALIGNMENT`."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def _host() -> str:
    return f"{socket.gethostname()} {_BOOT.read_text() if _BOOT.is_file() else ''}"


def _timeout_ms(group: dist.ProcessGroup, device: torch.device) -> int:
    """Return the time after which the group's collectives fail."""
    return int(group._get_backend(device).options._timeout.total_seconds() * 1000)
