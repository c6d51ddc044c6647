"""The device threads: how many threads torch gets, and what they keep."""

from __future__ import annotations

import gc
import os
import queue
import weakref
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch

from turbofno.service import system
from turbofno.service.pipeline.worker import Worker, arithmetic_threads

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("cores", "torch_choice", "threads"), [(1, 1, 1), (2, 2, 1), (8, 8, 7), (8, 4, 4)]
)
def test_cpu_keeps_a_core_for_http(
    monkeypatch: pytest.MonkeyPatch, cores: int, torch_choice: int, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: torch_choice)
    assert arithmetic_threads(on_cpu=True) == threads
    assert arithmetic_threads(on_cpu=False) == 1


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("max 100000", 7), ("450000 100000", 3), ("200000 100000", 1), ("50000 100000", 1)],
)
def test_a_container_gets_as_many_threads_as_its_quota_allows(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, quota: str, threads: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    monkeypatch.setattr(system, "_QUOTA", tmp_path / "cpu.max")
    (tmp_path / "cpu.max").write_text(f"{quota}\n")
    assert arithmetic_threads(on_cpu=True) == threads


@pytest.mark.parametrize("overlap", [False, True])
def test_a_failure_keeps_no_arrays(overlap: bool) -> None:
    fields: list[weakref.ref[np.ndarray]] = []

    def fail() -> None:
        array = np.zeros(8)
        fields.append(weakref.ref(array))
        raise ZeroDivisionError

    worker, outcomes = Worker(overlap=overlap), queue.SimpleQueue[BaseException | None]()
    worker.start()
    gc.collect()
    gc.disable()
    try:
        worker.submit(fail, outcomes.put)  # type: ignore[arg-type]
        assert isinstance(outcomes.get(timeout=10), ZeroDivisionError)
        assert worker.stop(timeout=10)
        assert fields[0]() is None
    finally:
        gc.enable()
