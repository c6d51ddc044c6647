"""Memory that processes share: on which conditions they have it. What is done with it is tested where it is used."""

from __future__ import annotations

import zlib
from itertools import count
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch._C._distributed_c10d as c10d
import torch.distributed._symmetric_memory as symmetric_memory

from turbofno_ops import _peer_memory
from turbofno_ops._slab import Slab

CUDA = torch.device("cuda", 0)


class Pair(Slab):
    """This process and another one, whose numbers for `most` are given."""

    others: list[int]
    asked: int

    def most(self, number: int, device: torch.device) -> int:
        assert device == CUDA
        object.__setattr__(self, "asked", self.asked + 1)
        return max(number, self.others.pop(0)) if self.others else number


def pair(*others: int) -> Pair:
    """Return the pair; after the given numbers the other process has the same as this one."""
    options = SimpleNamespace(_timeout=SimpleNamespace(total_seconds=lambda: 7.0))
    group = SimpleNamespace(_get_backend=lambda _: SimpleNamespace(options=options))
    made = Pair(cast(Any, group), 0, 2)
    object.__setattr__(made, "others", list(others))
    object.__setattr__(made, "asked", 0)
    return made


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Symmetric memory of a host without GPUs; holds what processes met for."""
    found: list[object] = []

    def rendezvous(own: torch.Tensor, _group: object) -> object:
        found.append(own)
        return SimpleNamespace(barrier=lambda _channel, timeout_ms: found.append(timeout_ms))

    class Memory:
        @staticmethod
        def get_backend(_device: torch.device) -> str:
            return "CUDA"

        @staticmethod
        def empty_strided_p2p(size: Any, _stride: Any, dtype: Any, _device: Any) -> torch.Tensor:
            if size[0] > 100:
                raise RuntimeError("out of memory")
            return torch.empty(size, dtype=dtype)

    monkeypatch.setattr(c10d, "_SymmetricMemory", Memory)
    monkeypatch.setattr(symmetric_memory, "rendezvous", rendezvous)
    monkeypatch.setattr(_peer_memory, "_made", count())
    return found


def test_processes_that_meet_share_memory_and_wait_as_long_as_in_collectives(
    met: list[object],
) -> None:
    memory = _peer_memory.peer_memory(pair(), 64, CUDA)
    assert memory is not None
    assert memory.nbytes == 64
    memory.barrier()
    assert met[1:] == [7000]


def test_without_memory_nobody_waits_for_others_to_meet(met: list[object]) -> None:
    assert _peer_memory.peer_memory(pair(), 101, CUDA) is None
    # the other process has none: of its votes the first two say that it is on the same host
    alike = _number(1)
    assert _peer_memory.peer_memory(pair(alike, -alike, 1), 64, CUDA) is None
    assert met == []


def test_if_the_other_process_cannot_map_it_both_have_none(met: list[object]) -> None:
    alike = _number(0)
    assert _peer_memory.peer_memory(pair(alike, -alike, 0, 1), 64, CUDA) is None
    assert len(met) == 1


def test_on_another_host_no_memory_is_tried(met: list[object]) -> None:
    slab = pair(2**32 - 1)
    assert _peer_memory.peer_memory(slab, 64, CUDA) is None
    assert met == []
    assert slab.asked == 2


def test_a_process_that_made_more_memories_does_not_meet(met: list[object]) -> None:
    next(_peer_memory._made)
    behind = _number(0)
    assert _peer_memory.peer_memory(pair(behind, -behind), 64, CUDA) is None
    assert met == []


def test_other_backends_and_cpus_have_none(
    monkeypatch: pytest.MonkeyPatch, met: list[object]
) -> None:
    slab = pair()
    assert _peer_memory.peer_memory(slab, 64, torch.device("cpu")) is None
    monkeypatch.setattr(c10d._SymmetricMemory, "get_backend", lambda _: "NVSHMEM")
    assert _peer_memory.peer_memory(slab, 64, CUDA) is None
    monkeypatch.delattr(c10d, "_SymmetricMemory")
    assert _peer_memory.peer_memory(slab, 64, CUDA) is None
    assert (met, slab.asked) == ([], 0)


def _number(memory: int) -> int:
    """Return what a process asks about its host and the number of the memory that it makes."""
    return zlib.crc32(f"{_peer_memory._host()} {memory}".encode())
