"""Models whose fields are cut into slabs over the ranks of an engine of several devices: one rank's part.

Every rank runs the same methods with the same arguments in the same order. Whole fields lie in memory that all ranks
share: each copies its own rows from there to its device, and its rows of the result back. Such fields are large, so the
network takes them one by one, and at most two are on the devices.
"""

from __future__ import annotations

import itertools
import math
import os
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch
import torch.distributed as dist

from turbofno.service.engine.interface import Fields
from turbofno.service.runtime.rollout_turn import Excess, next_input
from turbofno_ops.distributed import compile_fno, slab_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from turbofno.models.core.checkpoint import LoadedModel
    from turbofno.models.core.config import Precision
    from turbofno.service.engine.runnable import ModelOutput, State, Turn
    from turbofno_ops.distributed import SlabFNO

    Energies = list[list[list[list[float]]]]
    """Of each rollout [steps, n, channels]: what the rows of a rank add to `Excess.energy`."""


_SURE = 0.75
"""Share of the estimated memory of a field that it takes at least."""


class SlabModel(Protocol):
    """A model of an engine of several devices. For the device thread, in `Pipeline.in_turn`."""

    def load(self) -> None:
        """Prepare the model on all ranks, before anything else."""

    def why_whole(self, grid: Sequence[int]) -> str:
        """Why a field on this grid runs whole, on the first device alone; empty if it is cut."""

    def predict(self, parts: Sequence[Fields], output_buffers: Sequence[Fields]) -> ModelOutput:
        """Predict fields on a grid that is cut; see Runnable.start. Raises DeviceLost if a rank is lost."""

    def advance(
        self, states: Sequence[State], wanted: Sequence[Sequence[int]], *, steps: int
    ) -> Turn:
        """Advance rollouts on a grid that is cut; see `run_turn`. Raises DeviceLost if a rank is lost."""

    def clear(self) -> None:
        """Free the CUDA graphs of all ranks."""


class SlabGroup(Protocol):
    """The ranks of an engine of several devices."""

    def model(self, path: Path, loaded: LoadedModel, precision: Precision) -> SlabModel:
        """A model of this group, from the checkpoint in the folder `path`."""


class Start(NamedTuple):
    """Where a rollout goes on: at whole fields [n, channels, *grid], or at fields `begin:stop` of a state on the devices."""

    fields: Fields | None
    state: int = 0
    begin: int = 0
    stop: int = 0


@dataclass(slots=True)
class _Network:
    compiled: SlabFNO
    excess: Excess
    grid: tuple[int, ...] = ()
    """The last grid, for which it has memory; empty: none."""


class _State(NamedTuple):
    slab: torch.Tensor
    grid: tuple[int, ...]


class Slabs:
    """One rank's networks and rollouts. Models and states have the numbers that the caller gives them."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._networks: dict[int, _Network] = {}
        self._states: dict[int, _State] = {}

    def add(self, model: int, loaded: LoadedModel, precision: Precision) -> None:
        """Add a model. Raises ChainRefused if its fields cannot be cut on any grid."""
        compiled = compile_fno(
            loaded.module.description(),
            device=self._device,
            precision=precision,
        )
        self._networks[model] = _Network(compiled, Excess(loaded.config.statistics, self._device))
        if self._device.type == "cuda":
            # Other streams read what this one wrote.
            torch.cuda.current_stream(self._device).synchronize()

    def remove(self, model: int) -> None:
        """Remove a model, if there is one with that number."""
        self._networks.pop(model, None)

    def clear(self, model: int) -> None:
        """Free the CUDA graphs of a model, if there is one with that number."""
        if model in self._networks:
            self.network(model).clear()
            self._networks[model].grid = ()

    def forget(self, state: int) -> None:
        """Free the state of a rollout, if there is one with that number."""
        self._states.pop(state, None)

    def network(self, model: int) -> SlabFNO:
        """The compiled network."""
        return self._networks[model].compiled

    def predict(self, model: int, inputs: Sequence[Fields], outputs: Sequence[Fields]) -> float:
        """Predict float32 [n, in_channels, *grid] into [n, out_channels, *out_grid]. Returns the sum of this rank's rows."""
        network = self.network(model)
        self._find_memory(model, inputs[0].shape[2:])
        turns = itertools.cycle(map(torch.cuda.stream, self._streams))
        sums = [torch.zeros((), device=self._device)]
        try:
            for fields, out in zip(inputs, outputs, strict=True):
                for number in range(len(fields)):
                    one = slice(number, number + 1)
                    with next(turns, nullcontext()):
                        sums.append(self._predict_one(network, fields[one], out[one]))
        finally:
            for stream in self._streams:
                stream.synchronize()
        return float(torch.stack(sums).sum())

    @cached_property
    def _streams(self) -> list[torch.cuda.Stream]:
        """Fields take them in turn: one is copied while the network runs on another. Empty on a CPU."""
        on_gpu = self._device.type == "cuda"
        return [torch.cuda.Stream(self._device) for _ in range(2)] if on_gpu else []

    def _predict_one(self, network: SlabFNO, fields: Fields, out: Fields) -> torch.Tensor:
        y = network(self._own_rows(fields), fields.shape[2:])
        self._write_rows(y, out)
        return y.sum()

    def advance(
        self,
        model: int,
        starts: Sequence[Start],
        targets: Sequence[int],
        frames: Sequence[Mapping[int, Fields]],
        steps: int,
    ) -> Energies:
        """Advance rollouts by `steps` steps.

        Args:
            model: Number of the model.
            starts: Where each rollout goes on; left unchanged.
            targets: The number for each one's new state.
            frames: For each one, step (counted from 1) -> memory for its fields [n, channels, *grid].
            steps: Number of steps.
        """
        network, excess = self.network(model), self._networks[model].excess
        energies = []
        for start, target, wanted in zip(starts, targets, frames, strict=True):
            if start.fields is not None:
                grid = start.fields.shape[2:]
                x = self._own_rows(start.fields)
            else:
                state = self._states[start.state]
                grid, x = state.grid, state.slab[start.begin : start.stop]
            self._find_memory(model, grid)
            found = []
            for step in range(1, steps + 1):
                y = network(x, grid)
                x = next_input(x, y)
                found.append(excess.energy(y, math.prod(grid)))
                if step in wanted:
                    self._write_rows(y, wanted[step])
            self._states[target] = _State(x, grid)
            energies.append(torch.stack(found))
        return [one.tolist() for one in energies]

    def memory_bytes(self) -> int:
        """Memory that this rank holds: reserved on its GPU, on a CPU resident."""
        if self._device.type == "cuda":
            return torch.cuda.memory_reserved(self._device)
        return _resident_bytes()

    def _find_memory(self, model: int, grid: tuple[int, ...]) -> None:
        """Free the graphs of all models if a rank lacks memory for a field on this grid.

        Raises:
            OutOfMemoryError: one still lacks it. All ranks raise it: one that failed alone would leave them waiting.
        """
        network = self._networks[model]
        if network.grid == grid:
            return
        needed = _SURE * network.compiled.field_bytes(grid)
        for _ in range(2):
            lacking = torch.tensor(float(needed > free_bytes(self._device)), device=self._device)
            dist.all_reduce(lacking, op=dist.ReduceOp.MAX)
            if not lacking.item():
                network.grid = grid
                return
            for number in tuple(self._networks):
                self.clear(number)
        raise torch.OutOfMemoryError(
            f"a field on the grid {list(grid)} takes at least {needed:.0f} bytes on each device"
        )

    def _own_rows(self, fields: Fields) -> torch.Tensor:
        rows = slab_rows(fields.shape[2])
        slab = torch.empty((*fields.shape[:2], len(rows), *fields.shape[3:]), device=self._device)
        whole = torch.from_numpy(fields)[:, :, rows.start : rows.stop]
        _copy_channels(slab, whole)
        return slab

    def _write_rows(self, slab: torch.Tensor, fields: Fields) -> None:
        rows = slab_rows(fields.shape[2])
        _copy_channels(torch.from_numpy(fields)[:, :, rows.start : rows.stop], slab)


def free_bytes(device: torch.device) -> float:
    """Memory that this process may still take on a GPU; a CPU is not asked."""
    if device.type == "cpu":
        return math.inf
    free, total = torch.cuda.mem_get_info(device)
    allocated = torch.cuda.memory_allocated(device)
    allowed = torch.cuda.get_per_process_memory_fraction(device) * total
    return min(free + torch.cuda.memory_reserved(device), allowed) - allocated


def _copy_channels(to: torch.Tensor, source: torch.Tensor) -> None:
    """Enqueue a copy [n, channels, ..], each channel by itself: its rows are contiguous, those of several are not."""
    shape = (to.shape[0] * to.shape[1], *to.shape[2:])
    torch._foreach_copy_([*to.view(shape)], [*source.view(shape)], non_blocking=True)


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
