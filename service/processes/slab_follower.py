"""Entry point of the ranks of an engine of several devices, except the first, which is the engine process.

    python -m turbofno.service.processes.slab_follower NAME DESCRIPTOR

NAME is only for `ps`; DESCRIPTOR is the socket to the first rank, whose commands it runs until that ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from turbofno.models.core.checkpoint import load_model
from turbofno.service import logs
from turbofno.service.pipeline.worker import arithmetic_threads
from turbofno.service.processes.liveness import EX_CONFIG, die_with_parent
from turbofno.service.processes.memory import AttachedMemory, SlotMemory
from turbofno.service.processes.slab_commands import (
    Advance,
    Clear,
    Command,
    CommandReader,
    Done,
    Failed,
    Forget,
    Join,
    Load,
    Map,
    Predict,
    Unload,
    Unmap,
)
from turbofno.service.processes.slab_group import join
from turbofno.service.runtime.device import prepare_device
from turbofno.service.runtime.page_locked import lock
from turbofno.service.runtime.slabs import Slabs
from turbofno.service.settings import Settings
from turbofno.service.system import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import Sequence

    from turbofno.service.engine.interface import Fields
    from turbofno.service.processes.messages import Attach

logger = logging.getLogger(__name__)


class _Follower:
    """Runs the commands of the first rank on this rank's slabs."""

    def __init__(self, device: torch.device, repository: Path) -> None:
        self._device = device
        self._repository = repository
        self._memories: dict[int, AttachedMemory] = {}
        self._slabs = Slabs(device)

    def array(self, memory: int, offset: int, shape: Sequence[int]) -> Fields:
        """The array of a reference."""
        return self._memories[memory].array((offset, shape))

    def note(self, note: Command) -> bool:
        """Do what a note says. False if it is a command."""
        match note:
            case Map():
                self._memories[note.number] = memory = _mapped(note.attachment)
                if self._device.type == "cuda":
                    lock(memory.bytes, self._device)
            case Unmap():
                self._memories.pop(note.number, None)
            case Unload():
                self._slabs.remove(note.model)
            case Clear():
                self._slabs.clear(note.model)
            case Forget():
                self._slabs.forget(note.state)
            case _:
                return False
        return True

    def run(self, command: Command) -> Done:
        """Run a command."""
        started = time.perf_counter()
        value: Any = None
        match command:
            case Load():
                self._load(command)
            case Predict():
                value = self._slabs.predict(command.model, command.inputs, command.outputs)
            case Advance():
                value = self._slabs.advance(
                    command.model,
                    command.starts,
                    command.targets,
                    command.frames,
                    command.steps,
                )
            case _:
                raise TypeError(
                    f"{type(command).__name__} is no command of a group that was joined"
                )
        return Done(value, time.perf_counter() - started, self._slabs.memory_bytes())

    def _load(self, command: Load) -> None:
        loaded = load_model(Path(command.path), repository=self._repository)
        if loaded.config.sha256 != command.sha256:
            raise ValueError(
                f"{command.path} was changed while it was loaded; load the model again"
            )
        self._slabs.add(command.model, loaded, command.precision)


def _mapped(attachment: Attach) -> AttachedMemory:
    try:
        return AttachedMemory(attachment)
    except (FileNotFoundError, ProcessLookupError):
        # The front end died. What the first rank still runs for it runs on all ranks, and nobody reads the answer.
        spare = SlotMemory(attachment.size)
        return AttachedMemory(spare.attachment())


def main() -> int:
    connection = Connection(int(sys.argv[2]))
    first = CommandReader(connection, None).receive()
    assert isinstance(first, Join)
    die_with_parent(first.parent)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    settings = Settings(**first.settings)
    logs.configure(settings, process=first.name)
    keep_freed_memory()
    try:
        device = prepare_device(settings)
    except ValueError as error:
        logger.error("cannot start: %s", error)
        return EX_CONFIG
    on_cpu = device.type == "cpu"
    torch.set_num_threads(settings.torch_threads or arithmetic_threads(on_cpu=on_cpu))
    follower = _Follower(device, settings.model_repository)
    reader = CommandReader(connection, follower.array)
    reader.answer(Done(None, 0.0, 0))
    join(device, first.store, rank=first.rank, ranks=first.ranks)
    while True:
        try:
            command = reader.receive()
        except EOFError:
            return 0
        if follower.note(command):
            continue
        try:
            answer: Done | Failed = follower.run(command)
        except Exception as error:
            logger.exception("%s failed", type(command).__name__)
            answer = Failed(f"{type(error).__name__}: {error}")
        reader.answer(answer)


if __name__ == "__main__":
    status = main()
    logging.shutdown()
    # As in an engine: nothing is left to clean up, and destroying a group waits for ranks that are gone.
    os._exit(status)
