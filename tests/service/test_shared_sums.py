"""Sums over several processes."""

from __future__ import annotations

import asyncio
from typing import Any

from turbofno.service.processes.supervisor import Supervisor
from turbofno.service.settings import Settings
from turbofno.service.shared_sums import SharedSums, SumsMemory

LIMITS: Any = "a bytes=5, b fields=2, c bytes=7"


SETTINGS = Settings(frontends=3, model_limits=LIMITS)


def of_processes(memory: str, *indices: int) -> list[SharedSums]:
    return [SharedSums(SETTINGS, memory, own) for own in indices]


def test_each_process_adds_to_its_part_and_all_know_the_sum() -> None:
    memory = SumsMemory(SETTINGS)
    first, third = of_processes(memory.file, 0, 2)
    first.connections.add(2)
    third.connections.add(1)
    first.connections.add(-1)
    third.bytes.add(2**40)
    third.bytes_of_models["c"].add(5)
    assert first.connections.total == third.connections.total == 2
    assert (first.connections.part, third.connections.part) == (1, 1)
    assert first.bytes.total == 2**40
    assert {name: one.total for name, one in first.bytes_of_models.items()} == {"a": 0, "c": 5}


def test_what_an_ended_process_counted_is_forgotten() -> None:
    memory = SumsMemory(SETTINGS)
    ended, other = of_processes(memory.file, 0, 1)
    ended.connections.add(2)
    ended.bytes.add(3)
    ended.bytes_of_models["c"].add(3)
    other.bytes.add(4)
    memory.forget(0)
    assert (other.connections.total, other.bytes.total) == (0, 4)
    assert other.bytes_of_models["c"].total == 0


def test_the_supervisor_forgets_what_a_dead_front_end_held() -> None:
    async def main() -> None:
        supervisor = Supervisor(SETTINGS, engines=[], frontends=3)
        first, second, _ = (child.launch for child in supervisor._children)
        held, other = of_processes(first.sums, 0, 1)
        held.bytes.add(5)
        other.bytes.add(7)
        supervisor._on_exit(second)
        assert held.bytes.total == 5
        supervisor._on_exit(first)
        assert held.bytes.total == 0

    asyncio.run(main())


def test_one_process_needs_no_shared_memory() -> None:
    one, another = (SharedSums(SETTINGS) for _ in range(2))
    one.connections.add(2)
    one.bytes_of_models["a"].add(1)
    assert (one.connections.total, one.bytes_of_models["a"].total) == (2, 1)
    assert (another.connections.total, another.bytes_of_models["a"].total) == (0, 0)
