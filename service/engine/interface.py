"""The Engine interface, which HTTP calls for inference in this or another process, and its records.

Between processes, arrays are sent as their offsets in shared memory and configurations as digests
(service/processes/channel.py).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from copy import copy
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from turbofno.models.core.config import ModelConfig
from turbofno.service.engine.vjp import VjpShapes
from turbofno.service.errors import NotFound, ServiceError, Unavailable

Fields = NDArray[np.float32]
Trust = dict[str, tuple[float, ...]]
"""Signal of models/trust/signals.py -> its value for each field."""

NO_FIELDS: Fields = np.empty(0, np.float32)
"""Placeholder for outputs that are not there yet."""
_ALIGNMENT = 64
UNREAD_BYTES = 4 * 1024 * 1024
UNLOADED = "unloaded"
"""Reason of a model that was unloaded: it is not needed."""
_MOST_NAMED = 20
"""Most models that an error names."""


class Joined(NamedTuple):
    """A request that was joined with others into one."""

    request_id: str
    size: int
    """Number of its fields."""
    deadline: float | None


class PredictRequest(msgspec.Struct, eq=False, array_like=True):
    """Validated fields for one model, at least one: float32, C-contiguous, [n, in_channels, *grid], in physical units.

    The engine owns the request from the call on: it may replace `fields` by a copy in shared memory.
    """

    model: str
    version: str | None
    fields: Fields
    request_id: str
    priority: int = 0
    """Open Inference Protocol meaning: 1 is highest, larger is lower, 0 is the default (see shares.py)."""
    deadline: float | None = None
    """On the `time.monotonic` clock; DeadlineExceeded if the work has not started by then."""
    config: ModelConfig | None = None
    """The configuration that the fields were validated against; Unavailable if a reload has changed its shape since."""
    client: str = ""
    """Name of the API key, not the key; empty without keys."""
    client_max_fields: int = 0
    """Most fields of that client in the engine at once; 0: no limit."""
    trace: str = ""
    """The caller's W3C traceparent; empty if it is not traced, or not sampled."""
    at_once: bool = False
    """True if no other request can come in this turn of the event loop. An engine in this process then does not await its end."""
    output_buffer: Fields | None = None
    """Array that receives the outputs, if the caller provides one; not written after the outcome is set."""
    vjp: VjpShapes | None = None
    """For gradients: fields and outputs are rows [n, length] of these shapes (see vjp.py)."""
    joined: tuple[Joined, ...] = ()
    """The requests that this one was made of, whose fields follow each other; empty: it is one. Its deadline is theirs that
    comes first."""

    def alone(self) -> list[PredictRequest]:
        """The joined requests, with views of the arrays."""
        requests, stop = [], 0
        for request_id, size, deadline in self.joined:
            start, stop = stop, stop + size
            request = copy(self)
            request.request_id, request.deadline, request.joined = request_id, deadline, ()
            request.fields = self.fields[start:stop]
            if self.output_buffer is not None:
                request.output_buffer = self.output_buffer[start:stop]
            requests.append(request)
        return requests


class PredictResult(msgspec.Struct, eq=False, array_like=True):
    """The outputs, float32 [n, out_channels, *grid] (rows for gradients), with timings in seconds."""

    model: str
    version: str
    fields: Fields
    queue_seconds: float
    compute_seconds: float
    batch_sizes: tuple[int, ...]
    """Number of fields in each device batch that this request's fields ran in."""
    backend: str
    """Spectral backend that ran, for example 'gemm' or 'reference'."""
    precision: str = "fp32"
    trust: Trust = {}
    """Empty if the model has no reference statistics or the setting `trust` is off."""


class RolloutRequest(msgspec.Struct, eq=False, array_like=True):
    """Run an autoregressive model on its own output until step `last`; the input is step `start`."""

    initial: PredictRequest
    """Fields at step `start`; its priority is ignored."""
    last: int
    start: int = 0
    every: int = 1
    """Return frames at multiples of this step, and the last; 0: only the last."""
    past_steps: int = 1
    """States in the input, of which a frame is one."""

    @property
    def frame_shape(self) -> tuple[int, ...]:
        """[n, channels, *grid] of a frame's fields."""
        n, channels, *grid = self.initial.fields.shape
        return (n, channels // self.past_steps, *grid)

    @property
    def frame_bytes(self) -> int:
        """Of a frame's fields."""
        return self.initial.fields.nbytes // self.past_steps

    @property
    def unread_bytes(self) -> int:
        """Most bytes of unread frames, at least one, that the rollout holds for a slow client before it pauses."""
        return max(UNREAD_BYTES, self.frame_bytes)

    def wants(self, step: int) -> bool:
        """True if the frame of that step is returned."""
        return step == self.last or (self.every > 0 and step % self.every == 0)


class Frame(msgspec.Struct, eq=False, array_like=True):
    """A rollout's progress, with its fields, float32 [n, channels, *grid], if the request wants that step."""

    step: int
    fields: Fields | None = None
    trust: Trust = {}
    """Largest values since the last frame with fields; empty in frames without."""


@dataclass(frozen=True, slots=True)
class ModelStatus:
    """State of one (model, version)."""

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
    """Precision in its configuration or the server's setting; a CPU always computes in fp32."""
    execution: str = ""
    """Execution of a READY model on its training grid: `chain` of kernels, CUDA `graph` of the module, `module` layer by layer;
    on a CPU `replay` or `module`; `slabs` if its fields are cut over several devices."""
    execution_reason: str = ""
    """Why a GPU cannot run it faster, or why one of several devices runs it alone."""


class RecoveryRecord(NamedTuple):
    """A (model, version) of an engine, for its successor: load it again, or report why it is not loaded."""

    name: str
    version: str
    reason: str
    """Why it is not loaded; empty: load it."""


@dataclass(slots=True)
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
    """Inference as HTTP uses it. Cancelling the task that awaits `predict` cancels work not yet started."""

    def start(self) -> None:
        """Begin to load models, on the running event loop."""

    async def close(self, *, within: float) -> None:
        """Finish accepted work within that many seconds, fail the rest with Unavailable, and stop. Idempotent."""

    def config(self, model: str, version: str | None = None) -> ModelConfig:
        """The configuration of a known model (newest version if None). Raises NotFound; Unavailable if not READY."""

    def statuses(self) -> list[ModelStatus]:
        """Every known (model, version), sorted by name, then version."""

    async def counters(self, model: str, version: str) -> ModelCounters:
        """Totals of a READY model. Raises NotFound, Unavailable."""

    def buffer(self, size: int, *, aligned_at: int = 0) -> memoryview | None:
        """Writable memory for a request's body, from which the device reads fields without another copy.

        The byte at `aligned_at` is on a 64-byte boundary. The memory is freed with its last view. None: the body may be
        anywhere.

        Raises:
            PayloadTooLarge: more than there ever is.
            Unavailable: no memory is free now.
        """

    async def predict(self, request: PredictRequest) -> PredictResult:
        """Run the fields. Nothing happens before this is awaited, except that it may raise.

        Raises NotFound, QueueFull, PayloadTooLarge (over the client's limit), DeadlineExceeded, Unavailable,
        InvalidField (NaN or infinity in the output: finite input far outside the training range), NotDifferentiable,
        PayloadTooLarge (gradients that take too much memory), InferenceFailed.
        """

    def rollout(self, request: RolloutRequest) -> AsyncGenerator[Frame]:
        """Yield frames as they are computed, in order; closing the generator ends the rollout.

        Raises:
            BlowUp: the state diverged at a named step; every wanted frame before it was yielded.
            NotFound, DeadlineExceeded (before the first step), QueueFull, PayloadTooLarge, Unavailable,
            InferenceFailed.
        """

    async def load(self, model: str) -> None:
        """(Re)load a model from the repository and warm it up. Raises NotFound, Unavailable with the reason."""

    async def unload(self, model: str) -> None:
        """Finish the model's queued requests, then drop it. Raises NotFound."""

    @property
    def ready(self) -> bool:
        """True if all start-up models are loaded and warm, and the device has not failed."""

    @property
    def failure(self) -> str:
        """Why this process can run no more predictions and must exit, or empty."""


def heap_buffer(size: int, aligned_at: int = 0) -> memoryview:
    """Uninitialised writable memory of this process; unwritten pages are never committed."""
    raw = np.empty(size + _ALIGNMENT, dtype=np.uint8)
    start = -(raw.ctypes.data + aligned_at) % _ALIGNMENT
    return memoryview(raw.data)[start : start + size]


def status_of(config: ModelConfig, engine: Engine) -> ModelStatus:
    """The status of the model with this configuration, as `engine.config` returned it."""
    key = (config.name, config.version)
    return next(status for status in engine.statuses() if (status.name, status.version) == key)


def not_any_more(error: Unavailable) -> Unavailable:
    """The error for a model that was ready when the fields were checked. A retry is served by the version that replaced it, or
    is told why there is none."""
    return Unavailable(error.message, retry_after=error.retry_after or 1.0)


def not_served(name: str, version: str | None, statuses: Sequence[ModelStatus]) -> ServiceError:
    """The error for a model of which no version (or not this one) is READY, by the statuses of all, sorted by version."""
    versions = [one for one in statuses if one.name == name]
    if not versions:
        names = list(dict.fromkeys(one.name for one in statuses))
        known = ", ".join(names[:_MOST_NAMED]) or "none"
        if len(names) > _MOST_NAMED:
            known += f" and {len(names) - _MOST_NAMED} more: GET /v1/models lists all"
        return NotFound(f"there is no model {name!r}; there are {known}")
    wanted = [one for one in versions if version in (None, one.version)]
    if not wanted:
        have = ", ".join(sorted(one.version for one in versions))
        return NotFound(f"model {name!r} has no version {version!r}; it has {have}")
    newest = wanted[-1]
    which = f"model {name!r}" if version is None else f"model {name!r} version {version}"
    why = f" ({newest.reason})" if newest.reason else ""
    others = ", ".join(one.version for one in versions if one.state == "READY")
    return Unavailable(
        f"{which} is {newest.state}{why}" + (f"; READY: version {others}" if others else ""),
        retry_after=1.0 if newest.state == "LOADING" else None,
    )
