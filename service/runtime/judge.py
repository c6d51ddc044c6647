"""The signals of trust of a batch, where the batch lies: on a GPU as one CUDA graph a bucket and grid.

They are some sixty small operations, which on a GPU take longer to issue than to run. Larger batches are judged
call by call: there the kernels are what takes the time, and a graph would hold copies of all fields.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import TYPE_CHECKING

import torch

from models.trust.signals import Signals
from models.trust.tables import holding

if TYPE_CHECKING:
    from models.config import ModelConfig

logger = logging.getLogger(__name__)

_MOST_GRAPHS = 32
_MOST_GRAPH_BYTES = 64 << 20
"""Of the inputs and outputs of a batch that is judged by a graph."""


class Judge:
    """Calls are for the device thread, on the current stream, and always the same one on a GPU."""

    def __init__(self, config: ModelConfig, device: torch.device) -> None:
        self._signals = Signals(config, device)
        self._graphs: OrderedDict[tuple[int, ...], _Graph] = OrderedDict()
        self._on_gpu = device.type == "cuda"

    def __call__(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        """Signal -> float32 [n] of inputs and outputs [n, channels, *grid]; none if it fails: answers go out without.

        To be read before the next call.
        """
        try:
            if not self._on_gpu or x.nbytes + y.nbytes > _MOST_GRAPH_BYTES:
                return self._signals(x, y)
            return self._graph(x, y).run(x, y)
        except RuntimeError as error:
            # Mostly no memory, which cuFFT and the CPU's allocator say in words of their own.
            logger.warning(
                "a batch of %d was not judged, its answers carry no trust: %s", len(x), error
            )
            return {}

    def clear(self) -> None:
        """Let the graphs go."""
        self._graphs.clear()

    def _graph(self, x: torch.Tensor, y: torch.Tensor) -> _Graph:
        bucket = 1 << (len(x) - 1).bit_length()
        key = (bucket, *x.shape[2:])
        if key not in self._graphs:
            if len(self._graphs) == _MOST_GRAPHS:
                self._graphs.popitem(last=False)
            self._graphs[key] = _Graph(
                self._signals,
                x.new_zeros(bucket, *x.shape[1:]),
                y.new_zeros(bucket, *y.shape[1:]),
            )
        self._graphs.move_to_end(key)
        return self._graphs[key]


class _Graph:
    """The signals of batches up to that of its own x and y."""

    def __init__(self, signals: Signals, x: torch.Tensor, y: torch.Tensor) -> None:
        self._x, self._y = x, y
        self._graph = torch.cuda.CUDAGraph()
        stream = torch.cuda.current_stream(x.device)
        # the first run makes tables and plans of transforms, which a capture must not
        signals(x, y)
        # thread_local: other threads may allocate meanwhile
        with (
            holding() as self._tables,
            torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"),
        ):
            self._found = signals(x, y)

    def run(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, torch.Tensor]:
        self._x[: len(x)].copy_(x)
        self._y[: len(y)].copy_(y)
        self._graph.replay()
        return {name: values[: len(x)] for name, values in self._found.items()}
