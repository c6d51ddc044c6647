"""Slots of shared memory never overlap, are always freed, and are visible to another process."""

from __future__ import annotations

import gc
import os
import random
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from msgspec.structs import replace

from tests.draws import generator
from tests.service.processes.running import ROOT
from turbofno.service.errors import PayloadTooLarge, Unavailable
from turbofno.service.metrics import Metrics
from turbofno.service.processes import memory as memory_module
from turbofno.service.processes.memory import AttachedMemory, SlotMemory
from turbofno.service.processes.remote_engine import RemoteEngine
from turbofno.service.settings import Settings

MIB = 2**20


def test_slots_of_any_size_never_overlap_and_are_all_freed() -> None:
    memory = SlotMemory(2 * MIB)
    held: list[tuple[memoryview, int]] = []
    full = 0
    for step in range(3000):
        if held and random.random() < (0.6 if len(held) > 60 else 0.4):
            view, mark = held.pop(random.randrange(len(held)))
            assert set(bytes(view)) == {mark}
            del view
            continue
        size = random.choice([1, 100, 4096, 4097, random.randrange(1, 300_000)])
        aligned_at = random.randrange(min(size, 200))
        try:
            view = memory.buffer(size, aligned_at)
        except Unavailable:
            full += 1
            continue
        assert len(view) == size
        assert (np.frombuffer(view, np.uint8).ctypes.data + aligned_at) % 64 == 0
        mark = step % 255 + 1
        view[:] = bytes([mark]) * size
        held.append((view, mark))
        del view
    assert full
    with pytest.raises(Unavailable, match="TURBOFNO_SHARED_MEMORY_BYTES") as refusal:
        memory.slot(2 * MIB)
    with pytest.raises(PayloadTooLarge, match="TURBOFNO_SHARED_MEMORY_BYTES"):
        memory.slot(2 * MIB + 1)
    assert refusal.value.retry_after
    held.clear()
    gc.collect()
    assert memory.used_bytes == 0
    assert len(memory.slot(2 * MIB)) == 2 * MIB, "one piece again"


def test_memory_is_given_back_once_no_slot_is_in_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory_module, "KEPT_BYTES", MIB)
    memory = SlotMemory(8 * MIB)
    attached = AttachedMemory(memory.attachment())

    def resident() -> int:
        return 512 * os.fstat(memory.attachment().fd).st_blocks

    held = [memory.array((MIB // 4,)) for _ in range(5)]
    for mark, array in enumerate(held):
        array[:] = mark
    assert resident() == 5 * MIB
    seen = attached.view(memory.span(held[4]))
    del array, held[:4]
    assert memory.used_bytes == MIB
    assert resident() == 5 * MIB, "one is in use"
    assert set(seen) == {4.0}
    held.clear()
    assert memory.used_bytes == 0
    assert resident() == MIB
    again = [memory.array((MIB // 4,)) for _ in range(5)]
    for mark, array in enumerate(again):
        array[:] = 10 + mark
    assert [attached.view(memory.span(array))[-1] for array in again] == [10, 11, 12, 13, 14]


def test_memory_that_the_system_does_not_take_back_is_used_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory_module, "KEPT_BYTES", MIB)
    monkeypatch.setattr(memory_module.mmap, "MADV_REMOVE", 12345)  # no system knows it
    memory = SlotMemory(4 * MIB)
    for mark in range(3):
        array = memory.array((MIB,))
        array[:] = mark
        assert set(array[:: MIB // 8]) == {mark}
        del array
        assert memory.used_bytes == 0


def test_a_slot_is_partly_in_what_a_gpus_engine_page_locks_only_if_it_fits_nowhere_else() -> None:
    memory, kept, draw = SlotMemory(8 * MIB, kept=3 * MIB), 3 * MIB, generator()
    attached = AttachedMemory(memory.attachment())
    held: list[np.ndarray] = []

    def ends() -> list[tuple[int, int]]:
        spans = [(memory.span(one)[0], one.nbytes) for one in held]
        return sorted((start, start + -(-size // 4096) * 4096) for start, size in spans)

    def gaps(low: int, high: int) -> list[int]:
        """Sizes of the free pieces of a part of the memory."""
        inside = [(max(a, low), min(b, high)) for a, b in ends() if a < high and b > low]
        borders = [low, *(border for used in inside for border in used), high]
        return [b - a for a, b in zip(borders[::2], borders[1::2], strict=True)]

    full = crossing = 0
    for _ in range(2000):
        shape = (int(draw.integers(1, MIB // 2)),)
        needed = -(-4 * shape[0] // 4096) * 4096
        most = max(gaps(0, kept) + gaps(kept, 8 * MIB))
        try:
            held.append(memory.array(shape))
        except Unavailable:
            full += 1
            assert most < needed
            del held[int(draw.integers(len(held)))]
            continue
        first = memory.span(held[-1])[0]
        crosses = first < kept < first + needed
        assert crosses == (most < needed)
        crossing += crosses
        seen = attached.view(memory.span(held[-1]))
        seen[:] = 1.0
        copied = attached.copyable(seen)
        assert (copied is not seen) == (first < kept < first + seen.nbytes)
        assert copied.all()
        assert all(a[1] <= b[0] for a, b in pairwise(ends()))
    assert full > 500
    assert crossing > 10
    held.clear()
    assert memory.used_bytes == 0
    assert len(memory.slot(8 * MIB)) == 8 * MIB, "one piece again"
    with pytest.raises(PayloadTooLarge, match=str(8 * MIB)):
        memory.slot(8 * MIB + 1)


@pytest.mark.parametrize(
    ("devices", "all_of_it"),
    [("cpu", False), ("cpu+cpu", False), ("0,1", False), ("0+1", True), ("2,0+1", True)],
)
def test_for_an_engine_of_several_gpus_a_front_end_keeps_all_of_its_memory(
    devices: str, all_of_it: bool
) -> None:
    size = memory_module.KEPT_BYTES + 64 * MIB
    settings = Settings(
        frontends=1, devices=devices, shared_memory_bytes=size, max_body_bytes=size // 4
    )
    kept = RemoteEngine(b"front", settings, Metrics()).memory.attachment().kept
    assert kept == (size if all_of_it else memory_module.KEPT_BYTES)


def test_slot_lives_as_long_as_any_view_of_it() -> None:
    memory = SlotMemory(MIB)
    view = memory.buffer(1000, 128)
    fields = np.frombuffer(view[128:928], np.float32).reshape(2, 100)[1:]
    del view
    assert memory.used_bytes == 4096
    assert memory.contains(fields)
    assert not memory.contains(fields.copy())
    assert not memory.contains(np.frombuffer(bytes(fields), np.float32))
    assert not memory.contains(fields.copy()[..., ::2])
    del fields
    assert memory.used_bytes == 0


@pytest.mark.parametrize("shape", [(3, 1, 7), (1, 2, 5, 6), (0, 1, 4)])
def test_arrays_are_visible_in_another_process(
    shape: tuple[int, ...],
) -> None:
    memory = SlotMemory(MIB)
    fields = generator().standard_normal(shape).astype(np.float32)
    placed = memory.array(shape)
    placed[...] = fields
    attached = AttachedMemory(memory.attachment()).view(memory.span(placed))
    assert np.array_equal(attached, fields)
    assert attached.shape == shape
    attached[...] = 7
    assert (placed == 7).all()


def test_memory_of_a_dead_process_cannot_be_attached() -> None:
    code = (
        "from turbofno.service.processes.memory import SlotMemory; a = SlotMemory(4096).attachment();"
        "print(a.pid, a.fd, a.name)"
    )
    told = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    attachment = SlotMemory(4096).attachment()
    gone = replace(attachment, pid=int(told[0]), fd=int(told[1]), name=told[2])
    with pytest.raises(OSError):  # noqa: PT011 - which one depends on who has its number now
        AttachedMemory(gone)
    reused = replace(attachment, name=told[2])
    with pytest.raises(OSError):  # noqa: PT011
        AttachedMemory(reused)


def memory_descriptors() -> set[str]:
    """The descriptors of shared memory that this process has open."""
    links = {fd: os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")}
    return {fd for fd, link in links.items() if "memfd:turbofno" in link}


def test_descriptor_is_closed_with_the_memory() -> None:
    # other tests of this process may have left some
    before = memory_descriptors()
    for _ in range(5):
        memory = SlotMemory(MIB)
        attached = AttachedMemory(memory.attachment())
        del memory, attached
    gc.collect()
    assert memory_descriptors() <= before


@pytest.mark.parametrize("size", [2**56, 2**80])
def test_too_much_memory_is_refused_with_its_setting(size: int) -> None:
    with pytest.raises(ValueError, match="lower TURBOFNO_SHARED_MEMORY_BYTES"):
        SlotMemory(size)
