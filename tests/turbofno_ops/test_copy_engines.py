"""Which memory copy engines write to: how long it is kept, and when there is none. Exchanges are tested on GPUs with FFTs."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from turbofno_ops._copy_engines import copy_engines
from turbofno_ops._slab import Slab

CUDA = torch.device("cuda", 0)


class Group:
    """Stands for a process group."""


class Host(Slab):
    """A slab of a host whose cards reach each other; `asked` are the bytes that were allocated, `most_bytes` those there are."""

    asked: list[int]
    most_bytes: int

    def most(self, number: int, device: torch.device) -> int:
        assert device == CUDA
        return number

    def peer_memory(self, nbytes: int, device: torch.device) -> Any:
        assert device == CUDA
        self.asked.append(nbytes)
        return None if nbytes > self.most_bytes else SimpleNamespace(nbytes=nbytes)


@pytest.fixture(autouse=True)
def without_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("Stream", "Event", "synchronize"):
        monkeypatch.setattr(torch.cuda, name, lambda *_, **__: None)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


def host(group: Group, most_bytes: int = 10**6, count: int = 2) -> Host:
    made = Host(cast(Any, group), 0, count)
    object.__setattr__(made, "asked", [])
    object.__setattr__(made, "most_bytes", most_bytes)
    return made


def engines(slab: Host, values: int, device: torch.device = CUDA) -> object:
    return copy_engines(slab, [[(values,)], [(1,)]], torch.float32, device)


def test_memory_grows_with_the_largest_exchange_and_is_used_again() -> None:
    slab = host(Group())
    first = engines(slab, 1000)
    assert first is not None
    assert engines(slab, 10) is first
    larger = engines(slab, 5000)
    assert larger not in (None, first)
    assert engines(slab, 1000) is larger
    assert slab.asked == [4096, 20480]


def test_what_cannot_be_had_is_asked_for_once_and_smaller_exchanges_have_it() -> None:
    slab = host(Group(), most_bytes=10**4)
    assert [engines(slab, 5000), engines(slab, 6000)] == [None, None]
    kept = engines(slab, 1000)
    assert kept is not None
    assert engines(slab, 5000) is None
    assert engines(slab, 1000) is kept
    assert slab.asked == [20480, 4096]


def test_memory_ends_with_the_group() -> None:
    group = Group()
    slab = host(group)
    kept = weakref.ref(cast(Any, engines(slab, 10)))
    assert kept() is not None
    del slab, group
    gc.collect()
    assert kept() is None


def test_cpus_single_processes_and_captures_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    slab = host(Group())
    assert engines(slab, 10, torch.device("cpu")) is None
    assert engines(host(Group(), count=1), 10) is None
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert engines(slab, 10) is None
    assert slab.asked == []
