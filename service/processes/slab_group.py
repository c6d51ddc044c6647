"""The ranks of an engine of several devices, as its process, the first rank, starts, commands and watches them.

The others are child processes (slab_follower.py). Each command runs on all ranks at once, and its arrays lie in memory
that all have mapped: that of the front ends, and one for what does not come from them. A rank that dies, or a command
that does not end in time, is the end of the group, and so of the engine process, which the supervisor starts again.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import math
import os
import socket
import sys
import time
import weakref
from collections import deque
from datetime import timedelta
from multiprocessing.connection import Connection
from threading import Lock
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import torch
import torch.distributed as dist

from turbofno.service.engine.runnable import ModelOutput, Ran, SlabState, Turn
from turbofno.service.errors import DeviceLost
from turbofno.service.processes.liveness import HEARTBEAT_SECONDS
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.slab_commands import (
    Advance,
    Answer,
    Clear,
    Command,
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
from turbofno.service.runtime.device import resolve_device
from turbofno.service.runtime.rollout_turn import Excess
from turbofno.service.runtime.slabs import Slabs, Start
from turbofno_ops import ChainRefused

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from turbofno.models.core.checkpoint import LoadedModel
    from turbofno.models.core.config import Precision
    from turbofno.service.engine.interface import Fields
    from turbofno.service.engine.runnable import State
    from turbofno.service.metrics import Metrics
    from turbofno.service.processes.liveness import Launch
    from turbofno.service.processes.messages import Attach

logger = logging.getLogger(__name__)

T = TypeVar("T")

START_SECONDS = 60.0
"""Most time to join, and to make tables, connections and CUDA graphs for a new grid."""
_PATIENCE = 10.0
"""A command may take so many times as long as the last one like it."""
_GUESSED_SECONDS = 1.0
"""Of a step of a field on a grid that has not run yet."""
_OWN_MEMORY = 0
"""Number of the memory that the group made itself."""
_MAX_KNOWN = 4096
"""Most models and grids that are known to have run."""
LARGE = 1 / 16
"""Share of a GPU's memory. A field is cut if one of its hidden fields takes more, unless config.json decides."""


class _Rank(NamedTuple):
    number: int
    process: asyncio.subprocess.Process
    connection: Connection


class _Running:
    """A command that runs, and the seconds that it has left: those that the event loop ran, so a pause of all is none."""

    def __init__(self, seconds: float) -> None:
        self.seconds = self.left = seconds


def devices_of(launch: Launch) -> list[str]:
    """The devices of an engine, one for each rank."""
    settings = launch.settings
    return (settings.devices or (settings.device,))[0].split("+")


def join(device: torch.device, store: str, *, rank: int, ranks: int) -> None:
    """Join the group of an engine, whose ranks are all on this machine."""
    for backend in ("GLOO", "NCCL"):
        os.environ.setdefault(f"{backend}_SOCKET_IFNAME", "lo")
    on_gpu = device.type == "cuda"
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group(
        "nccl" if on_gpu else "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=ranks,
        timeout=timedelta(seconds=START_SECONDS),
        device_id=device if on_gpu else None,
    )


class SlabGroup:
    """Implements turbofno.service.runtime.slabs.SlabGroup. Commands are for the device thread."""

    def __init__(self, launch: Launch, device: torch.device, metrics: Metrics) -> None:
        settings = launch.settings
        self.name = launch.name
        self.devices = devices_of(launch)
        self.device = device
        self.slabs = Slabs(device)
        self.numbers = itertools.count(1)
        self.lost = ""
        """Why the group can run nothing more, or empty."""
        self._metrics = metrics
        self._hang_seconds = settings.hang_seconds
        # Frames wait here for their place in a front end's memory. Pages that were never used take no memory.
        self.memory = SlotMemory(8 * max(1, settings.frontends) * settings.shared_memory_bytes)
        self._ranges: dict[int, tuple[int, int]] = {}
        """Number of a front end's memory -> its first and past-the-end address here."""
        self._ranks: list[_Rank] = []
        self._notes: deque[Command] = deque()
        self._sending = Lock()
        self._encoder = msgspec.msgpack.Encoder(enc_hook=self._refer)
        self._decoder: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
        self._running: _Running | None = None
        self._known: dict[object, float] = {}
        """Model and grid -> seconds of a step of a field when it last ran."""

    @classmethod
    async def start(cls, launch: Launch, metrics: Metrics) -> SlabGroup:
        """Start the other ranks and join them. Raises ValueError if a device or a rank cannot be used."""
        devices = [resolve_device(name) for name in devices_of(launch)]
        group = cls(launch, devices[0], metrics)
        # Like other shared memory here it has no name, so nothing stays behind.
        store = os.memfd_create("turbofno-store")
        path = f"/proc/{os.getpid()}/fd/{store}"
        try:
            for rank in range(1, len(devices)):
                group._ranks.append(await _started(launch, rank, path, len(devices)))
            for rank, _, connection in group._ranks:
                try:
                    await asyncio.to_thread(connection.recv_bytes)
                except (EOFError, OSError):
                    raise ValueError(
                        f"rank {rank} on {devices[rank]} did not start; the lines above say why"
                    ) from None
            await asyncio.to_thread(join, devices[0], path, rank=0, ranks=len(devices))
        except BaseException:
            await group.close()
            raise
        for rank in range(len(devices)):
            group._count(rank, 0.0, 0)
        group._note(Map(_OWN_MEMORY, group.memory.attachment()))
        logger.info(
            "%s has joined %d ranks on %s", launch.name, len(devices), ", ".join(group.devices)
        )
        return group

    async def watch(self) -> None:
        """Wait until a rank ends or a command takes too long; `lost` then says which."""
        ends = [asyncio.create_task(rank.process.wait()) for rank in self._ranks]
        while not self.lost:
            done, _ = await asyncio.wait(
                ends, timeout=HEARTBEAT_SECONDS, return_when=asyncio.FIRST_COMPLETED
            )
            if running := self._running:
                running.left -= HEARTBEAT_SECONDS
            if done:
                self.lost = ", ".join(
                    f"rank {number} on {self.devices[number]} ended with status {process.returncode}"
                    for number, process, _ in self._ranks
                    if process.returncode is not None
                )
            elif running and running.left <= 0:
                self.lost = f"a command did not end within {running.seconds:.0f} s"
        logger.error("the group of %s is lost: %s", self.name, self.lost)

    async def close(self) -> None:
        """End the other ranks."""
        for rank in self._ranks:
            if rank.process.returncode is None:
                rank.process.kill()
        for rank in self._ranks:
            await rank.process.wait()

    def map(self, attachment: Attach, memory: NDArray[np.uint8]) -> None:
        """Let commands refer to arrays in this memory, as long as `memory` or a view of it exists."""
        number, start = next(self.numbers), memory.ctypes.data
        self._ranges[number] = (start, start + memory.nbytes)
        weakref.finalize(memory, self._unmap, number).atexit = False
        self._note(Map(number, attachment))

    def model(self, path: Path, loaded: LoadedModel, precision: Precision) -> GroupModel:
        """See SlabGroup in runtime/slabs.py."""
        return GroupModel(self, path, loaded, precision)

    def load(self, command: Load) -> None:
        """Have the other ranks load a model. Raises ValueError if one cannot."""
        _, answers = self._exchange(command, lambda: None, _PATIENCE * START_SECONDS)
        for rank, answer in zip(self._ranks, answers, strict=True):
            if isinstance(answer, Failed):
                raise ValueError(f"rank {rank.number} cannot load it: {answer.error}")

    def run(
        self, command: Predict | Advance, own: Callable[[], T], *, key: object, field_steps: int
    ) -> list[T]:
        """Run a command on all ranks; returns their values.

        It may take ten times as long as the last command with this `key`, and `hang_seconds` more; the first with a
        `key` a minute and 10 s for each field and step. An error of the same type on all ranks is raised as it is.

        Raises:
            DeviceLost: a rank is gone, or only some failed, so that they do not agree any more.
        """
        begin, usual = 0.0, self._known.get(key)
        if usual is None:
            begin, usual = START_SECONDS, _GUESSED_SECONDS
        limit = self._hang_seconds + begin + _PATIENCE * usual * field_steps
        began = time.perf_counter()
        mine, answers = self._exchange(command, own, limit)
        seconds = time.perf_counter() - began
        failed = [answer.error for answer in answers if isinstance(answer, Failed)]
        if isinstance(mine, Exception):
            same = f"{type(mine).__name__}:"
            if all(isinstance(a, Failed) and a.error.startswith(same) for a in answers):
                raise mine
            raise self._lose(f"{type(mine).__name__} on rank 0 only") from mine
        if failed:
            raise self._lose(failed[0])
        if len(self._known) == _MAX_KNOWN:
            self._known.clear()
        self._known[key] = seconds / field_steps
        self._count(0, seconds, self.slabs.memory_bytes())
        values = [mine]
        for rank, answer in zip(self._ranks, answers, strict=True):
            assert isinstance(answer, Done)
            self._count(rank.number, answer.seconds, answer.memory_bytes)
            values.append(answer.value)
        return values

    def drop(self, note: Unload | Forget | Clear) -> None:
        """Drop a model or state on all ranks, or its graphs; on any thread, also in garbage collection."""
        match note:
            case Unload():
                self.slabs.remove(note.model)
            case Forget():
                self.slabs.forget(note.state)
            case Clear():
                self.slabs.clear(note.model)
        self._note(note)

    def shares(self, array: Fields) -> bool:
        """True if all ranks have this array."""
        return self._place(array) is not None

    def shared(self, array: Fields) -> Fields:
        """The array, or a copy, in memory that all ranks have."""
        if array.flags.carray and array.dtype == np.float32 and self.shares(array):
            return array
        copy = self.memory.array(array.shape)
        np.copyto(copy, array)
        return copy

    def _exchange(
        self, command: Command, own: Callable[[], T], seconds: float
    ) -> tuple[T | Exception, list[Answer]]:
        """The value or error of this rank, and the answers of the others."""
        self._running = _Running(seconds)
        mine: T | Exception
        try:
            with self._sending:
                self._send_notes()
                self._send(command)
            try:
                mine = own()
            except Exception as error:
                mine = error
                # The others fail too, or wait for this rank in vain.
                self._running.left = min(self._running.left, self._hang_seconds)
            return mine, [
                self._decoder.decode(rank.connection.recv_bytes()) for rank in self._ranks
            ]
        except (EOFError, OSError) as error:
            raise self._lose("a rank ended") from error
        finally:
            self._running = None
            self._flush()

    def _lose(self, why: str) -> DeviceLost:
        self.lost = self.lost or why
        return DeviceLost(
            "a device of this engine's group was lost, and the engine is started again; retry",
            retry_after=1.0,
        )

    def _note(self, note: Command) -> None:
        self._notes.append(note)
        self._flush()

    def _flush(self) -> None:
        """Send the notes, unless a thread is sending, which does it then: this may run in garbage collection."""
        while self._notes and self._sending.acquire(blocking=False):
            try:
                self._send_notes()
            except OSError:
                # That rank ended, as `watch` sees.
                self._notes.clear()
            finally:
                self._sending.release()

    def _send_notes(self) -> None:
        while self._notes:
            self._send(self._notes.popleft())

    def _send(self, command: Command) -> None:
        data = self._encoder.encode(command)
        for rank in self._ranks:
            rank.connection.send_bytes(data)

    def _unmap(self, number: int) -> None:
        del self._ranges[number]
        self._note(Unmap(number))

    def _place(self, array: Fields) -> tuple[int, int] | None:
        """The number of an array's memory and its offset there."""
        if self.memory.contains(array):
            return _OWN_MEMORY, self.memory.span(array)[0]
        address: int = array.__array_interface__["data"][0]
        for number, (start, stop) in self._ranges.copy().items():
            if start <= address < stop:
                return number, address - start
        return None

    def _refer(self, array: Any) -> tuple[int, int, tuple[int, ...]]:
        place = self._place(array)
        if place is None:
            raise ValueError("the array of a command is not in shared memory")
        return *place, array.shape

    def _count(self, rank: int, seconds: float, memory_bytes: int) -> None:
        labels = self.name, str(rank)
        self._metrics.rank_seconds.labels(*labels).inc(seconds)
        self._metrics.rank_memory.labels(*labels).set(memory_bytes)


class GroupModel:
    """Implements turbofno.service.runtime.slabs.SlabModel."""

    def __init__(
        self, group: SlabGroup, path: Path, loaded: LoadedModel, precision: Precision
    ) -> None:
        self._group, self._path, self._precision = group, path, precision
        self._loaded, self._config = loaded, loaded.config
        self._number = next(group.numbers)
        self._excess = Excess(loaded.config.statistics, torch.device("cpu"))
        self._refusal = ""
        self._never = ""
        """Why no field is cut, whatever its grid, or empty."""
        if self._config.slabs is False:
            self._never = "its config.json says slabs: false"
        elif self._config.slabs is None and group.device.type == "cpu":
            self._never = "on CPUs only models are cut whose config.json says slabs: true"

    def load(self) -> None:
        if self._never:
            return
        group = self._group
        try:
            group.slabs.add(self._number, self._loaded, self._precision)
        except ChainRefused as refusal:
            self._refusal = str(refusal)
            return
        weakref.finalize(self, group.drop, Unload(self._number)).atexit = False
        group.load(Load(self._number, str(self._path), self._config.sha256, self._precision))

    def why_whole(self, grid: Sequence[int]) -> str:
        if self._never:
            return self._never
        if self._config.slabs is None:
            hidden = 4 * self._config.architecture.hidden_channels * math.prod(grid)
            memory = torch.cuda.get_device_properties(self._group.device).total_memory
            if hidden <= LARGE * memory:
                return (
                    f"a hidden field takes {hidden} bytes, under {LARGE:.3g} of the card's memory"
                )
        return self._refusal or self._group.slabs.network(self._number).refusal(tuple(grid)) or ""

    def predict(self, parts: Sequence[Fields], output_buffers: Sequence[Fields]) -> ModelOutput:
        started = time.perf_counter()
        group, network = self._group, self._group.slabs.network(self._number)
        grid = parts[0].shape[2:]
        inputs = [group.shared(part) for part in parts]
        shape = (self._config.architecture.out_channels, *network.out_size(grid))
        outputs, whole = list(output_buffers), None
        expected = [(len(part), *shape) for part in parts]
        if [out.shape for out in outputs] != expected or not all(map(group.shares, outputs)):
            whole = group.memory.array((sum(map(len, parts)), *shape))
            outputs = np.split(whole, np.cumsum([len(part) for part in parts])[:-1])
        gathered = time.perf_counter()
        totals = group.run(
            Predict(self._number, inputs, outputs),
            lambda: group.slabs.predict(self._number, inputs, outputs),
            key=(self._number, grid),
            field_steps=sum(map(len, parts)),
        )
        seconds = time.perf_counter() - gathered
        ran = Ran(network.backend, network.precision, "slabs")
        return ModelOutput(whole, ran, gathered - started, seconds, total=sum(totals))

    def advance(
        self, states: Sequence[State], wanted: Sequence[Sequence[int]], *, steps: int
    ) -> Turn:
        group = self._group
        starts, news, frames = [], [], []
        for state, steps_wanted in zip(states, wanted, strict=True):
            assert not isinstance(state, torch.Tensor)
            if isinstance(state, SlabState):
                grid = state.grid
                starts.append(Start(None, state.number, state.part.start, state.part.stop))
            else:
                grid = state.shape[2:]
                starts.append(Start(group.shared(state)))
            new = SlabState(next(group.numbers), grid, range(len(state)))
            weakref.finalize(new, group.drop, Forget(new.number)).atexit = False
            news.append(new)
            shape = (len(state), self._config.architecture.out_channels, *grid)
            frames.append({step: group.memory.array(shape) for step in steps_wanted})
        targets = [new.number for new in news]
        energies = group.run(
            Advance(self._number, starts, targets, frames, steps),
            lambda: group.slabs.advance(self._number, starts, targets, frames, steps),
            key=(self._number, news[0].grid),
            field_steps=steps * sum(map(len, states)),
        )
        # Of each rollout the sum over the ranks.
        sums = [torch.tensor(of_ranks).sum(0) for of_ranks in zip(*energies, strict=True)]
        return Turn(
            states=news,
            frames=frames,
            excess=[self._excess.of(energy).numpy() for energy in sums],
            trust=[{} for _ in states],
        )

    def clear(self) -> None:
        self._group.drop(Clear(self._number))


async def _started(launch: Launch, rank: int, store: str, ranks: int) -> _Rank:
    """Start the process of a rank, and send its first command."""
    ours, theirs = socket.socketpair()
    with theirs:
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "turbofno.service.processes.slab_follower",
            f"{launch.name}-rank-{rank}", str(theirs.fileno()),
            stdin=asyncio.subprocess.DEVNULL, pass_fds=[theirs.fileno()],
        )  # fmt: skip
    connection = Connection(ours.detach())
    settings = launch.settings.model_dump(mode="json") | {"device": devices_of(launch)[rank]}
    name = f"{launch.name}-rank-{rank}"
    connection.send_bytes(
        msgspec.msgpack.encode(Join(os.getpid(), name, rank, ranks, store, settings))
    )
    return _Rank(rank, process, connection)
