"""A model as a function of a tensor on its device.

On a GPU one chain of our kernels where that serves, else the module as a CUDA graph, else the module layer by layer; on a
CPU replayed where that pays, else the module.
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

_LAYER_BYTES = 2 << 20
"""What a layer's fields may take of a core's caches: larger batches took up to twice as long (`python -m benchmarks.caches`)."""


EXECUTIONS: dict[Execution, str] = {
    "none": "not at all",
    "chain": "as one chain of kernels",
    "graph": "as a CUDA graph of the module",
    "replay": "replayed",
    "module": "layer by layer",
}


class Forward:
    """Calls are for the device thread. Each says what ran, beside what it gives."""

    def __init__(
        self, name: str, module: FNO, device: torch.device, *, precision: Precision, max_batch: int
    ) -> None:
        """`module` lies on `device`; `max_batch` is the most fields that a call will bring."""
        self._name = name
        self._module = module.compute_in(precision)
        self._precision = precision
        self._refusals: set[str] = set()
        self._no_chain = ""
        self._on_gpu = device.type == "cuda"
        # Not a method of this: the two would refer to each other, and outlive the model until garbage is collected.
        chunk_size = partial(_chunk_size, channels=module.arch.hidden_channels, max_batch=max_batch)
        self._replays = Replays(name, module, chunk_size=chunk_size)
        self._chain: CompiledFNO | None = None
        self._graphs: ModuleGraphs | None = None
        # On a CPU the chain was measured to be no faster than the module (docs/decisions/0010).
        if self._on_gpu:
            graphs = GraphCache()  # one bound for those of the chain and those of the module
            self._graphs = ModuleGraphs(module, device, max_batch=max_batch, graphs=graphs)
            try:
                self._chain = compile_fno(
                    module.description(),
                    device=device,
                    precision=precision,
                    max_batch=max_batch,
                    graphs=graphs,
                )
            except ChainRefused as refusal:
                self._no_chain = str(refusal)
                self._log("is no chain of kernels", self._no_chain)
            # What was put there on this thread's stream is read on others. Not the whole device: the device
            # thread may be capturing a graph, which that would break.
            torch.cuda.current_stream(device).synchronize()

    def __call__(self, x: torch.Tensor) -> tuple[torch.Tensor, Ran]:
        """float32 [n, in_channels, *grid] -> [n, out_channels, *grid], on the current stream."""
        no_chain = self._no_chain
        if self._chain is not None:
            try:
                y = self._chain(x)
            except ChainRefused as refusal:
                no_chain = str(refusal)
                self._log("is no chain of kernels", no_chain)
            else:
                return y, Ran(self._chain.backend, self._chain.precision, "chain")
        if self._graphs is None:
            y = self._replays(x)
            execution: Execution = "replay" if self._replays.recorded(x.shape[1:]) else "module"
            return y, Ran(last_backend(), "fp32", execution)
        execution, reason = "graph", no_chain
        try:
            y = self._graphs(x)
        except GraphRefused as refusal:
            execution, reason = "module", f"{no_chain}; {refusal}"
            self._log("runs layer by layer", str(refusal))
        if execution == "module":
            # not in the handler: what failed there holds memory
            y = self._module(x)
        backend = last_backend()
        # no other backend rounds
        precision = self._precision if backend == "cuda" else "fp32"
        return y, Ran(backend, precision, execution, reason)

    def prepare(self, field: torch.Size) -> None:
        """Make batches of such fields, [in_channels, *grid], fast on a CPU; on the device thread."""
        if not self._on_gpu:
            self._replays.prepare(field)

    def vjp(self, rows: torch.Tensor, shapes: VjpShapes) -> tuple[torch.Tensor, Ran]:
        """As `gradient.vjp`, through the module, whose layers know their gradients; in float32 whatever is asked."""
        with self._in_fp32():
            answer = gradient.vjp(self._module, rows, shapes)
        return answer, Ran(last_backend(), "fp32", "module")

    def measure_gradient(self, field: torch.Tensor) -> GradientMemory:
        """What the gradient of a field [1, in_channels, *grid] takes. Raises NotDifferentiable."""
        with self._in_fp32():
            return gradient.measure(self._module, field)

    @property
    def device_bytes(self) -> int:
        """Bytes that the compiled chain and all graphs hold on the device."""
        chain = 0 if self._chain is None else self._chain.device_bytes()
        return chain + (0 if self._graphs is None else self._graphs.nbytes)

    def clear(self) -> None:
        """Give the memory of captured graphs and recordings back."""
        self._replays.clear()
        if self._chain is not None:
            self._chain.clear()
        if self._graphs is not None:
            self._graphs.clear()

    @contextmanager
    def _in_fp32(self) -> Iterator[None]:
        self._module.compute_in("fp32")
        try:
            yield
        finally:
            self._module.compute_in(self._precision)

    def _log(self, what: str, reason: str) -> None:
        if reason not in self._refusals:
            self._refusals.add(reason)
            logger.warning("model %s %s: %s", self._name, what, reason)


def _chunk_size(field: torch.Size, *, channels: int, max_batch: int) -> int:
    """How many fields of this shape, [in_channels, *grid], a CPU takes through its layers together: what caches hold."""
    layer = 4 * channels * math.prod(field[1:])
    return min(max_batch, max(1, _LAYER_BYTES // layer) * torch.get_num_threads())
