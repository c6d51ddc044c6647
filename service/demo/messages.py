"""What goes between the service and its solver process: JSON and a field, each with its length before it."""

from __future__ import annotations

import struct
from typing import IO, TYPE_CHECKING, Literal, TypeVar

import msgspec
import numpy as np

if TYPE_CHECKING:
    from turbofno.service.engine.interface import Fields

PREFIX = struct.Struct("<II")
"""Lengths in bytes of the JSON and of the float32 field after it, which may be 0."""


class Job(msgspec.Struct, frozen=True):
    """Draw an input, or solve one: that of a seed, or the field sent along, [1, *grid]."""

    pde: str
    """The model's statement of it, JSON."""
    seconds: float
    """The process ends if the work takes longer."""
    solve: bool = False
    seed: int = 0
    points: int = 0
    values: dict[str, float] = {}
    """Of all knobs of the sampler."""
    steps: int = 1
    shape: tuple[int, ...] = ()
    """Of the field."""


class Outcome(msgspec.Struct, frozen=True):
    """The shape of the field that follows, or what was wrong; with neither: the process is ready."""

    shape: tuple[int, ...] = ()
    error: str = ""
    kind: Literal["", "none", "field"] = ""
    """'none': no such solver; 'field': it cannot be solved."""


Message = TypeVar("Message", Job, Outcome)


def packed(message: Job | Outcome, field: Fields | None = None) -> bytes:
    """The bytes of a message and its field."""
    text = msgspec.json.encode(message)
    payload = b"" if field is None else np.ascontiguousarray(field, "<f4").tobytes()
    return PREFIX.pack(len(text), len(payload)) + text + payload


def unpacked(text: bytes, payload: bytes, kind: type[Message]) -> tuple[Message, Fields | None]:
    """The message, and its field if there is one."""
    message = msgspec.json.decode(text, type=kind)
    if not payload:
        return message, None
    return message, np.frombuffer(bytearray(payload), "<f4").reshape(message.shape)


def write(stream: IO[bytes], message: Job | Outcome, field: Fields | None = None) -> None:
    """Write one, at once."""
    stream.write(packed(message, field))
    stream.flush()


def read(stream: IO[bytes], kind: type[Message]) -> tuple[Message, Fields | None] | None:
    """The next one; None at the end."""
    prefix = stream.read(PREFIX.size)
    if len(prefix) < PREFIX.size:
        return None
    text, payload = PREFIX.unpack(prefix)
    return unpacked(stream.read(text), stream.read(payload), kind)
