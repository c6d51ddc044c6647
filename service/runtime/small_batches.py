"""Small batches on a GPU, each as one CUDA graph: copy in, network, trust signals, copy out.

In steps (device_pipeline.py) a start makes some thirty calls of torch. For a small batch these take the host longer than
the batch takes the GPU, several times as long after a pause. A graph is one call.
"""

from __future__ import annotations

import logging
import math
import time
from collections import deque
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import torch

from turbofno.service.engine.runnable import ModelOutput, Ran
from turbofno.service.runtime.batch_copy import copy
from turbofno.service.runtime.device_pipeline import IN_FLIGHT, lost
from turbofno.service.runtime.judgement import judged_by, on_host
from turbofno.service.system import cores
from turbofno_ops import ChainRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from turbofno.service.engine.interface import Fields
    from turbofno.service.runtime.device_pipeline import Pipeline
    from turbofno.service.runtime.judgement import Signals
    from turbofno_ops import CompiledFNO

logger = logging.getLogger(__name__)

MOST_FIELDS = 8
MOST_BYTES = 1 << 20
"""Most bytes of the inputs of a small batch, and of its outputs: they are copied once more on the host."""
_MOST_KINDS = 16
"""Most batch sizes and grids with graphs; each has one for every batch in flight."""
MOST_GRAPHS = _MOST_KINDS * IN_FLIGHT
_SPINNING_CORES = 8
"""Fewest cores on which to spin until a graph has run: a thread that sleeps wakes some 100 us late, but a core that spins may be
a front end's."""
_MOST_DEVICE_BYTES = 1 << 30
"""Once its graphs take more, a model gets none for further sizes and grids."""


class SmallBatches:
    """Runs the small batches of a chain of kernels. For the device thread."""

    def __init__(
        self,
        name: str,
        network: CompiledFNO,
        signals: Signals,
        pipeline: Pipeline,
        *,
        channels: int,
    ) -> None:
        """`channels` are those of a field or of its output, the larger number; `signals` may raise errors."""
        self._name, self._network, self._signals, self._pipeline = name, network, signals, pipeline
        self._channels = channels
        self._kinds: dict[tuple[int, ...], _Kind] = {}
        """By shape."""
        self._device_bytes = 0

    def start(self, parts: Sequence[Fields]) -> Callable[[], ModelOutput] | None:
        """Start the parts as one batch, as `Pipeline.start`; the first ones of a shape capture its graphs.

        None if they are no small batch, or if no graph is free for them and none can be captured.

        Raises:
            DeviceLost: the process can run nothing more on the device.
        """
        shape = self._shape(parts)
        kind = None if shape is None else self._kind(shape)
        if kind is None:
            return None
        while kind.free:
            graph = kind.free.popleft()
            if graph.is_held_by(self._network):
                return self._start(graph, kind, parts)
            # It was evicted. To capture it again would take long, and memory may be short.
            kind.missing = 0
        if not kind.missing:
            return None
        kind.missing -= 1
        before = self._network.device_bytes()
        try:
            graph = _Graph(self._signals, kind.shape, self._network.device)
            return self._start(graph, kind, parts)
        except (RuntimeError, ChainRefused) as error:
            kind.missing = 0
            size, _, *grid = kind.shape
            logger.info(
                "model %s: batches of %d fields on the grid %s run in steps, not as one CUDA graph: %s",
                self._name, size, grid, error,
            )  # fmt: skip
            return None
        finally:
            self._device_bytes += self._network.device_bytes() - before

    def prepare(self, parts: Sequence[Fields]) -> None:
        """Capture all graphs for batches like this one. Raises DeviceLost."""
        running = []
        while wait := self.start(parts):
            running.append(wait)
        for wait in running:
            release = wait().release
            assert release is not None
            release()

    def clear(self) -> None:
        """Forget all graphs, which `CompiledFNO.clear` frees."""
        self._kinds.clear()
        self._device_bytes = 0

    def _shape(self, parts: Sequence[Fields]) -> tuple[int, ...] | None:
        """Shape of the smallest graph that takes the parts; None if they are no small batch of the network."""
        count, field = sum(map(len, parts)), parts[0].shape[1:]
        if count > MOST_FIELDS:
            return None
        size = next((size for size in self._network.buckets() if size >= count), None)
        if size is None or 4 * size * self._channels * math.prod(field[1:]) > MOST_BYTES:
            return None
        return None if self._network.refusal(field[1:]) else (size, *field)

    def _kind(self, shape: tuple[int, ...]) -> _Kind | None:
        """That of a shape; None if it is one too many."""
        kind = self._kinds.get(shape)
        if kind is None:
            if len(self._kinds) == _MOST_KINDS or self._device_bytes > _MOST_DEVICE_BYTES:
                return None
            kind = self._kinds[shape] = _Kind(shape)
        return kind

    def _start(
        self, graph: _Graph, kind: _Kind, parts: Sequence[Fields]
    ) -> Callable[[], ModelOutput]:
        began = time.perf_counter()
        count = graph.write(parts)
        gather_seconds = time.perf_counter() - began
        with self._pipeline.in_turn():
            graph.run(self._network)
        ran = Ran(self._network.backend, self._network.precision, "chain")
        release = partial(kind.free.append, graph)
        return partial(graph.output, count, ran, gather_seconds, release)


class _Kind:
    """Graphs of batches of one shape [size, channels, *grid]."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape
        self.free: deque[_Graph] = deque()
        """Not in use."""
        self.missing = IN_FLIGHT
        """Still to be captured; none after a failure."""


class _Graph:
    """Pinned memory and events of a graph. Called with a network it is what surrounds that in the graph.

    It must not refer to the network, which keeps it.
    """

    def __init__(self, signals: Signals, shape: tuple[int, ...], device: torch.device) -> None:
        self.shape = shape
        self._signals, self._device = signals, device
        self._given = torch.zeros(shape, pin_memory=True)
        self._result = self._values = torch.empty(0)
        self._names: tuple[str, ...] = ()
        self._began = torch.cuda.Event(enable_timing=True)
        blocking = cores() < _SPINNING_CORES
        self._arrived = torch.cuda.Event(enable_timing=True, blocking=blocking)

    def write(self, parts: Sequence[Fields]) -> int:
        """Copy the parts to pinned memory. Returns the number of fields; those behind them are of an earlier batch."""
        count = sum(map(len, parts))
        np.concatenate(parts, out=self._given.numpy()[:count])
        return count

    def is_held_by(self, network: CompiledFNO) -> bool:
        """True if it was captured and not evicted."""
        return network.holds(self, self.shape[0], self.shape[2:])

    def run(self, network: CompiledFNO) -> None:
        """Enqueue the graph on the current stream; the first call captures it."""
        self._began.record()
        network.run_within(self, self.shape[0], self.shape[2:])
        self._arrived.record()

    def __call__(self, network: Callable[[torch.Tensor], torch.Tensor]) -> None:
        stream = torch.cuda.current_stream(self._device)
        x = torch.empty(self.shape, device=self._device)
        copy(x, self._given, stream)
        y = network(x)
        self._names, values = judged_by(self._signals, x, y)
        if not self._result.numel():
            # In the warm-up: a capture must not allocate pinned memory.
            if y.nbytes > MOST_BYTES:
                raise RuntimeError(f"its outputs take {y.nbytes} bytes, more than {MOST_BYTES}")
            self._result = torch.empty(y.shape, pin_memory=True)
            self._values = torch.empty(values.shape, pin_memory=True)
        copy(self._result, y, stream)
        copy(self._values, values, stream)

    def output(
        self, count: int, ran: Ran, gather_seconds: float, release: Callable[[], None]
    ) -> ModelOutput:
        """Wait for the first `count` fields."""
        try:
            self._arrived.synchronize()
            compute_seconds = self._began.elapsed_time(self._arrived) / 1e3
        except RuntimeError as error:
            raise lost(error) from error
        total, trust = on_host(self._names, self._values, count)
        fields = self._result[:count].numpy()
        return ModelOutput(fields, ran, gather_seconds, compute_seconds, trust, total, release)
