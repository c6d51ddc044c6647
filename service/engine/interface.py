"""The one interface through which HTTP sees inference, wherever the engine lives, and the records that pass it.

A record is the same in one process and between processes: arrays travel as their places in shared memory, a
configuration as its digest (service/processes/channel.py), everything else as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from turbofno.models.core.config import ModelConfig
from turbofno.service.engine.vjp import VjpShapes

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

Fields = NDArray[np.float32]
Trust = dict[str, tuple[float, ...]]
"""Signal of models/trust/signals.py -> its value for each field."""

NO_FIELDS: Fields = np.empty(0, np.float32)
"""Outputs that do not stand anywhere yet."""
_ALIGNMENT = 64
UNREAD_BYTES = 4 * 1024 * 1024


class PredictRequest(msgspec.Struct, eq=False, array_like=True):
    """Checked fields for one model: float32, C-contiguous, [n, in_channels, *grid], in physical units.

    It is the engine's once it was handed over: what lies elsewhere is put into shared memory there.
    """

    model: str
    version: str | None
    fields: Fields
    request_id: str
    priority: int = 0
    """Open Inference Protocol meaning: 1 is highest, larger is lower, 0 is the default (see shares.py)."""
    deadline: float | None = None
    """On the `time.monotonic` clock; the work is dropped with DeadlineExceeded if it has not started by then."""
    config: ModelConfig | None = None
    """What the fields were checked against; Unavailable if a reload has since put another kind of model there."""
    client: str = ""
    """Name of the API key that asks, never the key; empty without keys."""
    client_max_fields: int = 0
    """Most fields of that client in the engine at once; 0: no limit."""
    trace: str = ""
    """The W3C traceparent of who asks; empty if that is not traced."""
    answer: Fields | None = None
    """Where the outputs are to be written, if somewhere special; nothing is written there after the outcome."""
    vjp: VjpShapes | None = None
    """Asks for gradients: the fields are rows [n, length] of these shapes, and so is the answer (see vjp.py)."""


class PredictResult(msgspec.Struct, eq=False, array_like=True):
    """The answer: float32 [n, out_channels, *grid] (rows, if gradients were asked for), with what it took (seconds)."""

    model: str
    version: str
    fields: Fields
    queue_seconds: float
    compute_seconds: float
    batch_sizes: tuple[int, ...]
    """Number of fields in each device batch that this request's fields ran in."""
    backend: str
    """Spectral backend that really ran, for example 'gemm' or 'reference'."""
    precision: str = "fp32"
    trust: Trust = {}
    """Empty where nothing is known to judge by, or the setting `trust` is off."""


class RolloutRequest(msgspec.Struct, eq=False, array_like=True):
    """Run an autoregressive model on its own output until step `last`; steps count from `start`, that of the input."""

    initial: PredictRequest
    """Fields at step `start`; its priority is not looked at."""
    last: int
    start: int = 0
    every: int = 1
    """Frames wanted: those whose step is a multiple of this, and the last; 0: the last alone."""

    def wants(self, step: int) -> bool:
        """Whether the frame of that step is to be given."""
        return step == self.last or (self.every > 0 and step % self.every == 0)


class Frame(msgspec.Struct, eq=False, array_like=True):
    """How far a rollout is, and its fields there, float32 [n, channels, *grid], if that step's are wanted."""

    step: int
    fields: Fields | None = None
    trust: Trust = {}
    """The largest values of the steps since the frame before, where fields are given."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """One (model, version) as the repository sees it."""

    name: str
    version: str
    state: str
    """LOADING, READY, UNLOADING or UNAVAILABLE."""
    reason: str = ""
    backend: str = ""
    """Backend of a READY model, as in PredictResult."""
    precision: str = ""
    """Precision in which a READY model computes."""
    asked_precision: str = ""
    """What its configuration, or the server's setting, asks for: a CPU gives fp32 whatever is asked."""
    execution: str = ""
    """The way a READY model runs on its training grid: chain (of kernels), graph (a CUDA graph of the module), module (layer
    by layer); on a CPU replay or module."""
    execution_reason: str = ""
    """Why a GPU runs it as nothing faster."""


class RecoveryRecord(NamedTuple):
    """A (model, version) of an engine, for its successor: load it again, or report why it is not loaded."""

    name: str
    version: str
    reason: str
    """Why it is not loaded; empty: load it."""


@dataclass(frozen=True, slots=True)
class ModelCounters:
    """Totals since load, in the terms of the protocol's statistics extension (counts and nanoseconds)."""

    success_count: int = 0
    success_ns: int = 0
    fail_count: int = 0
    fail_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    inference_count: int = 0
    """Fields answered."""
    execution_count: int = 0
    """Batches run."""
    last_inference_ms: int = 0
    """Unix time of the last request, milliseconds."""
    batches: dict[int, tuple[int, int]] = field(default_factory=dict)
    """batch size -> (number of batches, total compute ns)."""


class Engine(Protocol):
    """What HTTP needs of inference. Cancelling the task that awaits `predict` cancels work not yet started."""

    def start(self) -> None:
        """Begin to get ready, on the running event loop."""
        ...

    def start_draining(self) -> None:
        """Not ready from now on; what was admitted can still be predicted."""
        ...

    async def close(self, *, within: float) -> None:
        """Finish accepted work within that many seconds, fail the rest with Unavailable, and stop. Repeatable."""
        ...

    def config(self, model: str, version: str | None = None) -> ModelConfig:
        """The configuration of a known model (newest version if None). Raises NotFound; Unavailable if not READY."""
        ...

    def statuses(self) -> list[ModelStatus]:
        """Every known (model, version), sorted by name, then version."""
        ...

    async def counters(self, model: str, version: str) -> ModelCounters:
        """Totals of a READY model. Raises NotFound, Unavailable."""
        ...

    def buffer(self, size: int, *, aligned_at: int = 0) -> memoryview:
        """Writable memory for a request's body: what lies there reaches the device without another copy before it.

        The byte at `aligned_at` is on a 64-byte boundary. The memory is given back with its last view.

        Raises:
            PayloadTooLarge, Unavailable: there never is, or is no room now.
        """
        ...

    async def predict(self, request: PredictRequest) -> PredictResult:
        """Run the fields.

        Raises NotFound, QueueFull, PayloadTooLarge (over the client's limit), DeadlineExceeded, Unavailable,
        InvalidField (NaN or infinity came out: finite input far outside the training range), NotDifferentiable
        and PayloadTooLarge (gradients that cannot be had, or take too much memory), InferenceFailed.
        """
        ...

    def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        """Frames as they are made, in order; closing the generator ends the rollout.

        Raises:
            BlowUp: the state left what the model knows, at a named step; every wanted frame before it was given.
            NotFound, DeadlineExceeded (it has not begun), QueueFull, PayloadTooLarge, Unavailable,
            InferenceFailed.
        """
        ...

    async def load(self, model: str) -> None:
        """(Re)load a model from the repository and warm it up. Raises NotFound, Unavailable with the reason."""
        ...

    async def unload(self, model: str) -> None:
        """Finish what is queued for the model, then drop it. Raises NotFound."""
        ...

    @property
    def ready(self) -> bool:
        """All start-up models are loaded and warm, and the service is neither draining nor failed."""
        ...

    @property
    def failure(self) -> str:
        """Why this process can predict nothing more and should end, or empty."""
        ...


def heap_buffer(size: int, aligned_at: int = 0) -> memoryview:
    """Writable memory of this process, uninitialised: pages that are never written are never committed."""
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -(raw.ctypes.data + aligned_at) % _ALIGNMENT
    return memoryview(raw.data)[start : start + size]


def unread_bytes(fields: Fields) -> int:
    """Most bytes of frames, of one at least, that a rollout holds for a client that has not taken them; then it waits."""
    return max(UNREAD_BYTES, fields.nbytes)


def status_of(config: ModelConfig, engine: Engine) -> ModelStatus:
    """The status of the model that `engine.config` gave this configuration for."""
    key = (config.name, config.version)
    return next(status for status in engine.statuses() if (status.name, status.version) == key)
