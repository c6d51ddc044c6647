"""Messages between the service and the solver process: two lengths, JSON, and a float32 field."""

from __future__ import annotations

import struct
from typing import IO, TYPE_CHECKING, Literal, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    from turbofno.service.engine.interface import Fields

PREFIX = struct.Struct("<II")
"""Lengths in bytes of the JSON and of the float32 field after it; 0 if there is no field."""


class Job(msgspec.Struct, frozen=True):
    """Draw the sample of a seed, solve it, or solve the attached field [1, *grid]."""

    pde: str
    """The PDE section of the model's config, as JSON."""
    seconds: float
    """Time limit, after which the process ends."""
    solve: bool = False
    seed: int = 0
    points: int = 0
    """Points on each grid axis."""
    values: dict[str, float] = {}
    """Values of all parameters of the sampler."""
    steps: int = 1
    """Time steps of the model to solve for."""
    shape: tuple[int, ...] = ()
    """Shape of the attached field."""


class Outcome(msgspec.Struct, frozen=True):
    """The shape of the attached field, or an error; without both, the process is ready."""

    shape: tuple[int, ...] = ()
    error: str = ""
    kind: Literal["", "none", "field"] = ""
    """Kind of error. 'none': there is no solver for the PDE; 'field': the solver cannot solve this field."""


Message = TypeVar("Message", Job, Outcome)


def packed(message: Job | Outcome, field: Fields | None = None) -> bytes:
    """Encode a message and its field."""
    text = msgspec.json.encode(message)
    payload = b"" if field is None else np.ascontiguousarray(field, "<f4").tobytes()
    return PREFIX.pack(len(text), len(payload)) + text + payload


def unpacked(text: bytes, payload: bytes, kind: type[Message]) -> tuple[Message, Fields | None]:
    """Decode a message and its field; None without one."""
    message = msgspec.json.decode(text, type=kind)
    if not payload:
        return message, None
    return message, np.frombuffer(bytearray(payload), "<f4").reshape(message.shape)


def write(stream: IO[bytes], message: Job | Outcome, field: Fields | None = None) -> None:
    """Write a message and flush it."""
    stream.write(packed(message, field))
    stream.flush()


def read(stream: IO[bytes], kind: type[Message]) -> tuple[Message, Fields | None] | None:
    """Read the next message; None at the end of the stream."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    text, payload = PREFIX.unpack(prefix)
    return unpacked(stream.read(text), stream.read(payload), kind)
