"""The trust signals of a batch, computed on its device; on a GPU as one CUDA graph for each batch size and grid.

They are dozens of small operations, which take longer to launch than to run. Large batches run without a graph: their
kernels dominate, and a graph would keep copies of all fields. So do new sizes and grids once there are many graphs:
graphs are not evicted, since a capture waits for the device.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from turbofno.models.trust.signals import Signals
from turbofno.service.runtime.judgement import judged_by, unjudged
from turbofno_ops._table_use import used_tables

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.runtime.judgement import Judged

logger = logging.getLogger(__name__)

_MAX_GRAPHS = 32
_MAX_GRAPH_BYTES = 16 << 20
"""Most bytes of inputs and outputs of a graph."""


class Judge:
    """Computes trust signals, on the device thread; on a GPU always on the same current stream."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self.signals = Signals(config, device)
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        # One pool for all graphs: they run one after another, and only the last outputs are needed.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> Judged:
        """For inputs and outputs [n, channels, *grid]. Without signals if they fail.

        The next call overwrites the values.
        """
        try:
            graph = None if self._pool is None else self._graph(x, y)
            return judged_by(self.signals, x, y) if graph is None else graph.run(x, y)
        except RuntimeError as error:
            # Mostly out of memory, which cuFFT and the CPU allocator report only in a message.
            logger.warning(
                "a batch of %d was not judged, its answers carry no trust: %s", len(x), error
            )
            return unjudged(x, y)

    def clear(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        if self._pool is not None:
            self._pool = torch.cuda.graph_pool_handle()

    def _graph(self, x: torch.Tensor, y: torch.Tensor) -> _Graph | None:
        bucket = 1 << (len(x) - 1).bit_length()
        key = (bucket, *x.shape[2:])
        if key not in self._graphs:
            size = bucket * (x[0].nbytes + y[0].nbytes)
            if size > _MAX_GRAPH_BYTES or len(self._graphs) == _MAX_GRAPHS:
                return None
            if not self.signals(x[:1], y[:1]):
                # No signals on this grid: there is nothing to save.
                return None
            self._graphs[key] = _Graph(
                self.signals,
                x.new_zeros(bucket, *x.shape[1:]),
                y.new_zeros(bucket, *y.shape[1:]),
                self._pool,
            )
        return self._graphs[key]


class _Graph:
    """A CUDA graph of the signals for batches up to the size of its `x` and `y`."""

    def __init__(self, signals: Signals, x: torch.Tensor, y: torch.Tensor, pool: Any) -> None:
        self._x, self._y = x, y
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(x.device)
        # The first run creates tables and FFT plans, which is not allowed in a capture.
        judged_by(signals, x, y)
        # thread_local: other threads may allocate meanwhile.
        with (
            used_tables() as self._tables,
            torch.cuda.graph(
                self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ),
        ):
            self._judged = judged_by(signals, x, y)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> Judged:
        self._x[: len(x)].copy_(x)
        self._y[: len(y)].copy_(y)
        self._graph.replay()
        return self._judged
