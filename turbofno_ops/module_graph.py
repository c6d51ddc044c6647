"""A network that is no chain of kernels, as CUDA graphs: one for each (batch bucket, grid), like a chain's."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable
from functools import cache

import torch

from turbofno_ops._graphs import CaptureFailed, Graph, GraphCache, Lane
from turbofno_ops.description import Size
from turbofno_ops.dispatch import last_choice, record

_MOST_FAILURES = 16
"""Grids on which a capture failed before no other is tried: each costs two runs, and callers choose their grids."""


class GraphRefused(RuntimeError):
    """A module or grid that does not run as a CUDA graph, or not now; the message says why.

    Whoever catches it calls the module.
    """


class ModuleGraphs:
    """A module's calls, captured as CUDA graphs when a (batch bucket, grid) is first met. Gives no gradients.

    A batch is padded up to the next of the buckets, the powers of two below `max_batch` and itself. Larger ones run in
    pieces, as do those on grids so large that their graph would not fit the bound in bytes: estimated by what the
    largest graph so far took for a point of a field.

    Any thread and any CUDA stream may call it; the calls of all module graphs of a device run one after another.
    The result is a tensor of the caller's own.
    """

    def __init__(
        self,
        module: Callable[[torch.Tensor], torch.Tensor],
        device: torch.device,
        *,
        max_batch: int,
        graphs: GraphCache | None = None,
    ) -> None:
        """`module` takes float32 [batch, channels, *grid] on `device`, and is not changed as long as this lives.

        `graphs` keeps and bounds the graphs; by default one of its own.
        """
        self._module, self._device = module, device
        self._buckets = (*(2**i for i in range((max_batch - 1).bit_length())), max_batch)
        self._graphs = GraphCache() if graphs is None else graphs
        self._owner = object()
        self._failed: dict[Size, str] = {}
        self._too_large: set[tuple[int, Size]] = set()
        self._most_points, self._bytes_of_a_point = 0, 0.0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """The module's result for float32 [batch, channels, *grid] with a field or more.

        Raises:
            GraphRefused: it does not run as a graph.
        """
        with torch.no_grad(), torch.cuda.device(self._device), self._graphs.lock:
            self._refuse_lost_plans()
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
        """Bytes that its graphs and their buffers hold on the device."""
        return self._graphs.bytes_of(self._owner)

    def clear(self) -> None:
        """Let all of its graphs and their memory go; later calls capture them anew."""
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
                self._owner, (bucket, size), lambda: self._captured(bucket, (channels, *size))
            )
        except CaptureFailed as error:
            reason = str(error).split("\n", 1)[0]
        except torch.OutOfMemoryError:
            self._too_large.add((bucket, size))
            reason = ""
        # out of the handlers: the errors hold what the failed run had made
        if not reason:
            raise GraphRefused(_no_memory(bucket, size))
        self._failed[size] = f"a CUDA graph cannot hold it: {reason}"
        raise GraphRefused(self._failed[size])

    def _captured(self, bucket: int, field: tuple[int, ...]) -> Graph:
        # its buffers are written to in later calls, whatever mode the caller of this one is in
        with torch.inference_mode(mode=False), torch.no_grad():
            forward = _Calls(self._module, field, self._device)
            graph = _ModuleGraph(forward, bucket, self._device, _lane(self._device))
        points = bucket * math.prod(field[1:])
        if points >= self._most_points:
            self._most_points, self._bytes_of_a_point = points, graph.nbytes / points
        return graph

    def _largest_bucket(self, size: Size) -> int:
        if size in self._failed:
            raise GraphRefused(self._failed[size])
        if len(self._failed) >= _MOST_FAILURES:
            raise GraphRefused(next(iter(self._failed.values())))
        one = self._bytes_of_a_point * math.prod(size)
        # half, so that those of all smaller buckets fit beside the largest
        most = self._graphs.most_bytes / 2
        fitting = [bucket for bucket in self._buckets if bucket * one <= most]
        if not fitting:
            raise GraphRefused(
                f"on the grid {_shown(size)} a field takes about {one / 2**20:.0f} MiB, and a graph may take "
                f"{most / 2**20:.0f} MiB"
            )
        return fitting[-1]

    def _refuse_lost_plans(self) -> None:
        """Let all graphs go once PyTorch may destroy plans of FFTs that they go on reading."""
        plans = torch.backends.cuda.cufft_plan_cache[self._device]
        if plans.size >= plans.max_size:
            self._graphs.drop(self._owner)
            raise GraphRefused(f"PyTorch's cache of FFT plans is full ({plans.max_size} plans)")


class _ModuleGraph(Graph):
    """Also says what ran to whoever asks for the last choice of a backend (`last_choice`)."""

    def __init__(self, forward: _Calls, batch: int, device: torch.device, lane: Lane) -> None:
        super().__init__(forward, batch, device, lane)
        self._choice = last_choice()

    def run(self, x: torch.Tensor, out: torch.Tensor) -> None:
        super().run(x, out)
        if self._choice is not None:
            record(self._choice)


class _Calls:
    """A module's call on fields of one shape, [channels, *grid]; see Captured."""

    nbytes = 0

    def __init__(
        self,
        module: Callable[[torch.Tensor], torch.Tensor],
        field: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self._module, self._field, self._device = module, field, device

    def buffer(self, batch: int) -> torch.Tensor:
        # zeros, because a batch may fill a part only, and the rest is computed all the same
        return torch.zeros(batch, *self._field, device=self._device)

    def slot(self, buffer: torch.Tensor) -> torch.Tensor:
        return buffer

    def load(self, x: torch.Tensor, slot: torch.Tensor) -> None:
        slot.copy_(x)

    def run(self, buffer: torch.Tensor) -> torch.Tensor:
        return self._module(buffer)


@cache
def _lane(device: torch.device) -> Lane:
    """One for all modules of a device: they call cuBLAS, whose workspaces would otherwise add up."""
    return Lane.on(device)


def _no_memory(bucket: int, size: Size) -> str:
    return f"there is no memory for the CUDA graph of {bucket} fields on the grid {_shown(size)}"


def _shown(size: Size) -> str:
    return "x".join(map(str, size))
