"""A model as a function of a tensor on its device.

On a GPU it runs as a chain of our kernels if they support it, else as a CUDA graph of the module, else layer by layer.
On a CPU it is replayed if that is faster, else run layer by layer.
"""

from __future__ import annotations

import logging
import math
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING

import torch

from turbofno.service.engine.runnable import Ran
from turbofno.service.runtime import gradient
from turbofno.service.runtime.replays import Replays
from turbofno.service.runtime.small_batches import MOST_GRAPHS
from turbofno.service.system import Gaps
from turbofno_ops import ChainRefused, GraphCache, GraphRefused, ModuleGraphs, compile_fno
from turbofno_ops.dispatch import last_backend

if TYPE_CHECKING:
    from collections.abc import Iterator

    from turbofno.models.core.config import Precision
    from turbofno.models.core.fno import FNO
    from turbofno.service.engine.runnable import Execution
    from turbofno.service.engine.vjp import VjpShapes
    from turbofno.service.runtime.gradient import GradientMemory
    from turbofno_ops import CompiledFNO

logger = logging.getLogger(__name__)

_MOST_GRAPHS = 64
"""Most CUDA graphs of a model, without those of small batches."""
_LAYER_BYTES = 2 << 20
"""Most bytes of a layer's fields in a core's caches; larger batches are slower (`python -m benchmarks.caches`)."""


_gaps = Gaps()

EXECUTIONS: dict[Execution, str] = {
    "none": "not at all",
    "chain": "as one chain of kernels",
    "graph": "as a CUDA graph of the module",
    "replay": "replayed",
    "module": "layer by layer",
    "slabs": "on slabs of its fields, one a device",
}


class Forward:
    """Runs a model, on the device thread; returns outputs and how they were computed."""

    def __init__(
        self, name: str, module: FNO, device: torch.device, *, precision: Precision, max_batch: int
    ) -> None:
        """`module` is on `device`; `max_batch` is the most fields in a call."""
        self._name = name
        self._module = module.compute_in(precision)
        self._precision = precision
        self._logged: set[str] = set()
        self._no_chain = ""
        self._on_gpu = device.type == "cuda"
        # A bound method would make a reference cycle, which keeps the model in memory until garbage collection.
        chunk_size = partial(_chunk_size, channels=module.arch.hidden_channels, max_batch=max_batch)
        self._replays = Replays(name, module, chunk_size=chunk_size)
        self.chain: CompiledFNO | None = None
        """On a GPU, if the model is a chain of kernels."""
        self._graphs: ModuleGraphs | None = None
        self._gradients: ModuleGraphs | None = None
        # On a CPU the chain is no faster than the module.
        if self._on_gpu:
            # one limit for the graphs of chain, module and gradients
            graphs = GraphCache(_MOST_GRAPHS + MOST_GRAPHS)
            self._graphs = ModuleGraphs(module, device, max_batch=max_batch, graphs=graphs)
            vjp = partial(gradient.vjp_of_fields, module, module.arch.in_channels)
            self._gradients = ModuleGraphs(vjp, device, max_batch=max_batch, graphs=graphs)
            try:
                self.chain = compile_fno(
                    module.description(),
                    device=device,
                    precision=precision,
                    max_batch=max_batch,
                    graphs=graphs,
                )
            except ChainRefused as refusal:
                self._no_chain = str(refusal)
                self._log("is no chain of kernels", self._no_chain)
            # Other streams read what this one wrote. Synchronising the whole device would break a graph capture on the
            # device thread.
            torch.cuda.current_stream(device).synchronize()

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, Ran]:
        """float32 [n, in_channels, *grid] -> [n, out_channels, *grid], on the current stream."""
        no_chain = self._no_chain
        if self.chain is not None:
            try:
                y = self.chain(x)
            except ChainRefused as refusal:
                no_chain = str(refusal)
                self._log("is no chain of kernels", no_chain)
            else:
                return y, Ran(self.chain.backend, self.chain.precision, "chain")
        if self._graphs is None:
            y = self._replays(x)
            execution: Execution = "replay" if self._replays.recorded(x.shape[1:]) else "module"
            return y, Ran(last_backend(), "fp32", execution)
        execution, reason = "graph", no_chain
        answer, refused = self._as_graph(self._graphs, x, "runs layer by layer")
        if answer is None:
            execution, reason = "module", f"{no_chain}; {refused}"
            answer = self._module(x)
        backend = last_backend()
        # Only the cuda backend computes in lower precision.
        precision = self._precision if backend == "cuda" else "fp32"
        return answer, Ran(backend, precision, execution, reason)

    def prepare(self, field: torch.Size) -> None:
        """On a CPU, record batches of such fields, [in_channels, *grid]; on the device thread."""
        if not self._on_gpu:
            self._replays.prepare(field)

    def vjp(self, rows: torch.Tensor, shapes: VjpShapes) -> tuple[torch.Tensor, Ran]:
        """See `gradient.vjp`; through the module, whose layers are differentiable, always in float32."""
        grid = shapes.input[1:]
        answer: torch.Tensor | None = None
        with self._in_fp32():
            if self._gradients is not None and grid == shapes.output[1:]:
                fields = rows.view(len(rows), -1, *grid)
                answer, _ = self._as_graph(self._gradients, fields, "has gradients layer by layer")
            execution: Execution = "module" if answer is None else "graph"
            if answer is None:
                answer = gradient.vjp(self._module, rows, shapes)
        if not self._on_gpu:
            _gaps.give_back()
        return answer.flatten(1), Ran(last_backend(), "fp32", execution)

    def measure_gradient(self, field: torch.Tensor) -> GradientMemory:
        """Memory for the gradient of a field [1, in_channels, *grid]. Raises NotDifferentiable."""
        with self._in_fp32():
            return gradient.measure(self._module, field)

    @property
    def device_bytes(self) -> int:
        """Device memory of the compiled chain and all graphs."""
        chain = 0 if self.chain is None else self.chain.device_bytes()
        return chain + sum(graphs.nbytes for graphs in self._module_graphs)

    def clear(self) -> None:
        """Free captured graphs and recordings."""
        self._replays.clear()
        if self.chain is not None:
            self.chain.clear()
        for graphs in self._module_graphs:
            graphs.clear()

    @property
    def _module_graphs(self) -> list[ModuleGraphs]:
        return [one for one in (self._graphs, self._gradients) if one is not None]

    @contextmanager
    def _in_fp32(self) -> Iterator[None]:
        self._module.compute_in("fp32")
        try:
            yield
        finally:
            self._module.compute_in(self._precision)

    def _as_graph(
        self, graphs: ModuleGraphs, x: torch.Tensor, what: str
    ) -> tuple[torch.Tensor | None, str]:
        """The result of a graph; None and the reason if there is none. Logs that as `what` the model does instead."""
        try:
            return graphs(x), ""
        except GraphRefused as refusal:
            reason = str(refusal)
        self._log(what, reason)
        # The caller runs the module outside the handler, where the exception would keep memory.
        return None, reason

    def _log(self, what: str, reason: str) -> None:
        """Log the first refusal of each kind: reasons name grids, which callers choose."""
        if what not in self._logged:
            self._logged.add(what)
            logger.warning("model %s %s: %s", self._name, what, reason)


def _chunk_size(field: torch.Size, *, channels: int, max_batch: int) -> int:
    """Number of fields of this shape, [in_channels, *grid], that a CPU runs together so that layers fit its caches."""
    layer = 4 * channels * math.prod(field[1:])
    return min(max_batch, max(1, _LAYER_BYTES // layer) * torch.get_num_threads())
