"""A model whose fields are cut over the ranks of an engine of several devices."""

from __future__ import annotations

import logging
import math
import time
import weakref
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray

from turbofno.models.core.checkpoint import LoadedModel
from turbofno.models.core.config import Precision
from turbofno.models.trust.signals import Signals
from turbofno.service.engine.interface import Fields
from turbofno.service.engine.runnable import (
    ModelOutput,
    Ran,
    SlabState,
    State,
    Turn,
    signals_of_all,
)
from turbofno.service.runtime.rollout_turn import Excess
from turbofno.service.runtime.slabs import Start
from turbofno_ops import ChainRefused

if TYPE_CHECKING:
    from turbofno.service.processes.slab_group import SlabGroup

logger = logging.getLogger(__name__)

LARGE = 1 / 16
"""Share of a GPU's memory. A field is cut if one of its hidden fields takes more, unless config.json decides."""


class SlabModel:
    """Implements turbofno.service.runtime.slabs.SlabModel.

    Its trust signals are those of inputs, computed on the host: they read a field once, and transform averages over
    blocks of it. A residual would take the transform of the whole field.
    """

    def __init__(
        self, group: SlabGroup, path: Path, loaded: LoadedModel, precision: Precision
    ) -> None:
        self._group, self._path, self._precision = group, path, precision
        self._loaded, self._config = loaded, loaded.config
        self._number = next(group.numbers)
        self._excess = Excess(loaded.config.statistics, torch.device("cpu"))
        self._signals = Signals(loaded.config) if group.trust else None
        self._refusal = ""
        self._never = ""
        """The reason why no field is cut, whatever its grid; empty if fields may be."""
        if self._config.slabs is False:
            self._never = "its config.json says slabs: false"
        elif self._config.slabs is None and group.device.type == "cpu":
            self._never = "on CPUs only models are cut whose config.json says slabs: true"

    def load(self) -> None:
        if self._never:
            return
        group = self._group
        try:
            group.slabs.add(self._number, self._loaded, self._precision)
        except ChainRefused as refusal:
            self._refusal = str(refusal)
            return
        weakref.finalize(self, group.drop, "remove", self._number).atexit = False
        group.load(self._number, self._path, self._config.sha256, self._precision)

    def why_whole(self, grid: Sequence[int]) -> str:
        if self._never:
            return self._never
        if self._config.slabs is None:
            hidden = 4 * self._config.architecture.hidden_channels * math.prod(grid)
            memory = torch.cuda.get_device_properties(self._group.device).total_memory
            if hidden <= LARGE * memory:
                return (
                    f"a hidden field takes {hidden} bytes, under {LARGE:.3g} of the card's memory"
                )
        return self._refusal or self._group.slabs.network(self._number).refusal(tuple(grid)) or ""

    def predict(self, parts: Sequence[Fields], output_buffers: Sequence[Fields]) -> ModelOutput:
        started = time.perf_counter()
        group, network = self._group, self._group.slabs.network(self._number)
        grid = parts[0].shape[2:]
        inputs = [group.shared(part) for part in parts]
        shape = (self._config.architecture.out_channels, *network.out_size(grid))
        outputs, whole = list(output_buffers), None
        expected = [(len(part), *shape) for part in parts]
        if [out.shape for out in outputs] != expected or not all(map(group.shares, outputs)):
            whole = group.memory.array((sum(map(len, parts)), *shape))
            outputs = np.split(whole, np.cumsum([len(part) for part in parts])[:-1])
        gathered = time.perf_counter()
        totals = group.run(
            "predict",
            self._number,
            inputs,
            outputs,
            key=(self._number, grid),
            field_steps=sum(map(len, parts)),
        )
        seconds = time.perf_counter() - gathered
        ran = Ran(network.backend, network.precision, "slabs")
        signals = signals_of_all([self._judged(part) for part in inputs])
        trust = {name: [*chain.from_iterable(values)] for name, values in signals.items()}
        return ModelOutput(whole, ran, gathered - started, seconds, trust, sum(totals))

    def advance(
        self, states: Sequence[State], wanted: Sequence[Sequence[int]], *, steps: int
    ) -> Turn:
        group = self._group
        starts, news, frames = [], [], []
        for state, steps_wanted in zip(states, wanted, strict=True):
            assert not isinstance(state, torch.Tensor)
            if isinstance(state, SlabState):
                grid = state.grid
                starts.append(Start(None, state.number, state.part.start, state.part.stop))
            else:
                grid = state.shape[2:]
                starts.append(Start(group.shared(state)))
            new = SlabState(next(group.numbers), grid, range(len(state)))
            weakref.finalize(new, group.drop, "forget", new.number).atexit = False
            news.append(new)
            shape = (len(state), self._config.architecture.out_channels, *grid)
            frames.append({step: group.memory.array(shape) for step in steps_wanted})
        energies = group.run(
            "advance",
            self._number,
            starts,
            [new.number for new in news],
            frames,
            steps,
            key=(self._number, news[0].grid),
            field_steps=steps * sum(map(len, states)),
        )
        # Of each rollout the sum over the ranks.
        sums = [torch.tensor(of_ranks).sum(0) for of_ranks in zip(*energies, strict=True)]
        return Turn(
            states=news,
            frames=frames,
            excess=[self._excess.of(energy).numpy() for energy in sums],
            trust=[
                self._judged_steps(start.fields, of_steps, (steps, len(new)))
                for start, of_steps, new in zip(starts, frames, news, strict=True)
            ],
        )

    def _judged(self, fields: Fields) -> dict[str, list[float]]:
        """Signal -> its values of fields [n, channels, *grid] as inputs; empty if it fails, never an error."""
        if self._signals is None:
            return {}
        try:
            found = self._signals.of_inputs(torch.from_numpy(fields))
        except RuntimeError as error:
            # Mostly out of memory, which PyTorch reports only in a message.
            logger.warning("%d fields were not judged, they carry no trust: %s", len(fields), error)
            return {}
        return {name: values.tolist() for name, values in found.items()}

    def _judged_steps(
        self, start: Fields | None, frames: Mapping[int, Fields], shape: tuple[int, int]
    ) -> dict[str, NDArray[np.float32]]:
        """Signal -> values [steps, n] of a rollout's turn: those of fields that are on the host, 0 in other steps.

        Of a network of past states none: an input is on the host in the first step only.
        """
        if self._config.states > 1:
            return {}
        known = [(step - 1, fields) for step, fields in frames.items()]
        if start is not None:
            known.append((0, start))
        found: dict[str, NDArray[np.float32]] = {}
        for row, fields in known:
            for name, values in self._judged(fields).items():
                rows = found.setdefault(name, np.zeros(shape, np.float32))
                rows[row] = np.maximum(rows[row], values)
        return found

    def clear(self) -> None:
        self._group.drop("clear", self._number)
