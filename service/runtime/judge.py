"""The signals of trust of a batch, where the batch lies: on a GPU as one CUDA graph a bucket and grid.

They are some sixty small operations, which on a GPU take longer to issue than to run. Larger batches are judged
call by call: there the kernels are what takes the time, and a graph would hold copies of all fields. So are those that
come when there are many graphs: a capture waits for the device, so none makes room for another.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import torch

from turbofno.models.trust.signals import Signals
from turbofno_ops._table_use import used_tables

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig

logger = logging.getLogger(__name__)

_MOST_GRAPHS = 32
_MOST_GRAPH_BYTES = 16 << 20
"""Of the inputs and outputs that a graph is made for."""


class Judge:
    """Calls are for the device thread, on the current stream, and always the same one on a GPU."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._signals = Signals(config, device)
        self._graphs: dict[tuple[int, ...], _Graph] = {}
        # One for all: they run one after another, and need of it only what they gave last.
        self._pool = torch.cuda.graph_pool_handle() if device.type == "cuda" else None

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Signal -> float32 [n] of inputs and outputs [n, channels, *grid]; none if it fails: answers go out without.

        To be read before the next call.
        """
        try:
            graph = None if self._pool is None else self._graph(x, y)
            return self._signals(x, y) if graph is None else graph.run(x, y)
        except RuntimeError as error:
            # Mostly no memory, which cuFFT and the CPU's allocator say in words of their own.
            logger.warning(
                "a batch of %d was not judged, its answers carry no trust: %s", len(x), error
            )
            return {}

    def clear(self) -> None:
        """Let the graphs go."""
        self._graphs.clear()
        if self._pool is not None:
            self._pool = torch.cuda.graph_pool_handle()

    def _graph(self, x: torch.Tensor, y: torch.Tensor) -> _Graph | None:
        bucket = 1 << (len(x) - 1).bit_length()
        key = (bucket, *x.shape[2:])
        if key not in self._graphs:
            size = bucket * (x[0].nbytes + y[0].nbytes)
            if size > _MOST_GRAPH_BYTES or len(self._graphs) == _MOST_GRAPHS:
                return None
            if not self._signals(x[:1], y[:1]):
                # none of this model on this grid: PyTorch warns of a graph with nothing in it
                return None
            self._graphs[key] = _Graph(
                self._signals,
                x.new_zeros(bucket, *x.shape[1:]),
                y.new_zeros(bucket, *y.shape[1:]),
                self._pool,
            )
        return self._graphs[key]


class _Graph:
    """The signals of batches up to that of its own x and y."""

    def __init__(self, signals: Signals, x: torch.Tensor, y: torch.Tensor, pool: Any) -> None:
        self._x, self._y = x, y
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(x.device)
        # the first run makes tables and plans of transforms, which a capture must not
        signals(x, y)
        # thread_local: other threads may allocate meanwhile
        with (
            used_tables() as self._tables,
            torch.cuda.graph(
                self._graph, pool=pool, stream=stream, capture_error_mode="thread_local"
            ),
        ):
            self._found = signals(x, y)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self._x[: len(x)].copy_(x)
        self._y[: len(y)].copy_(y)
        self._graph.replay()
        return {name: values[: len(x)] for name, values in self._found.items()}
