"""A batch to the device and back: straight on a CPU; on a GPU through pinned memory, overlapped with other batches.

On a GPU three streams work side by side: while the kernels of batch n run, batch n+1 is copied in and batch n-1
copied out. Host memory follows in the same order: `start`, on the device thread, gathers the fields of n+1 into
pinned memory; the wait that it returns, on another thread, lends the answer of n-1 where it came out, until it has
been handed out. Fields that lie in page-locked slots are not gathered, and answers that go there not handed out: the
GPU reads and writes them itself.

What a batch costs in Python counts twice while an event loop is busy: every call that gives the interpreter lock
away waits to get it back. So fields are gathered by one call, however many they are, and streams are switched and
events recorded without asking which stream is the current one.

    copy_in   | in n+1 |            each arrow an event:
    kernels       | kernels n |     in n -> kernels n -> out n -> the wait of n
    copy_out            | out n-1 |
"""

from __future__ import annotations

import logging
import math
import queue
import time
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from turbofno.service.engine.runnable import ModelOutput
from turbofno.service.errors import DeviceLost
from turbofno.service.runtime.page_locked import zero_copy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from turbofno.service.engine.interface import Fields
    from turbofno.service.engine.runnable import Ran

    Forward = Callable[[torch.Tensor], tuple[torch.Tensor, Ran]]
    Judgement = Callable[[torch.Tensor, torch.Tensor], dict[str, torch.Tensor]]
    """Numbers by name, one a field, float32 [n], of a batch's inputs and outputs."""

logger = logging.getLogger(__name__)

IN_FLIGHT = 3
"""Batches on a GPU at once: one being gathered and copied in, one computed, one copied and handed out."""


def unjudged(_x: torch.Tensor, _y: torch.Tensor) -> dict[str, torch.Tensor]:
    """A judge that says nothing."""
    return {}


class Pipeline(Protocol):
    """Runs batches one after another on one device."""

    max_in_flight: int

    def in_turn(self) -> AbstractContextManager[object]:
        """Tensors made and kernels started within it come after those of the batches before; on the device thread.

        Raises:
            DeviceLost: instead of what was raised within, if the device can run nothing more.
        """
        ...

    def start(
        self,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement = unjudged,
        answers: Sequence[Fields] = (),
    ) -> Callable[[], ModelOutput]:
        """Begin `forward`, then `judge`, on the parts as one batch; what it returns waits for the answer.

        See Runnable.start.
        """
        ...


def open_pipeline(device: torch.device) -> HostPipeline | DevicePipeline:
    """The pipeline for that device."""
    return DevicePipeline(device) if device.type == "cuda" else HostPipeline()


class HostPipeline:
    """A CPU: everything happens in `start`."""

    max_in_flight = 1

    def in_turn(self) -> AbstractContextManager[object]:
        return nullcontext()

    def start(
        self,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement = unjudged,
        _: Sequence[Fields] = (),
    ) -> Callable[[], ModelOutput]:
        started = time.perf_counter()
        x = torch.from_numpy(gather(parts))
        gathered = time.perf_counter()
        with torch.inference_mode():
            y, ran = forward(x)
            ended = time.perf_counter()
            judged = {name: values.tolist() for name, values in judge(x, y).items()}
        fields = y.numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            total = float(fields.sum())
        output = ModelOutput(fields, ran, gathered - started, ended - gathered, judged, total)
        return lambda: output


def gather(parts: Sequence[Fields]) -> Fields:
    """One C-contiguous, aligned, writable float32 array of all parts; without a copy if there is one such part."""
    if len(parts) == 1:
        return np.require(parts[0], np.float32, ["C", "A", "W"])
    return np.concatenate(parts, dtype=np.float32)


class DevicePipeline:
    """One CUDA device. `start` is for one thread; each wait may be called on another."""

    max_in_flight = IN_FLIGHT

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._streams = [torch.cuda.Stream(device) for _ in range(3)]
        self._copy_in, self._kernels, self._copy_out = self._streams
        self._staging = [_Staging() for _ in range(IN_FLIGHT)]
        self._free: queue.SimpleQueue[_Staging] = queue.SimpleQueue()
        for staging in self._staging:
            self._free.put(staging)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        try:
            with torch.cuda.stream(self._kernels):
                yield
        except Exception as error:
            try:
                self._kernels.synchronize()
            except RuntimeError:
                raise _lost(error) from error
            raise

    @property
    def staging_bytes(self) -> int:
        """Pinned host memory held: at most twice the largest batch, in and out, for each batch in flight."""
        return sum(staging.nbytes for staging in self._staging)

    def start(
        self,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement = unjudged,
        answers: Sequence[Fields] = (),
    ) -> Callable[[], ModelOutput]:
        staging = self._free.get()
        try:
            return self._enqueue(staging, parts, forward, judge, answers)
        except Exception as error:
            try:
                # What was enqueued before the failure may still use the memory.
                for stream in self._streams:
                    stream.synchronize()
            except RuntimeError:
                raise _lost(error) from error
            finally:
                # Of a lost device too: the rest of a batch in pieces must fail as well, not wait for room.
                self._free.put(staging)
            raise

    def _enqueue(
        self,
        staging: _Staging,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement,
        answers: Sequence[Fields],
    ) -> _Running:
        set_stream = torch.cuda.set_stream
        with torch.inference_mode(), torch.cuda.stream(self._copy_in):
            started = time.perf_counter()
            x = self._copy_to_device(staging, parts)
            staging.copied_in.record(self._copy_in)
            gather_seconds = time.perf_counter() - started
            set_stream(self._kernels)
            self._kernels.wait_event(staging.copied_in)
            staging.began.record(self._kernels)
            y, ran = forward(x)
            staging.ended.record(self._kernels)
            judged = judge(x, y)
            numbers = torch.cat([y.sum().view(1), *judged.values()])
            staging.judged.record(self._kernels)
            host_numbers = staging.numbers(len(numbers))
            set_stream(self._copy_out)
            # the answer leaves while it is judged
            self._copy_out.wait_event(staging.ended)
            host_out = self._copy_from_device(staging, y, answers)
            self._copy_out.wait_event(staging.judged)
            host_numbers.copy_(numbers, non_blocking=True)
            staging.arrived.record(self._copy_out)
        return _Running(
            (x, y, numbers),
            host_out,
            host_numbers,
            ran,
            tuple(judged),
            gather_seconds,
            staging,
            release=partial(self._free.put, staging),
        )

    def _copy_to_device(self, staging: _Staging, parts: Sequence[Fields]) -> torch.Tensor:
        """The parts as one batch on the device, for whoever waits for the current stream."""
        sizes = [len(part) for part in parts]
        shape = (sum(sizes), *parts[0].shape[1:])
        if zero_copy(parts):
            x = torch.empty(shape, device=self._device)
            rows = list(x.split(sizes))
            torch._foreach_copy_(rows, [*map(_tensor, parts)], non_blocking=True)
            return x
        host_in = staging.input(shape)
        torch.cat([_tensor(part) for part in parts], out=host_in)
        return host_in.to(self._device, non_blocking=True)

    def _copy_from_device(
        self, staging: _Staging, y: torch.Tensor, answers: Sequence[Fields]
    ) -> torch.Tensor | None:
        """Copy the batch out on the current stream: into `answers` if the GPU reaches them, else into what it returns."""
        sizes = [len(answer) for answer in answers]
        fit = sum(sizes) == len(y) and {answer.shape[1:] for answer in answers} == {y.shape[1:]}
        if fit and zero_copy(answers):
            rows = list(y.split(sizes))
            torch._foreach_copy_([*map(_tensor, answers)], rows, non_blocking=True)
            return None
        host_out = staging.output(tuple(y.shape))
        return host_out.copy_(y, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A batch on the device; calling it waits for the answer."""

    on_device: tuple[torch.Tensor, ...]
    """Held until the answer has arrived: the allocator does not know that the other streams use it."""
    host_out: torch.Tensor | None
    numbers: torch.Tensor
    """The total, then each field's judgements of one name after those of the other."""
    ran: Ran
    judged: tuple[str, ...]
    gather_seconds: float
    staging: _Staging
    release: Callable[[], None]

    def __call__(self) -> ModelOutput:
        try:
            compute_seconds = self.staging.wait()
        except RuntimeError as error:
            self.release()
            raise _lost(error) from error
        total, *judgements = self.numbers.tolist()
        count = len(judgements) // max(1, len(self.judged))
        return ModelOutput(
            None if self.host_out is None else self.host_out.numpy(),
            self.ran,
            self.gather_seconds,
            compute_seconds,
            {
                name: judgements[start * count : (start + 1) * count]
                for start, name in enumerate(self.judged)
            },
            total,
            self.release,
        )


class _Staging:
    """The pinned memory of one batch in flight, which grows to the largest batch, and its events; used again and again."""

    def __init__(self) -> None:
        self._input = self._output = torch.empty(0)
        self._numbers = torch.empty(0)
        self.copied_in, self.judged = torch.cuda.Event(), torch.cuda.Event()
        self.began, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # waited for asleep: spinning would take a core from the front ends
        self.arrived = torch.cuda.Event(blocking=True)

    def wait(self) -> float:
        """Until the answer has arrived. Seconds that the device computed for it."""
        self.arrived.synchronize()
        return self.began.elapsed_time(self.ended) / 1e3

    @property
    def nbytes(self) -> int:
        return self._input.nbytes + self._output.nbytes

    def numbers(self, count: int) -> torch.Tensor:
        self._numbers = _at_least(self._numbers, count)
        return self._numbers[:count]

    def input(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._input = _at_least(self._input, math.prod(shape))
        return self._input[: math.prod(shape)].view(shape)

    def output(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._output = _at_least(self._output, math.prod(shape))
        return self._output[: math.prod(shape)].view(shape)


def _tensor(part: Fields) -> torch.Tensor:
    """The same numbers, without a copy where they are as torch takes them."""
    as_taken = part.flags.carray and part.dtype == np.float32
    return torch.from_numpy(part if as_taken else np.require(part, np.float32, ["C", "A", "W"]))


def _at_least(memory: torch.Tensor, count: int) -> torch.Tensor:
    """The same pinned float32 memory if it has `count` elements, else a new one, its size a power of two."""
    if memory.numel() >= count:
        return memory
    return torch.empty(1 << (count - 1).bit_length(), dtype=torch.float32, pin_memory=True)


def _lost(error: Exception) -> DeviceLost:
    logger.critical("the GPU failed and can run nothing more in this process", exc_info=error)
    return DeviceLost(
        "the GPU failed and the server shuts down to be started again; retry, another instance may answer",
        retry_after=1.0,
    )
