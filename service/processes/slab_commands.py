"""Messages between the first rank of an engine of several devices and the others.

A command is a call of a method of every rank's slabs; arrays are sent as references.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import msgspec

from turbofno.service.engine.interface import Fields
from turbofno.service.runtime.slabs import Slabs

Reference: TypeAlias = tuple[int, int, Sequence[int]]
"""Of an array: the number of the shared memory, the byte offset there, and the shape."""

_ARRAY = 0
"""Code of MessagePack's extension type."""


class Command(msgspec.Struct, frozen=True, array_like=True):
    """Call a method of a rank's slabs."""

    method: str
    arguments: tuple[Any, ...]
    answered: bool
    """False for what does not take long and cannot fail."""

    def call(self, slabs: Slabs) -> Any:
        return getattr(slabs, self.method)(*self.arguments)

    def run(self, slabs: Slabs) -> Done:
        began = time.perf_counter()
        value = self.call(slabs)
        return Done(value, time.perf_counter() - began, slabs.memory_bytes())


class Done(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to a command."""

    value: Any
    """The rank's result."""
    seconds: float
    """Duration of the command."""
    memory_bytes: int


class Failed(msgspec.Struct, frozen=True, tag=True, array_like=True):
    """The answer to a command that raised an error, which the rank has logged."""

    error: str

    @classmethod
    def of(cls, error: Exception) -> Failed:
        return cls(f"{type(error).__name__}: {error}")


Answer: TypeAlias = Done | Failed


def encoder(refer: Callable[[Fields], Reference | None]) -> msgspec.msgpack.Encoder:
    """An encoder of commands; `refer` returns the reference of an array."""
    encode = msgspec.msgpack.encode
    return msgspec.msgpack.Encoder(
        enc_hook=lambda array: msgspec.msgpack.Ext(_ARRAY, encode(refer(array)))
    )


def decoder(array: Callable[[int, int, Sequence[int]], Fields]) -> msgspec.msgpack.Decoder[Command]:
    """A decoder of commands; `array` returns the array of a reference."""
    decode = msgspec.msgpack.decode
    return msgspec.msgpack.Decoder(Command, ext_hook=lambda _, data: array(*decode(data)))
