"""A loaded model between the pipeline, which decides what runs when, and the runtime, which runs it."""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    import numpy as np
    import torch
    from numpy.typing import NDArray

    from turbofno.service.engine.interface import Fields
    from turbofno.service.engine.vjp import VjpShapes

    State: TypeAlias = torch.Tensor | Fields
    """Fields of one rollout, [n, channels, *grid]: from the request at first, then as the device left them."""


Execution = Literal["none", "chain", "graph", "replay", "module"]


class Ran(NamedTuple):
    """Backend, precision and execution of a run, and on a GPU why nothing faster ran."""

    backend: str
    precision: str = "fp32"
    execution: Execution = "none"
    reason: str = ""


class ModelOutput(NamedTuple):
    """Result of one run of a model, float32 [n, out_channels, *grid]. Times are seconds."""

    fields: Fields | None
    """None if they stand in the answers that `Runnable.start` was given."""
    ran: Ran
    gather_seconds: float = 0.0
    compute_seconds: float = 0.0
    """Of the device, where that is a GPU: without the copies, and without waiting for the batch before."""
    trust: Mapping[str, list[float]] = MappingProxyType({})
    """As in PredictResult, for all fields of the run."""
    total: float | None = None
    """Sum of all values, where that is known: not finite if any of them is not."""
    release: Callable[[], None] | None = None
    """To be called once, when nobody looks at the fields any more; None if they are the receiver's own memory."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Result of some steps of the rollouts of a batch, each list in their order."""

    states: list[torch.Tensor]
    """After the last step; on the device."""
    frames: list[dict[int, Fields]]
    """Wanted step of the turn (counted from 1) -> float32 [n, channels, *grid]."""
    excess: list[NDArray[np.float32]]
    """[steps, n]; see runtime/rollout_turn.py."""
    trust: list[dict[str, NDArray[np.float32]]]
    """Signal -> its values [steps, n]."""


class Runnable(Protocol):
    """A loaded model, as the pipeline sees it. All but the names and `gradient_bytes` is for the device thread."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def start(
        self, parts: Sequence[Fields], answers: Sequence[Fields] = ()
    ) -> Callable[[], ModelOutput]:
        """Begin to predict `parts`, each float32 [n, in_channels, *grid], as one batch.

        The outputs of each part may be written into its place in `answers`, if those have that shape. The parts must be
        left unchanged, and the answers alone. What it returns is called once, on any thread; it waits for the answer,
        whose memory may be lent (`ModelOutput.release`): there is not much of it.

        Raises:
            DeviceLost: here or from the wait; the process can run nothing more on the device.
            Exception: here only, whatever the model raises; nothing of the batch is left running then.
        """
        ...

    def start_vjp(self, parts: Sequence[Fields], shapes: VjpShapes) -> Callable[[], ModelOutput]:
        """As `start`, for gradients: the parts are rows of these shapes, and the answer has such rows."""
        ...

    def gradient_bytes(self, shapes: VjpShapes) -> int:
        """Memory that the gradient of one field takes beside its row, about; on any thread.

        Raises:
            NotDifferentiable: the model has none.
        """
        ...

    def free_memory(self) -> None:
        """Give back the memory that it holds only to be faster; after running out."""
        ...


class Steppable(Protocol):
    """A loaded model, as rollouts see it. Both methods are for the device thread."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def advance(self, states: list[State], wanted: list[list[int]], *, steps: int) -> Turn:
        """Run rollouts on by so many steps, in one batch; of each the frames of its `wanted` steps."""
        ...

    def free_memory(self) -> None:
        """As Runnable's."""
        ...
