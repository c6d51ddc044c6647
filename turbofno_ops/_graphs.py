"""Functions of a batch captured as CUDA graphs, and the cache that bounds how many of them are kept."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple, Protocol, TypeVar, cast

import torch

from turbofno_ops._held import holding
from turbofno_ops.description import Size

# one capture at a time in a process: it begins with waiting for the device, which another one forbids, as it
# forbids giving memory back
_capturing = threading.Lock()
# PyTorch's allocators may go on asking a graph whose capture failed
_broken: list[torch.cuda.CUDAGraph] = []

Key = tuple[int, Size]
"""Batch bucket and grid."""


class CaptureFailed(RuntimeError):
    """Something that cannot stand in a CUDA graph; the message is CUDA's or PyTorch's."""


class Captured(Protocol):
    """A function of batches of one shape that a graph can hold."""

    @property
    def nbytes(self) -> int:
        """Bytes on the device besides the buffer and what a run takes."""

    def buffer(self, batch: int) -> torch.Tensor:
        """The memory that `run` reads."""

    def slot(self, buffer: torch.Tensor) -> torch.Tensor:
        """The buffer's view that a batch goes to, [batch, ..]."""

    def load(self, x: torch.Tensor, slot: torch.Tensor) -> None:
        """Write x to as many elements of a slot."""

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        """[batch, ..], on the current stream."""


class Lane(NamedTuple):
    """The stream that graphs are captured on, and the end of the last run. Graphs of one lane run one after another.

    cuBLAS has a workspace for each stream, which a graph captured there goes on using.
    """

    stream: torch.cuda.Stream
    done: torch.cuda.Event

    @classmethod
    def on(cls, device: torch.device) -> Lane:
        """A new one."""
        return cls(torch.cuda.Stream(device), torch.cuda.Event())


class Graph:
    """One function captured for batches up to `batch`, with buffers of its own; not for two callers at once.

    Replays on the caller's current stream. An event orders calls from different streams, because they
    share the buffers.

    Raises:
        CaptureFailed: the function does something that cannot be captured.
        torch.OutOfMemoryError: a run, or the graph's own memory, does not fit.
    """

    def __init__(
        self, forward: Captured, batch: int, device: torch.device, lane: Lane | None = None
    ) -> None:
        self._forward = forward
        stream, self._done = lane or Lane.on(device)
        self._buffer = forward.buffer(batch)
        self._slot = forward.slot(self._buffer)
        self._graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream(device))
        stream.wait_event(self._done)
        with _capturing:
            # the first run loads kernels and makes handles and tables
            with torch.cuda.stream(stream):
                forward.run(self._buffer)
            with holding() as self._tables:
                self._output = self._capture(stream)
            self._done.record(stream)
        self.nbytes = forward.nbytes + self._buffer.nbytes + _pool_bytes(self._graph)

    @property
    def output_shape(self) -> torch.Size:
        """Of one element of the result."""
        return self._output.shape[1:]

    def _capture(self, stream: torch.cuda.Stream) -> torch.Tensor:
        pool = torch.cuda.graph_pool_handle()
        try:
            # thread_local: other threads may allocate meanwhile. The outer one, because a capture that cannot be
            # ended leaves its stream the current one.
            with (
                torch.cuda.stream(stream),
                torch.cuda.graph(
                    self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ),
            ):
                return self._forward.run(self._buffer)
        except RuntimeError as error:
            _abandon(self._graph, pool, stream.device.index)
            # ending a broken capture fails as well and would hide why
            for cause in (error, error.__context__):
                if isinstance(cause, torch.OutOfMemoryError):
                    raise cause from None
            raise CaptureFailed(str(error.__context__ or error)) from error

    def run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write the network's output for x into `out`, on the current stream."""
        stream = torch.cuda.current_stream(x.device)
        stream.wait_event(self._done)
        batch = x.shape[0]
        self._forward.load(x, self._slot[:batch])
        self._graph.replay()
        out.copy_(self._output[:batch])
        self._done.record(stream)

    def close(self) -> None:
        """Wait for the last run and let the memory go."""
        self._done.synchronize()
        self._graph.reset()


G = TypeVar("G", bound=Graph)


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: int) -> None:
    """Undo what PyTorch leaves of a capture that could not be ended: its memory pool open, random numbers captured."""
    try:
        graph.pool()
    except RuntimeError:
        _broken.append(graph)
        # it is open only if the capture had begun and was not ended
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        random = torch.cuda.default_generators[device]
        random.graphsafe_set_state(random.clone_state())


def _pool_bytes(graph: torch.cuda.CUDAGraph) -> int:
    """Bytes of the device memory that belongs to a graph alone."""
    pool = tuple(graph.pool())
    return sum(
        segment["total_size"]
        for segment in torch.cuda.memory_snapshot()
        if tuple(segment["segment_pool_id"]) == pool
    )


class GraphCache:
    """The CUDA graphs used last, bounded in number and in bytes; the newest is kept whatever its size.

    Several users may share one, so that one bound holds for all of their graphs: `compile_fno` and `ModuleGraphs` take
    it. Each has an `owner`, any object, of its own, and holds `lock` while it gets and runs a graph. Call `clear()` of a user
    that goes before its cache does: the cache keeps its graphs until others need the room.

    Attributes:
        most_bytes: How much device memory all graphs and their buffers may hold.
        lock: Held by whoever gets, runs or drops graphs.
    """

    def __init__(self, max_graphs: int = 64, max_bytes: int = 4 * 2**30) -> None:
        for name, bound in (("max_graphs", max_graphs), ("max_bytes", max_bytes)):
            if bound < 1:
                raise ValueError(f"GraphCache: {name} must be at least 1, got {bound}")
        self.most_bytes = max_bytes
        self.lock = threading.Lock()
        self._most = max_graphs
        self._kept: OrderedDict[tuple[object, Key], Graph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all graphs that are kept; may be asked for while another thread captures."""
        return sum(graph.nbytes for graph in tuple(self._kept.values()))

    def bytes_of(self, owner: object) -> int:
        """Bytes of one user's graphs; may be asked for while another thread captures."""
        return sum(graph.nbytes for (of, _), graph in tuple(self._kept.items()) if of is owner)

    def get(self, owner: object, key: Key, capture: Callable[[], G]) -> G:
        """A user's graph of `key`, captured if it is not there; others make room."""
        at = (owner, key)
        found = cast("G | None", self._kept.get(at))
        if found is None:
            self._shrink(self._most - 1, keep=0)
            found = self._captured(capture)
            self._kept[at] = found
        self._kept.move_to_end(at)
        self._shrink(self._most, keep=1)
        return found

    def _captured(self, capture: Callable[[], G]) -> G:
        try:
            return capture()
        except torch.OutOfMemoryError:
            if not self._kept:
                raise
        self._shrink(0, keep=0)
        return capture()

    def drop(self, owner: object) -> None:
        """Let all graphs of one user go."""
        self._close([at for at in self._kept if at[0] is owner])

    def _shrink(self, most: int, *, keep: int) -> None:
        going, left, nbytes = [], len(self._kept), self.nbytes
        for at, graph in self._kept.items():
            if left <= keep or (left <= most and nbytes <= self.most_bytes):
                break
            going.append(at)
            left, nbytes = left - 1, nbytes - graph.nbytes
        self._close(going)

    def _close(self, going: list[tuple[object, Key]]) -> None:
        for at in going:
            self._kept.pop(at).close()
        if going:
            # a graph's memory goes back to the device only when PyTorch's cache does
            with _capturing:
                torch.cuda.empty_cache()
