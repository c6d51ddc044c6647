"""CUDA graphs of functions of a batch, and the bounded cache that keeps them."""

from __future__ import annotations

import ctypes
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import NamedTuple, Protocol, TypeVar, cast

import torch

from turbofno_ops._table_use import used_tables
from turbofno_ops.description import Size

capture_lock = threading.Lock()
"""One capture at a time per process: a capture begins with a device synchronization, which is forbidden during another
capture, as is freeing device memory."""
_NON_BLOCKING = 1  # CU_STREAM_NON_BLOCKING: does not wait for the default stream
# kept alive: PyTorch's allocators may still refer to a graph whose capture failed
_failed_graphs: list[torch.cuda.CUDAGraph] = []

Key = tuple[int, Size] | tuple[int, Size, object]
"""Batch bucket and grid, and what surrounds the network in the graph, if anything does."""


def batch_buckets(most: int) -> tuple[int, ...]:
    """Return the powers of two below `most`, and `most`."""
    return (*(2**i for i in range((most - 1).bit_length())), most)


class CaptureFailed(RuntimeError):
    """An operation that a CUDA graph cannot contain; the message is CUDA's or PyTorch's."""


class Capturable(Protocol):
    """A function of batches of one shape that a graph can capture."""

    @property
    def nbytes(self) -> int:
        """Device bytes besides the buffer and the memory of a run."""

    def buffer(self, batch: int) -> torch.Tensor:
        """Allocate the memory that `run` reads."""

    def input_view(self, buffer: torch.Tensor) -> torch.Tensor:
        """Return the view of the buffer that holds the input batch, [batch, ..]."""

    def load(self, x: torch.Tensor, input_view: torch.Tensor) -> None:
        """Write x to `input_view`, a view of the same batch size."""

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        """Compute the result [batch, ..] on the current stream."""


class CaptureStream(NamedTuple):
    """The stream that graphs are captured on, and the event of the last run. Graphs of one stream run in sequence.

    They share the stream's cuBLAS workspace.
    """

    stream: torch.cuda.Stream
    done: torch.cuda.Event
    lock: threading.Lock
    """Held from the wait for the last run until this one is recorded."""

    @classmethod
    def on(cls, device: torch.device) -> CaptureStream:
        """Create a stream and its event."""
        return cls(_own_stream(device), torch.cuda.Event(), threading.Lock())


def _own_stream(device: torch.device) -> torch.cuda.Stream:
    """Create a stream that no other code gets.

    Those of PyTorch come from a pool of 32 and repeat: what another thread launched on the stream of a capture would be
    captured instead of run.
    """
    driver, index = ctypes.CDLL("libcuda.so.1"), _index(device)
    ordinal, context, stream = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()

    def call(name: str, *arguments: object) -> None:
        status = getattr(driver, name)(*arguments)
        if status:
            raise RuntimeError(
                f"turbofno: no stream could be created on {device} ({name}: CUDA error {status})"
            )

    call("cuDeviceGet", ctypes.byref(ordinal), index)
    call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ordinal)
    call("cuCtxPushCurrent_v2", context)
    try:
        call("cuStreamCreate", ctypes.byref(stream), _NON_BLOCKING)
    finally:
        call("cuCtxPopCurrent_v2", ctypes.byref(context))
    return torch.cuda.ExternalStream(stream.value, device=index)


def _index(device: torch.device) -> int:
    return torch.cuda.current_device() if device.index is None else device.index


@cache
def shared_lane(device: torch.device) -> CaptureStream:
    """Return the lane of a device for graphs of any code, which may need cuBLAS: they share one workspace."""
    return CaptureStream.on(device)


@cache
def _stream_of_chains(index: int) -> torch.cuda.Stream:
    """Return the stream that chains are captured on. They need no cuBLAS workspace, so their graphs may run at once."""
    return _own_stream(torch.device("cuda", index))


class Graph:
    """One function captured for batches up to `batch`, with its own buffers. Not thread-safe.

    Replays on the caller's current stream. An event orders calls from different streams, because they
    share the buffers.

    Raises:
        CaptureFailed: The function does something that cannot be captured.
        torch.OutOfMemoryError: A run, or the graph's own memory, does not fit.
    """

    def __init__(
        self,
        forward: Capturable,
        batch: int,
        device: torch.device,
        lane: CaptureStream | None = None,
    ) -> None:
        self._forward, self._batch, self._index = forward, batch, _index(device)
        self._stream = torch.cuda.current_stream(self._index)  # of the last run
        stream, self._done, self._turn = lane or (
            _stream_of_chains(self._index),
            torch.cuda.Event(),
            threading.Lock(),
        )
        self._buffer = forward.buffer(batch)
        self._input = forward.input_view(self._buffer)
        self._graph = torch.cuda.CUDAGraph()
        with capture_lock, self._turn:
            stream.wait_stream(torch.cuda.current_stream(device))
            stream.wait_event(self._done)
            # warm-up: the first run loads kernels and makes handles and tables
            try:
                with torch.cuda.stream(stream):
                    forward.run(self._buffer)
            except BaseException:
                # else its kernels may still use memory that is freed now
                stream.synchronize()
                raise
            with used_tables() as self._tables:
                self._output = self._capture(stream)
            self._done.record(stream)
        self.nbytes = forward.nbytes + self._buffer.nbytes + self._pool_bytes

    @property
    def output_shape(self) -> torch.Size:
        """Shape of one element of the result."""
        return self._output.shape[1:]

    def _capture(self, stream: torch.cuda.Stream) -> torch.Tensor:
        pool = torch.cuda.graph_pool_handle()
        try:
            # thread_local: other threads may allocate meanwhile. The outer context restores the current stream, which
            # a capture that fails to end does not.
            with (
                torch.cuda.stream(stream),
                torch.cuda.graph(
                    self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"
                ),
            ):
                # Its pool is new, so all that it holds is reserved here; what other threads reserve meanwhile counts too.
                # PyTorch's snapshots are exact, but list all memory, and lose a reference to each of their arguments (2.11).
                before = torch.cuda.memory_reserved(self._index)
                output = self._forward.run(self._buffer)
                self._pool_bytes = max(0, torch.cuda.memory_reserved(self._index) - before)
                return output
        except RuntimeError as error:
            _abandon(self._graph, pool, stream.device.index)
            raise _reported(error) from error

    def run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """Write the network's output for x into `out`, on the current stream."""
        stream, batch = self._current_stream(), x.shape[0]
        given, result = self._input, self._output
        if batch < self._batch:
            given, result = given[:batch], result[:batch]
        with self._turn:
            stream.wait_event(self._done)
            self._forward.load(x, given)
            self._graph.replay()
            out.copy_(result)
            self._done.record(stream)

    def replay(self) -> None:
        """Run a function that reads its input and writes its result itself, on the current stream."""
        stream = self._current_stream()
        with self._turn:
            stream.wait_event(self._done)
            self._graph.replay()
            self._done.record(stream)

    def _current_stream(self) -> torch.cuda.Stream:
        # PyTorch's function makes an object at every call, which takes 3 us
        handle = torch._C._cuda_getCurrentRawStream(self._index)
        if self._stream.cuda_stream != handle:
            self._stream = torch.cuda.current_stream(self._index)
        return self._stream

    def close(self) -> None:
        """Wait for the last run and free the memory."""
        self._done.synchronize()
        self._graph.reset()


G = TypeVar("G", bound=Graph)


def _reported(error: RuntimeError) -> RuntimeError:
    """Return the error to raise for that of a capture: of the original one, because ending a failed capture raises too.

    It is new: to raise the original one again would make a reference cycle with its frames, which hold the tensors of the run.
    """
    original = error.__context__ or error
    for cause in (error, original):
        if isinstance(cause, torch.OutOfMemoryError):
            return torch.OutOfMemoryError(str(cause))
    return CaptureFailed(str(original))


def _abandon(graph: torch.cuda.CUDAGraph, pool: tuple[int, int], device: int) -> None:
    """Clean up after a capture that could not be ended: close its memory pool, reset the random generator."""
    try:
        graph.pool()
    except RuntimeError:
        _failed_graphs.append(graph)
        # the pool is open only if the capture began and did not end
        with suppress(RuntimeError):
            torch._C._cuda_endAllocateToPool(device, pool)
            torch._C._cuda_releasePool(device, pool)
        random = torch.cuda.default_generators[device]
        random.graphsafe_set_state(random.clone_state())


class GraphCache:
    """LRU cache of CUDA graphs, bounded in number and in bytes. The newest graph is kept whatever its size.

    Pass one cache to several `compile_fno` and `ModuleGraphs` calls to bound all of their graphs together. Call
    `clear()` of a network that is deleted before its cache: otherwise its graphs stay until they are evicted.

    Each user has its own `owner` (any object) and holds `lock` while it gets and runs a graph.

    Args:
        max_graphs: Most graphs to keep.
        max_bytes: Most device bytes of all graphs with their buffers.

    Attributes:
        most_bytes: `max_bytes`.
        lock: Acquire it to get, run or drop graphs.

    Raises:
        ValueError: A bound below 1.

    Example:
        >>> graphs = GraphCache(max_graphs=16, max_bytes=2**30)
        >>> graphs.nbytes
        0
    """

    def __init__(self, max_graphs: int = 64, max_bytes: int = 4 * 2**30) -> None:
        for name, bound in (("max_graphs", max_graphs), ("max_bytes", max_bytes)):
            if bound < 1:
                raise ValueError(f"GraphCache: {name} must be at least 1, got {bound}")
        self.most_bytes = max_bytes
        self.lock = threading.Lock()
        self._max_graphs = max_graphs
        self._kept: OrderedDict[tuple[object, Key], Graph] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def nbytes(self) -> int:
        """Bytes of all cached graphs. May be read while another thread captures."""
        return sum(graph.nbytes for graph in tuple(self._kept.values()))

    def bytes_of(self, owner: object) -> int:
        """Return the bytes of one owner's graphs. May be called while another thread captures."""
        return sum(graph.nbytes for (of, _), graph in tuple(self._kept.items()) if of is owner)

    def holds(self, owner: object, key: Key) -> bool:
        """True if an owner's graph of `key` is cached. May be called while another thread captures."""
        return (owner, key) in self._kept

    def get(self, owner: object, key: Key, capture: Callable[[], G], *, retry: bool = True) -> G:
        """Return an owner's graph of `key`; captures it if missing and evicts others if they are too many or too large.

        With `retry` it evicts all others if the device lacks memory for it.
        """
        at = (owner, key)
        found = cast("G | None", self._kept.get(at))
        if found is None:
            self._shrink(self._max_graphs - 1, keep=0)
            found = self._kept[at] = self._capture_with_retry(capture) if retry else capture()
            self._shrink(self._max_graphs, keep=1)
        else:
            self._kept.move_to_end(at)
        return found

    def _capture_with_retry(self, capture: Callable[[], G]) -> G:
        try:
            return capture()
        except torch.OutOfMemoryError:
            if not self._kept:
                raise
        self._shrink(0, keep=0)
        return capture()

    def drop(self, owner: object) -> None:
        """Free all graphs of one owner."""
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
        graphs = [self._kept.pop(at) for at in going]
        for graph in graphs:
            graph.close()
        if graphs:
            # their memory returns to the device with PyTorch's cache, and what they share with other processes at once
            with capture_lock:
                del graph
                graphs.clear()
                torch.cuda.empty_cache()
