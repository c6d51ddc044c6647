"""Runs batches on a device: directly on a CPU; on a GPU through pinned memory, overlapped with other batches.

On a GPU four streams overlap: while the network runs on batch n, batch n+1 is copied in, batch n-1 is judged and copied
out. The trust signals are many small kernels, which leave most of a GPU to the network.
`start`, on the device thread, gathers the fields of n+1 into pinned memory. The wait that it returns, on another
thread, gives the output of n-1 in pinned memory, until it is released. Arrays in page-locked shared memory are not
staged: the GPU reads and writes them itself (zero-copy).

Python overhead is costly while an event loop is busy: every call that releases the interpreter lock waits to get it
back. So all fields are copied or gathered by one call, and streams are switched without querying the current one.

    copy_in   | in n+1 |                    each arrow is an event:
    network       | network n |             in n -> network n -> signals n and out n -> the wait of n
    judge               | signals n-1 |
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
from turbofno.service.runtime.batch_copy import copy, copy_in, copy_out
from turbofno.service.runtime.judgement import on_host, unjudged
from turbofno.service.runtime.page_locked import locked_spans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from turbofno.service.engine.interface import Fields
    from turbofno.service.engine.runnable import Ran
    from turbofno.service.runtime.judgement import Judged, Judgement

    Forward = Callable[[torch.Tensor], tuple[torch.Tensor, Ran]]

logger = logging.getLogger(__name__)

IN_FLIGHT = 3
"""Batches on a GPU at once: one copied in, one computed, one judged and copied out."""


class Pipeline(Protocol):
    """Runs batches one after another on one device."""

    max_in_flight: int

    def in_turn(self) -> AbstractContextManager[object]:
        """A context whose kernels run after those of earlier batches; on the device thread.

        Raises:
            DeviceLost: in place of an error within, if the device can run nothing more.
        """
        ...

    def judge_in_turn(self, judge: Judgement) -> Judgement:
        """`judge` for a context of `in_turn`, whose kernels wait for it."""
        ...

    def start(
        self,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement = unjudged,
        output_buffers: Sequence[Fields] = (),
    ) -> Callable[[], ModelOutput]:
        """Start `forward`, then `judge`, on the parts as one batch. Returns the wait; see Runnable.start."""
        ...


def open_pipeline(device: torch.device) -> HostPipeline | DevicePipeline:
    """The pipeline for a device."""
    return DevicePipeline(device) if device.type == "cuda" else HostPipeline()


class HostPipeline:
    """Runs batches on a CPU, completely in `start`."""

    max_in_flight = 1

    def in_turn(self) -> AbstractContextManager[object]:
        return nullcontext()

    def judge_in_turn(self, judge: Judgement) -> Judgement:
        return judge

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
            total, trust = on_host(*judge(x, y), len(y))
        output = ModelOutput(y.numpy(), ran, gathered - started, ended - gathered, trust, total)
        return lambda: output


def gather(parts: Sequence[Fields]) -> Fields:
    """All parts, C-contiguous float32, as one such array, aligned and writable; no copy if a single part is that."""
    if len(parts) > 1:
        return np.concatenate(parts)
    return parts[0] if parts[0].flags.behaved else parts[0].copy()


class DevicePipeline:
    """Runs batches on a CUDA device. `start` is for one thread; the waits may be called on another."""

    max_in_flight = IN_FLIGHT

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copy_in, self._network, self._copy_out = (torch.cuda.Stream(device) for _ in range(3))
        # Preferred: a batch waits for its signals, and they take little from the next one.
        self._judge = torch.cuda.Stream(device, priority=-1)
        self._staging = [_Staging() for _ in range(IN_FLIGHT)]
        self._free: queue.SimpleQueue[_Staging] = queue.SimpleQueue()
        for staging in self._staging:
            self._free.put(staging)

    @contextmanager
    def in_turn(self) -> Iterator[None]:
        try:
            with torch.cuda.stream(self._network):
                yield
        except Exception as error:
            try:
                self._network.synchronize()
            except RuntimeError:
                raise lost(error) from error
            raise

    def judge_in_turn(self, judge: Judgement) -> Judgement:
        # on its own stream here, too: its graphs keep buffers, and cuBLAS a workspace, for that stream
        def judged(x: torch.Tensor, y: torch.Tensor) -> Judged:
            self._judge.wait_stream(self._network)
            with torch.cuda.stream(self._judge):
                found = judge(x, y)
            self._network.wait_stream(self._judge)
            return found

        return judged

    def start(
        self,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement = unjudged,
        output_buffers: Sequence[Fields] = (),
    ) -> Callable[[], ModelOutput]:
        staging = self._free.get()
        try:
            with torch.inference_mode():
                return self._enqueue(staging, parts, forward, judge, output_buffers)
        except Exception as error:
            try:
                # Work enqueued before the failure may still use the memory.
                for stream in (self._copy_in, self._network, self._judge, self._copy_out):
                    stream.synchronize()
            except RuntimeError:
                raise lost(error) from error
            finally:
                # Even if the device is lost: further pieces of the batch must fail, not block here.
                self._free.put(staging)
            raise

    def _enqueue(
        self,
        staging: _Staging,
        parts: Sequence[Fields],
        forward: Forward,
        judge: Judgement,
        output_buffers: Sequence[Fields],
    ) -> _Running:
        set_stream, before = torch.cuda.set_stream, torch.cuda.current_stream(self._device)
        try:
            started = time.perf_counter()
            set_stream(self._copy_in)
            x = self._copy_to_device(staging, parts)
            staging.copied_in.record(self._copy_in)
            gather_seconds = time.perf_counter() - started
            set_stream(self._network)
            self._network.wait_event(staging.copied_in)
            staging.began.record(self._network)
            y, ran = forward(x)
            y = y if y.is_contiguous() else y.contiguous()
            staging.ended.record(self._network)
            set_stream(self._judge)
            self._judge.wait_event(staging.ended)
            names, values = judge(x, y)
            # On this stream, where those of the next batch are written, and graphs are captured.
            host_values = staging.values(values.shape)
            copy(host_values, values, self._judge)
            staging.judged.record(self._judge)
            set_stream(self._copy_out)
            # The output is copied while `judge` runs.
            self._copy_out.wait_event(staging.ended)
            host_out = self._copy_from_device(staging, y, output_buffers)
            self._copy_out.wait_event(staging.judged)
            staging.arrived.record(self._copy_out)
        finally:
            set_stream(before)
        return _Running(
            (x, y, values),
            len(y),
            host_out,
            host_values,
            ran,
            names,
            gather_seconds,
            staging,
            release=partial(self._free.put, staging),
        )

    def _copy_to_device(self, staging: _Staging, parts: Sequence[Fields]) -> torch.Tensor:
        """Enqueue the copy of the parts to one batch on the device, on the current stream."""
        shape = (sum(map(len, parts)), *parts[0].shape[1:])
        spans = locked_spans(parts)
        if spans is not None:
            x = torch.empty(shape, device=self._device)
            copy_in(x, spans, self._copy_in)
            return x
        host_in = staging.input(shape)
        torch.cat([_tensor(part) for part in parts], out=host_in)
        return host_in.to(self._device, non_blocking=True)

    def _copy_from_device(
        self, staging: _Staging, y: torch.Tensor, output_buffers: Sequence[Fields]
    ) -> torch.Tensor | None:
        """Enqueue the copy of the outputs: into `output_buffers` if page-locked (returns None), else into pinned memory."""
        fit = sum(map(len, output_buffers)) == len(y) and (
            {buffer.shape[1:] for buffer in output_buffers} == {tuple(y.shape[1:])}
        )
        spans = locked_spans(output_buffers) if fit else None
        if spans is not None:
            copy_out(y, spans, self._copy_out)
            return None
        host_out = staging.output(tuple(y.shape))
        return host_out.copy_(y, non_blocking=True)


@dataclass(frozen=True, slots=True, eq=False)
class _Running:
    """A batch on the device; calling it waits for the output."""

    on_device: tuple[torch.Tensor, ...]
    """Referenced until the output has arrived: the allocator does not know that other streams use it."""
    count: int
    """Number of fields."""
    host_out: torch.Tensor | None
    values: torch.Tensor
    """Those of `Judged`."""
    ran: Ran
    names: tuple[str, ...]
    gather_seconds: float
    staging: _Staging
    release: Callable[[], None]

    def __call__(self) -> ModelOutput:
        try:
            compute_seconds = self.staging.wait()
        except RuntimeError as error:
            self.release()
            raise lost(error) from error
        total, trust = on_host(self.names, self.values, self.count)
        return ModelOutput(
            None if self.host_out is None else self.host_out.numpy(),
            self.ran,
            self.gather_seconds,
            compute_seconds,
            trust,
            total,
            self.release,
        )


class _Staging:
    """Reused pinned memory of one batch in flight, which grows to the largest batch, and its events."""

    def __init__(self) -> None:
        self._input = self._output = torch.empty(0)
        self._values = torch.empty(0)
        self.copied_in, self.judged = torch.cuda.Event(), torch.cuda.Event()
        self.began, self.ended = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # Blocking: spinning would take a core from the front ends.
        self.arrived = torch.cuda.Event(blocking=True)

    def wait(self) -> float:
        """Wait for the output. Returns the seconds that the device computed."""
        self.arrived.synchronize()
        return self.began.elapsed_time(self.ended) / 1e3

    def values(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._values = _at_least(self._values, math.prod(shape))
        return self._values[: math.prod(shape)].view(shape)

    def input(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._input = _at_least(self._input, math.prod(shape))
        return self._input[: math.prod(shape)].view(shape)

    def output(self, shape: tuple[int, ...]) -> torch.Tensor:
        self._output = _at_least(self._output, math.prod(shape))
        return self._output[: math.prod(shape)].view(shape)


def _tensor(part: Fields) -> torch.Tensor:
    """The part as a tensor; without a copy if torch can use its memory."""
    as_taken = part.flags.carray and part.dtype == np.float32
    return torch.from_numpy(part if as_taken else np.require(part, np.float32, ["C", "A", "W"]))


def _at_least(memory: torch.Tensor, count: int) -> torch.Tensor:
    """The memory if it has `count` elements, else new pinned float32 memory of the next power of two."""
    if memory.numel() >= count:
        return memory
    return torch.empty(1 << (count - 1).bit_length(), dtype=torch.float32, pin_memory=True)


def lost(error: Exception) -> DeviceLost:
    """Log a failure of the GPU, and return the error for its requests."""
    logger.critical("the GPU failed and can run nothing more in this process", exc_info=error)
    return DeviceLost(
        "the GPU failed and the server shuts down to be restarted; retry, another instance may answer",
        retry_after=1.0,
    )
