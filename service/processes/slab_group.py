"""The ranks of an engine of several devices, as its process, the first rank, starts, commands and watches them.

The others are child processes (slab_follower.py). Each command runs on all ranks at once, and its arrays lie in memory
that all have mapped: that of the front ends, and one for what does not come from them. A rank that dies, or a command
that does not end in time, is the end of the group, and so of the engine process, which the supervisor starts again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import os
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray

from turbofno.models.core.checkpoint import LoadedModel
from turbofno.models.core.config import Precision
from turbofno.service.engine.interface import Fields
from turbofno.service.engine.out_of_memory import out_of_memory
from turbofno.service.errors import DeviceLost
from turbofno.service.metrics import Metrics
from turbofno.service.processes import slab_follower
from turbofno.service.processes.child_process import ChildProcess, in_thread
from turbofno.service.processes.launch import Launch, run_to_the_end
from turbofno.service.processes.liveness import HEARTBEAT_SECONDS
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.messages import Attach
from turbofno.service.processes.slab_commands import (
    Answer,
    Command,
    Done,
    Failed,
    Reference,
    encoder,
)
from turbofno.service.processes.slab_model import SlabModel
from turbofno.service.runtime.device import resolve_device
from turbofno.service.runtime.slabs import Slabs

logger = logging.getLogger(__name__)

LOST = "a device of this engine's group was lost, and the engine is started again; retry"
"""The reason that clients get for a lost group."""
_PATIENCE = 10.0
"""A command may take so many times as long as the last one like it."""
_GUESSED_SECONDS = 10.0
"""For a step of a field on a grid that has not run yet."""
_OWN_MEMORY = 0
"""Number of the memory that the group made itself."""
_MAX_KNOWN = 4096
"""Most models and grids that are known to have run."""


class Rank(NamedTuple):
    """Another rank, as the first one has it."""

    number: int
    process: ChildProcess
    connection: Connection


class _Running:
    """A command that runs, and the seconds that it has left: those that the event loop ran, so a pause of all is none."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds
        self.late = f"a command did not end within {seconds:.0f} s"
        """The error once none is left."""

    def fail(self, why: str, seconds: float) -> None:
        """The first rank failed: the others fail too, or wait for it in vain."""
        self.left = min(self.left, seconds)
        self.late = f"rank 0 failed: {why}; the others did not end within {seconds:.0f} s"


def fork(launch: Launch) -> tuple[Launch, list[Rank]]:
    """Fork the other ranks from the process of the first, before it has threads and a GPU.

    Returns:
        The launch of the first, by which it finds the others, and these.
    """
    others = launch.devices[1:]
    if not others:
        return launch, []
    # Like other shared memory here it has no name, so nothing stays behind.
    store = os.memfd_create("turbofno-store")
    launch = replace(launch, parent=os.getpid(), store=f"/proc/{os.getpid()}/fd/{store}")
    forked: list[tuple[int, Connection]] = []
    for rank, device in enumerate(others, 1):
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            for _, of_another in (*forked, (0, ours)):
                of_another.close()
            settings = launch.settings.model_copy(update={"device": device})
            follower = replace(launch, rank=rank, settings=settings)
            run_to_the_end(partial(slab_follower.run, follower, theirs))
        theirs.close()
        forked.append((pid, ours))
    return launch, [
        Rank(number, ChildProcess(pid), ours) for number, (pid, ours) in enumerate(forked, 1)
    ]


class SlabGroup:
    """Implements turbofno.service.runtime.slabs.SlabGroup. Commands are for the device thread."""

    def __init__(
        self, launch: Launch, device: torch.device, metrics: Metrics, ranks: Sequence[Rank] = ()
    ) -> None:
        settings = launch.settings
        self.name, self.devices = launch.name, launch.devices
        self.device = device
        self.slabs = Slabs(device)
        self.numbers = itertools.count(1)
        self.lost = ""
        """Why the group can run nothing more, or empty."""
        self._metrics = metrics
        self.trust = settings.trust
        """True if answers have trust signals."""
        self._hang_seconds = settings.hang_seconds
        # Frames wait here for their place in a front end's memory. Pages that were never used take no memory.
        self.memory = SlotMemory(8 * settings.frontends * settings.shared_memory_bytes)
        self._addresses = {_OWN_MEMORY: _addresses(self.memory.bytes)}
        """Of each memory that all ranks have mapped, by its number."""
        self._ranks = ranks
        self._notes: deque[Command] = deque()
        self._sending = Lock()
        self._encoder = encoder(self._reference)
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
        self._running: _Running | None = None
        self._known: dict[object, float] = {}
        """Model and grid -> seconds of a step of a field when it last ran."""

    @classmethod
    async def start(cls, launch: Launch, metrics: Metrics, ranks: list[Rank]) -> SlabGroup:
        """Join the other ranks.

        Raises:
            ValueError: a device cannot be used.
            RuntimeError: a rank ended, or they did not join in time; another start may succeed.
        """
        devices = [resolve_device(name) for name in launch.devices]
        group = cls(launch, devices[0], metrics, ranks)
        try:
            for _, process, connection in ranks:
                try:
                    await asyncio.to_thread(connection.recv_bytes)
                except (EOFError, OSError):
                    if await process.wait() == os.EX_CONFIG:
                        raise ValueError(f"{group._ended()}; the lines above say why") from None
                    raise RuntimeError(group._ended()) from None
            joined = asyncio.wrap_future(in_thread(partial(slab_follower.join, launch, devices[0])))
            waits: list[asyncio.Future[Any]] = [
                asyncio.wrap_future(rank.process.ended) for rank in ranks
            ]
            # Joining would wait a minute for one that has ended.
            await asyncio.wait((joined, *waits), return_when=asyncio.FIRST_COMPLETED)
            if ended := group._ended():
                joined.cancel()
                raise RuntimeError(ended)
            await joined
        except BaseException:
            await group.close()
            raise
        for rank in range(len(devices)):
            group._count(rank, 0.0, 0)
        # Nobody page-locks it: CUDA refuses to copy an array that is locked in part, and all of it would be too much.
        group._note("map", _OWN_MEMORY, msgspec.structs.replace(group.memory.attachment(), kept=0))
        logger.info(
            "%s has joined %d ranks on %s", launch.name, len(devices), ", ".join(group.devices)
        )
        return group

    async def watch(self) -> None:
        """Wait until a rank ends or a command takes too long; `lost` then says which."""
        ends = [asyncio.create_task(rank.process.wait()) for rank in self._ranks]

        async def ended() -> bool:
            done, _ = await asyncio.wait(
                ends, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            return bool(done)

        while not self.lost and not await ended():
            if running := self._running:
                running.left -= HEARTBEAT_SECONDS
                if running.left <= 0:
                    self.lost = running.late
            else:
                # A rank that ended is found next time.
                with suppress(OSError):
                    self._send()
        # A command may have failed on it first.
        if await ended():
            self.lost = self._ended()
        logger.error("the group of %s is lost: %s", self.name, self.lost)

    def _ended(self) -> str:
        """Which ranks have ended; empty if none has."""
        return ", ".join(
            f"rank {number} on {self.devices[number]} ended with status {process.returncode}"
            for number, process, _ in self._ranks
            if process.returncode is not None
        )

    async def close(self) -> None:
        for rank in self._ranks:
            rank.process.kill()
        for rank in self._ranks:
            await rank.process.wait()

    def map(self, attachment: Attach, memory: NDArray[np.uint8]) -> None:
        """Let commands refer to arrays in this memory, as long as `memory` or a view of it exists."""
        number = next(self.numbers)
        self._addresses[number] = _addresses(memory)
        weakref.finalize(memory, self._unmap, number).atexit = False
        self._note("map", number, attachment)

    def model(self, path: Path, loaded: LoadedModel, precision: Precision) -> SlabModel:
        return SlabModel(self, path, loaded, precision)

    def load(self, model: int, path: Path, sha256: str, precision: Precision) -> None:
        """Have the other ranks load a model.

        Raises:
            ValueError: one cannot.
            RuntimeError: one has no memory for it now (`out_of_memory`).
        """
        command = Command("load", (model, str(path), sha256, precision), answered=True)
        limit = _PATIENCE * slab_follower.START_SECONDS
        answers, _ = self._exchange(command, lambda: Done(None, 0.0, 0), limit)
        for rank, answer in enumerate(answers):
            if isinstance(answer, Failed):
                error = RuntimeError(f"rank {rank} cannot load it: {answer.error}")
                raise error if out_of_memory(error) else ValueError(str(error))

    def run(self, method: str, *arguments: Any, key: object, field_steps: int) -> list[Any]:
        """Call a method of the slabs of all ranks; returns their values.

        It may take ten times as long as the last command with this `key`, and `hang_seconds` more; the first with a
        `key` a minute and 10 s for each field and step. An error of the same type on all ranks is raised as it is.

        Raises:
            DeviceLost: a rank is gone, or only some failed, so that they do not agree any more.
        """
        usual = self._known.get(key)
        if usual is None:
            limit = slab_follower.START_SECONDS + _GUESSED_SECONDS * field_steps
        else:
            limit = _PATIENCE * usual * field_steps
        command = Command(method, arguments, answered=True)
        answers, error = self._exchange(
            command, partial(command.run, self.slabs), self._hang_seconds + limit
        )
        done = [answer for answer in answers if isinstance(answer, Done)]
        errors = {n: answer.error for n, answer in enumerate(answers) if isinstance(answer, Failed)}
        types = {why.partition(":")[0] for why in errors.values()}
        if error is not None and not done and len(types) == 1:
            raise error
        if errors:
            why = ", ".join(f"rank {rank} failed: {why}" for rank, why in errors.items())
            raise self._lose(why) from error
        if len(self._known) == _MAX_KNOWN:
            self._known.clear()
        self._known[key] = max(one.seconds for one in done) / field_steps
        for rank, one in enumerate(done):
            self._count(rank, one.seconds, one.memory_bytes)
        return [one.value for one in done]

    def drop(self, method: str, number: int) -> None:
        """Call `remove`, `clear` or `forget` of the slabs of all ranks; on any thread, also in garbage collection."""
        getattr(self.slabs, method)(number)
        self._note(method, number)

    def shares(self, array: Fields) -> bool:
        """True if all ranks have this array."""
        return self._reference(array) is not None

    def shared(self, array: Fields) -> Fields:
        """The array, or a copy, in memory that all ranks have."""
        if array.flags.carray and array.dtype == np.float32 and self.shares(array):
            return array
        copy = self.memory.array(array.shape)
        np.copyto(copy, array)
        return copy

    def _exchange(
        self, command: Command, own: Callable[[], Done], seconds: float
    ) -> tuple[list[Answer], Exception | None]:
        """The answers of all ranks, of this one by `own`, and its error."""
        self._running = _Running(seconds)
        error = None
        try:
            self._send(command)
            try:
                mine: Answer = own()
            except Exception as raised:
                error, mine = raised, Failed.of(raised)
                self._running.fail(mine.error, self._hang_seconds)
            others = [self._decoder.decode(rank.connection.recv_bytes()) for rank in self._ranks]
            return [mine, *others], error
        except (EOFError, OSError) as gone:
            raise self._lose("a rank ended") from gone
        finally:
            self._running = None

    def _lose(self, why: str) -> DeviceLost:
        self.lost = self.lost or why
        return DeviceLost(LOST, retry_after=1.0)

    def _note(self, method: str, *arguments: object) -> None:
        # Sent later: this may run in garbage collection, on any thread.
        self._notes.append(Command(method, arguments, answered=False))

    def _send(self, *commands: Command) -> None:
        with self._sending:
            self._notes.extend(commands)
            while self._notes:
                data = self._encoder.encode(self._notes.popleft())
                for rank in self._ranks:
                    rank.connection.send_bytes(data)

    def _unmap(self, number: int) -> None:
        del self._addresses[number]
        self._note("unmap", number)

    def _reference(self, array: Fields) -> Reference | None:
        """None if not all ranks have this array."""
        address: int = array.__array_interface__["data"][0]
        for number, addresses in self._addresses.copy().items():
            if address in addresses:
                return number, address - addresses.start, array.shape
        return None

    def _count(self, rank: int, seconds: float, memory_bytes: int) -> None:
        labels = self.name, str(rank)
        self._metrics.rank_seconds.labels(*labels).inc(seconds)
        self._metrics.rank_memory.labels(*labels).set(memory_bytes)


def _addresses(memory: NDArray[np.uint8]) -> range:
    start = memory.ctypes.data
    return range(start, start + memory.nbytes)
