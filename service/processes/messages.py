"""Messages between the processes.

Arrays are sent as spans of the front end's shared memory, configurations as digests (`refer` and `resolve` of Channel).
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from turbofno.service.engine.interface import (
    Fields,
    Frame,
    ModelStatus,
    PredictRequest,
    PredictResult,
    RecoveryRecord,
    RolloutRequest,
)


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Attach(_Message, frozen=True):
    """Front end to engine, first message: its shared memory is `/proc/<pid>/fd/<fd>`."""

    pid: int
    fd: int
    name: str
    size: int
    kept: int
    """Bytes at its start that may be page-locked."""


class Predict(_Message, frozen=True):
    """Front end to engine. The engine owns the request's arrays until it answers.

    Joined requests have this id and those that follow it; each is answered.
    """

    id: int
    request: PredictRequest


class StartRollout(_Message, frozen=True):
    """Front end to engine. Answered by any number of FrameReady, then Returned or Failed.

    The engine owns both arrays until then.
    """

    id: int
    request: RolloutRequest
    ring: Fields
    """[entries, *shape of a frame]: a ring buffer of frames."""


class FrameReady(_Message, frozen=True):
    """Engine to front end: the rollout's progress; occupies the next ring entry, with fields if they were wanted."""

    id: int
    frame: Frame


class Ack(_Message, frozen=True):
    """Front end to engine: the oldest unread frame was read; its ring entry is free."""

    id: int


class Cancel(_Message, frozen=True):
    """Front end to engine: drop this prediction or rollout. It is still answered.

    Joined predictions are dropped once all of them are cancelled.
    """

    id: int


class Call(_Message, frozen=True):
    """Call `load`, `unload` or `counters` of an engine; `metrics` of a process, or, of the supervisor, of all."""

    id: int
    method: str
    arguments: tuple[str, ...] = ()


class Predicted(_Message, frozen=True):
    """Engine to front end. The result's fields are not sent: they are in the request's `output_buffer`."""

    id: int
    result: PredictResult
    count: int = 1
    """Number of requests whose result it is, from `id` on."""


class Returned(_Message, frozen=True):
    """The call's return value, or the successful end of a rollout."""

    id: int
    value: Any


class Failed(_Message, frozen=True):
    """Engine to front end: the prediction, rollout or call raised an error of service/errors.py."""

    id: int
    error: str
    values: dict[str, Any]
    """Its attributes, which are its constructor's arguments."""


class ModelState(msgspec.Struct, frozen=True, array_like=True):
    """One (model, version) on one engine; digest and JSON configuration are empty unless READY."""

    status: ModelStatus
    digest: str
    config: str


class EngineState(_Message, frozen=True):
    """Engine to front end, whenever it changes."""

    ready: bool = False
    models: tuple[ModelState, ...] = ()


class QueueState(_Message, frozen=True):
    """Engine to front end, whenever it changes: waiting fields by model and version, and expected seconds to drain."""

    waiting: tuple[tuple[str, str, int], ...] = ()
    drain_seconds: float = 1.0

    @property
    def total(self) -> int:
        return sum(fields for _, _, fields in self.waiting)


class Heartbeat(_Message, frozen=True):
    """Child to supervisor, at regular intervals."""

    endpoint: str = ""
    """An engine's address for front ends."""
    models: tuple[RecoveryRecord, ...] = ()
    """An engine's models, for its successor."""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """A live engine; its identity differs from its predecessor's."""

    identity: bytes
    endpoint: str


class Engines(_Message, frozen=True):
    """Supervisor to front ends, whenever it changes: the live engines."""

    peers: tuple[Peer, ...]


Message: TypeAlias = (
    Attach | Predict | StartRollout | FrameReady | Ack | Cancel | Call | Predicted | Returned | Failed | EngineState | QueueState
    | Heartbeat | Engines
)  # fmt: skip
