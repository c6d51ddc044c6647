"""CUDA graphs of an arbitrary module, one per (batch bucket, grid)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable

import torch

from turbofno_ops._graphs import (
    CaptureFailed,
    CaptureStream,
    Graph,
    GraphCache,
    batch_buckets,
    shared_lane,
)
from turbofno_ops.description import Size
from turbofno_ops.dispatch import last_choice, record

_MAX_FAILURES = 16
"""Stop trying new grids after captures failed on this many: each try costs two runs, and clients choose the grids."""


class GraphRefused(RuntimeError):
    """Raised if a module cannot run as a CUDA graph on a grid, for good or until memory or FFT plans are free.

    The message gives the reason. Call the module instead.
    """


class ModuleGraphs:
    """Runs a module as CUDA graphs, captured at the first call of each (batch bucket, grid). No gradients.

    A batch is padded to the next bucket: a power of two below `max_batch`, or `max_batch`. A larger batch is split,
    as is a batch whose graph would exceed half of the cache's byte bound; its size is estimated from the largest graph so far.

    Thread-safe, on any CUDA stream. The calls of all module graphs of a device run in sequence. The result is a new
    tensor.

    Args:
        module: Takes float32 [batch, channels, *grid] on `device`. Must not change during the lifetime of this object.
        device: A CUDA device.
        max_batch: The largest bucket.
        graphs: The cache of the graphs; by default a new one.

    Raises:
        ValueError: `max_batch` below 1.

    Example:
        >>> module = torch.nn.Conv2d(3, 8, 1).cuda()  # doctest: +SKIP
        >>> graphs = ModuleGraphs(module, torch.device("cuda"), max_batch=16)  # doctest: +SKIP
        >>> graphs(torch.randn(5, 3, 64, 64, device="cuda")).shape  # doctest: +SKIP
        torch.Size([5, 8, 64, 64])
    """

    def __init__(
        self,
        module: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        *,
        max_batch: int,
        graphs: GraphCache | None = None,
    ) -> None:
        if max_batch < 1:
            raise ValueError(f"ModuleGraphs: max_batch must be at least 1, got {max_batch}")
        self._module, self._device = module, device
        self._buckets = batch_buckets(max_batch)
        self._graphs = GraphCache() if graphs is None else graphs
        self._owner = object()
        self._failed: dict[Size, str] = {}
        self._too_large: set[tuple[int, Size]] = set()
        self._max_points, self._bytes_per_point = 0, 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Return the module's result for float32 [batch, channels, *grid] with batch >= 1.

        Raises:
            GraphRefused: The module does not run as a graph on this grid.
        """
        with torch.no_grad(), torch.cuda.device(self._device), self._graphs.lock:
            self._refuse_if_plan_cache_full()
            largest = self._largest_bucket(tuple(x.shape[2:]))
            out: torch.Tensor | None = None
            for first in range(0, len(x), largest):
                piece = x[first : first + largest]
                graph = self._graph(piece)
                if out is None:
                    out = x.new_empty(len(x), *graph.output_shape)
                graph.run(piece, out[first : first + largest])
        assert out is not None
        return out

    @property
    def nbytes(self) -> int:
        """Device bytes of its graphs and their buffers."""
        return self._graphs.bytes_of(self._owner)

    def clear(self) -> None:
        """Free all of its graphs. Later calls capture them again."""
        with self._graphs.lock:
            self._graphs.drop(self._owner)
            self._too_large.clear()

    def _graph(self, x: torch.Tensor) -> Graph:
        bucket = self._buckets[bisect_left(self._buckets, len(x))]
        channels, *grid = x.shape[1:]
        size = tuple(grid)
        if (bucket, size) in self._too_large:
            raise GraphRefused(_no_memory(bucket, size))
        try:
            return self._graphs.get(
                self._owner, (bucket, size), lambda: self._capture(bucket, (channels, *size))
            )
        except CaptureFailed as error:
            reason = str(error).split("\n", 1)[0]
        except torch.OutOfMemoryError:
            self._too_large.add((bucket, size))
            reason = ""
        # outside the handlers, because the exceptions keep the tensors of the failed run alive
        if not reason:
            raise GraphRefused(_no_memory(bucket, size))
        self._failed[size] = f"a CUDA graph cannot hold it: {reason}"
        raise GraphRefused(self._failed[size])

    def _capture(self, bucket: int, field: tuple[int, ...]) -> Graph:
        # later calls write the buffers outside inference mode, so they must not be inference tensors
        with torch.inference_mode(mode=False), torch.no_grad():
            forward = _CapturableModule(self._module, field, self._device)
            graph = _ModuleGraph(forward, bucket, self._device, shared_lane(self._device))
        points = bucket * math.prod(field[1:])
        if points >= self._max_points:
            self._max_points, self._bytes_per_point = points, graph.nbytes / points
        return graph

    def _largest_bucket(self, size: Size) -> int:
        if size in self._failed:
            raise GraphRefused(self._failed[size])
        if len(self._failed) >= _MAX_FAILURES:
            raise GraphRefused(next(iter(self._failed.values())))
        one = self._bytes_per_point * math.prod(size)
        # half of the bound, so that the graphs of all smaller buckets fit too
        most = self._graphs.most_bytes / 2
        fitting = [bucket for bucket in self._buckets if bucket * one <= most]
        if not fitting:
            raise GraphRefused(
                f"on the grid {_shown(size)} a field takes about {one / 2**20:.0f} MiB, and a graph may take "
                f"{most / 2**20:.0f} MiB"
            )
        return fitting[-1]

    def _refuse_if_plan_cache_full(self) -> None:
        """Free all graphs and refuse once the FFT plan cache is full: an eviction would free plans that graphs use."""
        plans = torch.backends.cuda.cufft_plan_cache[self._device]
        if plans.size >= plans.max_size:
            self._graphs.drop(self._owner)
            raise GraphRefused(f"PyTorch's cache of FFT plans is full ({plans.max_size} plans)")


class _ModuleGraph(Graph):
    """A graph that records at every run the backend choice (`last_choice`) of its capture."""

    def __init__(
        self, forward: _CapturableModule, batch: int, device: torch.device, lane: CaptureStream
    ) -> None:
        super().__init__(forward, batch, device, lane)
        self._choice = last_choice()

    def run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        super().run(x, out)
        if self._choice is not None:
            record(self._choice)


class _CapturableModule:
    """Adapter of a module to `Capturable`, for inputs of one shape `field` = [channels, *grid]."""

    nbytes = 0

    def __init__(
        self,
        module: Callable[[torch.Tensor], torch.Tensor],
        field: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._module, self._field, self._device = module, field, device

    def buffer(self, batch: int) -> torch.Tensor:
        # zeros, because the elements beyond a smaller batch are computed too
        return torch.zeros(batch, *self._field, device=self._device)

    def input_view(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer

    def load(self, x: torch.Tensor, input_view: torch.Tensor) -> None:
        input_view.copy_(x)

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        return self._module(buffer)


def _no_memory(bucket: int, size: Size) -> str:
    return f"there is no memory for the CUDA graph of {bucket} fields on the grid {_shown(size)}"


def _shown(size: Size) -> str:
    return "x".join(map(str, size))
