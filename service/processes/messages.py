"""Messages between the processes.

Arrays travel as their places in the front end's shared memory, a model's configuration as its digest (`References` in
channel.py); everything else as it is.
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
    """Front end to engine, first of all: my shared memory is `/proc/<pid>/fd/<fd>`."""

    pid: int
    fd: int
    name: str
    size: int


class Predict(_Message, frozen=True):
    """Front end to engine. Until its one answer has come, the request's arrays are the engine's."""

    id: int
    request: PredictRequest


class Begin(_Message, frozen=True):
    """Front end to engine: a rollout. It is answered with FrameReady any number of times, then with Returned or Failed.

    Until that end has come, both arrays are the engine's.
    """

    id: int
    request: RolloutRequest
    ring: Fields
    """[places, *shape of the fields]: frames go into one place after the other, round and round."""


class FrameReady(_Message, frozen=True):
    """Engine to front end: how far the rollout is, in the next place of the ring; its fields stand there if they are wanted."""

    id: int
    frame: Frame


class Ack(_Message, frozen=True):
    """Front end to engine: the oldest frame that was not taken yet is; its place in the ring is free."""

    id: int


class Cancel(_Message, frozen=True):
    """Front end to engine: nobody waits for this prediction or rollout any more. It is answered nevertheless."""

    id: int


class Ask(_Message, frozen=True):
    """Front end to engine: call `load`, `unload` or `counters`."""

    id: int
    method: str
    arguments: tuple[str, ...]


class Predicted(_Message, frozen=True):
    """Engine to front end. The result's fields do not travel: they stand where the request said."""

    id: int
    result: PredictResult


class Returned(_Message, frozen=True):
    """Engine to front end: the call returned this; the rollout ended well."""

    id: int
    value: Any


class Failed(_Message, frozen=True):
    """Engine to front end: the prediction, rollout or call raised this error of service/errors.py."""

    id: int
    error: str
    values: dict[str, Any]
    """Its attributes, which are the arguments that it is made of."""


class ModelState(msgspec.Struct, frozen=True, array_like=True):
    """One (model, version) on one engine; digest and configuration (JSON) are empty unless it is READY."""

    status: ModelStatus
    digest: str
    config: str


class State(_Message, frozen=True):
    """Engine to front end, whenever it changes."""

    ready: bool
    failure: str
    models: tuple[ModelState, ...]


class Queue(_Message, frozen=True):
    """Engine to front end, whenever it changes: how many fields wait, by model and version, and how fast they go."""

    waiting: tuple[tuple[str, str, int], ...]
    drain_seconds: float


class Heartbeat(_Message, frozen=True):
    """Any process to its supervisor, at regular intervals: I am alive, and can be used."""

    endpoint: str = ""
    """Where an engine listens for front ends."""
    models: tuple[RecoveryRecord, ...] = ()
    """What the successor of an engine should know."""


class Peer(msgspec.Struct, frozen=True, array_like=True):
    """An engine that is alive: `identity` is its own, never its predecessor's."""

    identity: bytes
    endpoint: str


class Engines(_Message, frozen=True):
    """Supervisor to front ends, whenever it changes: the engines that are alive."""

    peers: tuple[Peer, ...]


class PeerLost(_Message, frozen=True):
    """Supervisor to engines: this front end is dead."""

    identity: bytes


class Scrape(_Message, frozen=True):
    """Supervisor to all, and front end to supervisor: give me your metrics (the supervisor's are those of all)."""

    id: int


class Scraped(_Message, frozen=True):
    """The answer, in the text format."""

    id: int
    text: bytes


Message: TypeAlias = (
    Attach | Predict | Begin | FrameReady | Ack | Cancel | Ask | Predicted | Returned | Failed | State | Queue
    | Heartbeat | Engines | PeerLost | Scrape | Scraped
)  # fmt: skip
