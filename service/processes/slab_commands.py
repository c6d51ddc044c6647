"""Messages from the first rank of an engine of several devices to the others, and their answers.

Arrays are sent as (number of the shared memory, byte offset, shape). A command is answered once; a note is not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

from turbofno.models.core.config import Precision
from turbofno.service.engine.interface import Fields
from turbofno.service.processes.messages import Attach
from turbofno.service.runtime.slabs import Start

if TYPE_CHECKING:
    from multiprocessing.connection import Connection


class _Message(msgspec.Struct, frozen=True, tag=True, array_like=True):
    pass


class Join(_Message, frozen=True):
    """The first command: join the group."""

    parent: int
    """Process id of the first rank."""
    name: str
    rank: int
    ranks: int
    store: str
    """File by which the ranks find each other."""
    settings: dict[str, Any]
    """With this rank's device."""


class Map(_Message, frozen=True):
    """Note: map a memory; the arrays of commands lie in such."""

    number: int
    attachment: Attach


class Unmap(_Message, frozen=True):
    """Note: no command uses this memory any more."""

    number: int


class Load(_Message, frozen=True):
    """Load a checkpoint whose weights have this hash."""

    model: int
    path: str
    sha256: str
    precision: Precision


class Unload(_Message, frozen=True):
    """Note: drop a model."""

    model: int


class Clear(_Message, frozen=True):
    """Note: free the CUDA graphs of a model."""

    model: int


class Predict(_Message, frozen=True):
    """Run `Slabs.predict`."""

    model: int
    inputs: list[Fields]
    outputs: list[Fields]


class Advance(_Message, frozen=True):
    """Run `Slabs.advance`."""

    model: int
    starts: list[Start]
    targets: list[int]
    frames: list[dict[int, Fields]]
    steps: int


class Forget(_Message, frozen=True):
    """Note: free the state of a rollout."""

    state: int


class Done(_Message, frozen=True):
    """The answer to a command."""

    value: Any
    """The rank's result."""
    seconds: float
    """Duration of the command."""
    memory_bytes: int


class Failed(_Message, frozen=True):
    """The answer to a command that raised an error, which the rank has logged."""

    error: str


Command: TypeAlias = Join | Map | Unmap | Load | Unload | Clear | Predict | Advance | Forget
Answer: TypeAlias = Done | Failed


class CommandReader:
    """One rank's end of the connection to the first."""

    def __init__(self, connection: Connection, array: Any) -> None:
        """`array` gives the array of a reference."""
        self._connection = connection
        self._decoder = msgspec.msgpack.Decoder(Command, dec_hook=lambda _, value: array(*value))

    def receive(self) -> Command:
        """Wait for a command. Raises EOFError if the first rank is gone."""
        command: Command = self._decoder.decode(self._connection.recv_bytes())
        return command

    def answer(self, answer: Answer) -> None:
        self._connection.send_bytes(msgspec.msgpack.encode(answer))
