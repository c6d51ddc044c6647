"""Zero-copy access to page-locked memory, and its lifetime."""

from __future__ import annotations

import gc
import threading
import time
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.service.runtime.as_model import as_model
from turbofno.service.engine.interface import NO_FIELDS, Fields, PredictRequest, PredictResult
from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.errors import InvalidField
from turbofno.service.pipeline.batch import Batch
from turbofno.service.pipeline.ticket import Kind, Slice, Ticket
from turbofno.service.processes.memory import AttachedMemory, SlotMemory
from turbofno.service.runtime import page_locked
from turbofno.service.runtime.device_pipeline import IN_FLIGHT, DevicePipeline
from turbofno.service.runtime.judgement import judged_by
from turbofno.service.runtime.page_locked import lock, locked_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
MIB = 1 << 20


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> np.ndarray:
    """Four MiB, of which the first three are registered as locked."""
    memory = np.zeros(4 * MIB, np.uint8)
    start = memory.ctypes.data
    monkeypatch.setattr(page_locked, "_regions", {start: start + 3 * MIB})
    return memory


def fields(memory: np.ndarray, start: int, stop: int) -> Fields:
    return memory[start:stop].view(np.float32).reshape(-1, 1, 16)


def test_zero_copy_needs_large_and_completely_locked_arrays(memory: np.ndarray) -> None:
    large = fields(memory, 0, MIB)
    last = fields(memory, 2 * MIB, 3 * MIB)
    spans = locked_spans([last, large])
    assert spans is not None
    assert spans.addresses.tolist() == [last.ctypes.data, large.ctypes.data]
    assert spans.sizes.tolist() == [MIB, MIB]
    assert locked_spans([large, fields(memory, 2 * MIB, 3 * MIB + 64)]) is None
    assert locked_spans([large, np.zeros_like(large)]) is None
    assert locked_spans([large.reshape(-1, 2, 16)[:, :1]]) is None, "not in one piece"
    assert locked_spans([fields(memory, i * 8192, (i + 1) * 8192) for i in range(16)]) is None


def test_zero_copy_needs_arrays_in_one_region(
    memory: np.ndarray, monkeypatch: pytest.MonkeyPatch
) -> None:
    start = memory.ctypes.data
    border = start + 2 * MIB
    monkeypatch.setattr(page_locked, "_regions", {border: border + MIB, start: border})
    inside = [fields(memory, 0, 2 * MIB), fields(memory, 2 * MIB, 3 * MIB)]
    spans = locked_spans(inside)
    assert spans is not None
    assert spans.addresses.tolist() == [start, border]
    assert locked_spans([fields(memory, MIB, 3 * MIB)]) is None, "each is locked by itself"


class Placing:
    """Doubles its input, into the output buffers if given; the batch then fails on values that are not finite."""

    name, version = "double", "1"

    def start(
        self, parts: Sequence[Fields], output_buffers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        y = 2 * np.concatenate(parts)
        trust = {"residual": [float(row[0, 0]) for row in y]}
        if not output_buffers:
            return lambda: ModelOutput(y, Ran("fake"), total=float(y.sum()), trust=trust)
        start = 0
        for buffer in output_buffers:
            buffer[:] = y[start : start + len(buffer)]
            start += len(buffer)
        return lambda: ModelOutput(None, Ran("fake"), total=float(y.sum()), trust=trust)


def ticket(x: Fields, answer: Fields | None) -> Ticket:
    request = PredictRequest("placing", "1", x, "id", output_buffer=answer)
    nowhere = NO_FIELDS if answer is None else answer
    result = PredictResult("placing", "1", nowhere, 0.0, 0.0, (), "")
    kind = Kind.of(Placing(), request)
    return Ticket(kind, request, 0.0, Mock(), len(x), result=result)


def test_outputs_already_in_the_answers_are_not_copied(
    memory: np.ndarray,
) -> None:
    rng = generator()
    inputs = [rng.standard_normal((size, 1, 16), np.float32) for size in (6000, 9000)]
    rooms = [
        fields(memory, start, start + x.nbytes) for start, x in zip((0, MIB), inputs, strict=True)
    ]
    inputs[1][7, 0, 3] = np.nan
    tickets = [ticket(x, room) for x, room in zip(inputs, rooms, strict=True)]
    part = Slice(tickets[0], 0, 6000)
    report = Batch([part, Slice(tickets[1], 0, 5000), Slice(tickets[1], 5000, 9000)]).start()()
    assert report.largest_run == 15000
    assert tickets[0].result.fields is rooms[0]
    np.testing.assert_array_equal(rooms[0], 2 * inputs[0])
    np.testing.assert_array_equal(rooms[1][5000:], 2 * inputs[1][5000:])
    assert tickets[0].result.trust["residual"] == pytest.approx(2 * inputs[0][:, 0, 0])
    assert set(report.errors) == {1}
    assert isinstance(report.errors[1], InvalidField)
    assert "field 7 of 9000" in report.errors[1].message


def test_outputs_are_copied_if_an_answer_is_not_locked(memory: np.ndarray) -> None:
    x = np.ones((9000, 1, 16), np.float32)
    placed, owned = ticket(x, fields(memory, 0, x.nbytes)), ticket(x, None)
    report = Batch([Slice(placed, 0, 9000), Slice(owned, 0, 9000)]).start()()
    assert not report.errors
    assert (placed.request.output_buffer == 2).all()
    assert (owned.result.fields == 2).all()


def mapped(start: int) -> bool:
    """True if a mapping of this process starts there."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return any(line.startswith(f"{start:x}-") for line in lines)


def wait_until_unmapped(start: int) -> None:
    until = time.monotonic() + 10
    while mapped(start):
        assert time.monotonic() < until, "locked for ever"
        time.sleep(0.002)


class Cudart:
    """Fake cudart: locks anything; unlocks once it `may`, recording the thread and whether memory was mapped."""

    def __init__(self) -> None:
        self.may = threading.Event()
        self.unlocked: list[tuple[int, bool, int]] = []

    def cudaHostRegister(self, *_: int) -> int:
        return 0

    def cudaHostUnregister(self, start: int) -> int:
        self.may.wait(3)
        self.unlocked.append((start, mapped(start), threading.get_ident()))
        return 0


def test_memory_is_unlocked_on_its_own_thread_and_mapped_until_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cudart, device = Cudart(), torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "cudart", lambda: cudart)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    slots = SlotMemory(MIB)
    attached, next_attached = (AttachedMemory(slots.attachment()) for _ in range(2))
    first, second = (memory.bytes.ctypes.data for memory in (attached, next_attached))
    lock(attached.bytes, MIB, device).join()
    garbage: list[Any] = [fields(attached.bytes, 0, MIB)]
    garbage.append(garbage)
    del attached
    assert locked_spans(garbage[:1]) is not None

    del garbage
    gc.collect()
    assert not page_locked._regions, "at once"
    assert mapped(first)
    assert not cudart.unlocked, "this thread would have waited"
    lock(next_attached.bytes, MIB, device).join()

    cudart.may.set()
    wait_until_unmapped(first)
    assert list(page_locked._regions) == [second]
    del next_attached
    assert not page_locked._regions
    wait_until_unmapped(second)
    assert [(start, there) for start, there, _ in cudart.unlocked] == [
        (first, True),
        (second, True),
    ]
    assert threading.get_ident() not in {thread for *_, thread in cudart.unlocked}


@pytest.fixture
def slots() -> tuple[SlotMemory, AttachedMemory]:
    memory = SlotMemory(64 * MIB)
    attached = AttachedMemory(memory.attachment())
    lock(attached.bytes, memory.attachment().kept, torch.device("cuda", 0)).join()
    return memory, attached


@gpu
def test_no_batch_gets_the_values_of_another(slots: tuple[SlotMemory, AttachedMemory]) -> None:
    memory, attached = slots
    pipeline, rng = DevicePipeline(torch.device("cuda", 0)), generator()
    running: list[tuple[list[Fields], list[Fields], Any]] = []
    kept = []
    for number in range(60):
        sizes = rng.integers(1, 9, int(rng.integers(1, 9)))
        placed = [memory.array((int(n), 2, 97, 101)) for n in sizes for _ in "io"]
        kept.append(placed)
        for array in placed:
            array[:] = rng.standard_normal(array.shape, np.float32)
        seen = [attached.view(memory.span(array)) for array in placed]
        parts, answers = seen[::2], seen[1::2]
        assert locked_spans(parts) is not None
        gathered = [part.copy() for part in parts] if number % 3 == 0 else parts
        own = number % 4 == 1

        def forward(x: torch.Tensor) -> torch.Tensor:
            torch.cuda._sleep(500_000)
            return 2 * x

        def signals(x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
            torch.cuda._sleep(500_000)
            return {"first": x[:, 0, 0, 0], "last": y[:, -1, -1, -1]}

        wait = pipeline.start(
            gathered, as_model(forward), partial(judged_by, signals), () if own else answers
        )
        running.append((parts, answers, wait))
        if len(running) < IN_FLIGHT and number < 57:
            continue
        parts, answers, wait = running.pop(0)
        answer = wait()
        truth = 2 * np.concatenate(parts)
        found = np.concatenate(answers) if answer.fields is None else answer.fields.copy()
        answer.release()
        np.testing.assert_array_equal(found, truth)
        np.testing.assert_array_equal(answer.trust["first"], truth[:, 0, 0, 0] / 2)
        np.testing.assert_array_equal(answer.trust["last"], truth[:, -1, -1, -1])
        assert answer.total == pytest.approx(float(truth.astype(np.float64).sum()), abs=1)
        kept.pop(0)


@gpu
def test_answers_of_another_shape_are_not_written(slots: tuple[SlotMemory, AttachedMemory]) -> None:
    memory, attached = slots
    x = np.ones((8, 1, 128, 128), np.float32)
    placed = memory.array((8, 2, 128, 128))
    placed[:] = 7
    pipeline = DevicePipeline(torch.device("cuda", 0))
    answer = pipeline.start(
        [x], as_model(torch.neg), output_buffers=[attached.view(memory.span(placed))]
    )()
    assert answer.fields is not None
    assert (answer.fields == -1).all()
    assert (placed == 7).all()


@gpu
def test_failed_locking_logs_a_warning_and_fails_no_batch(
    slots: tuple[SlotMemory, AttachedMemory], caplog: pytest.LogCaptureFixture
) -> None:
    locked = dict(page_locked._regions)
    lock(slots[1].bytes, MIB, torch.device("cuda", 0)).join()
    assert "could not be page-locked" in caplog.text
    assert page_locked._regions == locked
    assert torch.ones(3, device="cuda").sum().item() == 3, "the error is not met by others"


@gpu
def test_memory_is_locked_while_referenced_and_then_unlocked() -> None:
    for _ in range(5):
        memory = SlotMemory(200 * MIB)
        attached = AttachedMemory(memory.attachment())
        lock(attached.bytes, memory.attachment().kept, torch.device("cuda", 0)).join()
        start = attached.bytes.ctypes.data
        low, high = memory.array((16 * MIB,)), memory.array((17 * MIB,))
        view, beyond = (attached.view(memory.span(array)) for array in (low, high))
        del attached
        gc.collect()
        assert locked_spans([view]) is not None
        assert torch.from_numpy(view).is_pinned()
        assert locked_spans([beyond]) is None, "only so much of each memory"
        assert len(page_locked._regions) == 1
        del view, beyond, low, high, memory
        gc.collect()
        assert not page_locked._regions
        wait_until_unmapped(start)


@gpu
def test_memory_freed_on_a_capturing_thread_does_not_break_the_capture() -> None:
    slots = SlotMemory(64 * MIB)
    attached = AttachedMemory(slots.attachment())
    start = attached.bytes.ctypes.data
    lock(attached.bytes, 64 * MIB, torch.device("cuda", 0)).join()
    x, graph = torch.ones(3, device="cuda"), torch.cuda.CUDAGraph()
    assert (x * 2 + 1).sum().item() == 9, "loads the kernels"
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        y = x * 2
        del attached
        assert not page_locked._regions
        wait_until_unmapped(start)
        y = y + 1
    graph.replay()
    assert y.tolist() == [3, 3, 3]
