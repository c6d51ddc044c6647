"""The number of torch threads."""

from __future__ import annotations

import os

import pytest
import torch

from turbofno.service.pipeline.worker import arithmetic_threads


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
