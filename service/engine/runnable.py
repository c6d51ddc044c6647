"""A loaded model as an interface between the pipeline, which schedules, and the runtime, which runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from turbofno.service.engine.interface import Fields
from turbofno.service.engine.vjp import VjpShapes

if TYPE_CHECKING:
    import torch

T = TypeVar("T")

State: TypeAlias = "torch.Tensor | Fields | SlabState"
"""Fields of one rollout, [n, channels, *grid]: on the host before the first turn, then on the device or devices."""

Execution = Literal["none", "chain", "graph", "replay", "module", "slabs"]


class Ran(NamedTuple):
    """Backend, precision and execution of a run; on a GPU also why it was not faster."""

    backend: str
    precision: str = "fp32"
    execution: Execution = "none"
    reason: str = ""


class SlabState:
    """Some fields of a rollout that lie cut on several devices, until no object refers to them."""

    def __init__(
        self, number: int, grid: tuple[int, ...], part: range, whole: SlabState | None = None
    ) -> None:
        """`part` are these among the fields of the state with that number, which `whole` keeps alive."""
        self.number, self.grid, self.part = number, grid, part
        self._whole = whole

    def __len__(self) -> int:
        return len(self.part)

    def __getitem__(self, part: slice) -> SlabState:
        return SlabState(self.number, self.grid, self.part[part], self._whole or self)


class ModelOutput(NamedTuple):
    """Result of one run of a model, float32 [n, out_channels, *grid]. Times are seconds."""

    fields: Fields | None
    """None if they are in the `output_buffers` of `Runnable.start`."""
    ran: Ran
    gather_seconds: float = 0.0
    compute_seconds: float = 0.0
    """On a GPU: device time, without waits for the previous batch; without copies, but for small batches."""
    trust: Mapping[str, list[float]] = MappingProxyType({})
    """As in PredictResult, for all fields of the run."""
    total: float | None = None
    """Sum of all values, if known: not finite if any value is not."""
    release: Callable[[], None] | None = None
    """To be called once, when `fields` are no longer used; None if the receiver owns their memory."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Result of a few steps of a batch of rollouts; every list is in the order of the rollouts."""

    states: list[torch.Tensor] | list[SlabState]
    """After the last step; on the device or devices."""
    frames: list[dict[int, Fields]]
    """Wanted step of the turn (counted from 1) -> float32 [n, channels, *grid]."""
    excess: list[NDArray[np.float32]]
    """[steps, n]; see runtime/rollout_turn.py."""
    trust: list[dict[str, NDArray[np.float32]]]
    """Signal -> its values [steps, n]."""


class _Model(Protocol):
    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def free_memory(self) -> None:
        """Free caches, after running out of memory; on the device thread."""


class Runnable(_Model, Protocol):
    """A loaded model for predictions. For the device thread, except names and `gradient_bytes`."""

    def start(
        self, parts: Sequence[Fields], output_buffers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        """Start to predict `parts`, each float32 [n, in_channels, *grid], as one batch.

        Returns a function that waits for the output, to be called once, on any thread. Outputs may be written into
        `output_buffers`, one for each part, if their shapes fit. Until then the caller must not change
        parts or touch output_buffers.
        The output's memory may be the pipeline's, of which there is little: see `ModelOutput.release`.

        Raises:
            DeviceLost: here or from the wait; the process can run nothing more on the device.
            Exception: here only, any error of the model; nothing of the batch is left running.
        """

    def start_vjp(self, parts: Sequence[Fields], shapes: VjpShapes) -> Callable[[], ModelOutput]:
        """As `start`, for gradients: parts and output are rows of these shapes."""

    def gradient_bytes(self, shapes: VjpShapes) -> int:
        """Estimated memory for the gradient of one field, in addition to its row; on any thread.

        Raises:
            NotDifferentiable: the model has no gradient.
        """


class Steppable(_Model, Protocol):
    """A loaded model for rollouts."""

    def advance(self, states: list[State], wanted: list[list[int]], *, steps: int) -> Turn:
        """Advance rollouts by `steps` steps in one batch, with the frames of each one's `wanted` steps."""


def signals_of_all(parts: Sequence[Mapping[str, T]]) -> dict[str, list[T]]:
    """Signal -> what each part has of it, for the signals that all have: a part whose evaluation failed has none."""
    names = [name for name in parts[0] if all(name in part for part in parts)]
    return {name: [part[name] for part in parts] for name in names}
