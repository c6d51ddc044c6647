"""Starts front ends and engines, watches over them, starts again what dies or hangs, and ends them in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from turbofno.service.processes.channel import Channel, new_endpoint
from turbofno.service.processes.liveness import EX_CONFIG, HEARTBEAT_SECONDS, SCRAPE_SECONDS, Launch
from turbofno.service.processes.messages import (
    Engines,
    Heartbeat,
    Message,
    Peer,
    PeerLost,
    Scrape,
    Scraped,
)
from turbofno.service.processes.metrics_sum import MetricsSum
from turbofno.service.system import on_hangup

if TYPE_CHECKING:
    from turbofno.service.engine.interface import RecoveryRecord
    from turbofno.service.settings import Settings

    Role = Literal["engine", "frontend"]

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""How long a process may take until its first sign of life: importing PyTorch, opening a GPU."""
KILL_SECONDS = 5.0
"""How long an end may take beyond the drain time."""
_QUICK_SECONDS = 10.0
"""What dies younger than this is started again after a pause, twice as long each time."""
_PAUSES = tuple(0.1 * 2**n for n in range(8))


@dataclass(slots=True)
class _Running:
    """A process that was started and has not been seen to end."""

    launch: Launch
    process: asyncio.subprocess.Process
    last_sign: float
    heartbeat: Heartbeat | None = None


@dataclass(slots=True)
class _Child:
    """A place for one process after another."""

    role: Role
    index: int
    settings: Settings
    running: _Running | None = None
    generation: int = 0
    ever_up: bool = False
    models: tuple[RecoveryRecord, ...] = ()
    """What the engine here told of its models last: its successor is to serve the same, and no other."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


class Supervisor:
    """One run of the service as several processes."""

    def __init__(
        self, settings: Settings, *, engines: list[Settings], frontends: list[Settings], greet: bool
    ) -> None:
        """One engine and one front end for each of these settings; `settings` are those of the whole."""
        self._settings = settings
        self._greet = greet
        self._children = [
            *(_Child("engine", index, one) for index, one in enumerate(engines)),
            *(_Child("frontend", index, one) for index, one in enumerate(frontends)),
        ]
        self._endpoint = new_endpoint()
        self._metrics = MetricsSum()
        self._numbers = itertools.count()
        self._scrapes: dict[tuple[bytes, int], asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._signals = 0
        self._stop = asyncio.Event()
        self._failed = False
        self._terminal_is_gone = on_hangup()

    async def run(self) -> int:
        """Until a signal, or until a process cannot start. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._channel = Channel.listen(self._endpoint, self._receive)
        keepers = [asyncio.create_task(self._keep(seat)) for seat in self._children]
        await self._stop.wait()
        await self._end("frontend", self._settings.drain_seconds + KILL_SECONDS)
        await self._end("engine", KILL_SECONDS)
        await asyncio.gather(*keepers)
        self._channel.close()
        return 1 if self._failed or self._signals > 1 else 0

    async def _keep(self, seat: _Child) -> None:
        """Have a process in this seat until the end."""
        quick_deaths = 0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                status = await self._live(seat)
            except OSError as error:
                logger.error("%s cannot be started: %s", seat.name, error)
                status = -1
            if self._stop.is_set():
                return
            if status == EX_CONFIG and not seat.ever_up:
                self._failed = True
                self._stop.set()
                return
            logger.error("%s ended with status %d; starting it again", seat.name, status)
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_SECONDS else 0
            if quick_deaths:
                pause = _PAUSES[min(quick_deaths, len(_PAUSES)) - 1]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)

    async def _live(self, seat: _Child) -> int:
        """One process from start to end; its exit status."""
        seat.generation += 1
        launch = Launch(
            seat.role,
            seat.index,
            seat.generation,
            os.getpid(),
            self._endpoint,
            seat.settings,
            seat.models,
            greet=self._greet and (seat.name, seat.generation) == ("frontend-0", 1),
        )
        # A process group of its own: Ctrl-C is for the supervisor, which ends the others in order.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "turbofno.service.processes", seat.name,
            stdin=asyncio.subprocess.PIPE, process_group=0,
        )  # fmt: skip
        if self._stop.is_set():
            process.kill()
        running = seat.running = _Running(launch, process, time.monotonic())
        watching = asyncio.create_task(self._watch(running))
        await process.communicate(launch.dump())
        watching.cancel()
        seat.running = None
        self._bury(seat.role, launch.identity)
        assert process.returncode is not None
        return process.returncode

    async def _watch(self, running: _Running) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(HEARTBEAT_SECONDS)
            late = time.monotonic() - before - HEARTBEAT_SECONDS
            if late > HEARTBEAT_SECONDS:
                # This process stood still itself, and so may all have done: a container that was paused.
                running.last_sign += late
            patience = self._settings.hang_seconds if running.heartbeat else START_SECONDS
            silent = time.monotonic() - running.last_sign
            if silent > patience:
                logger.error(
                    "%s gave no sign of life for %.1f s; killing it", running.launch.name, silent
                )
                running.process.kill()
                return

    async def _end(self, role: Role, seconds: float) -> None:
        """Ask all processes of a role to end; kill those that have not after that time."""
        all_running = self._running(role)
        for running in all_running:
            running.process.terminate()
        ends = [asyncio.create_task(running.process.wait()) for running in all_running]
        if not ends:
            return
        await asyncio.wait(ends, timeout=seconds)
        for running in all_running:
            if running.process.returncode is None:
                logger.error("%s did not end in time; killing it", running.launch.name)
                running.process.kill()
        await asyncio.gather(*ends)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            logger.info("draining: no new work, finishing what was accepted")
            self._stop.set()
            return
        for running in self._running("frontend"):
            running.process.terminate()

    def _on_hangup(self) -> None:
        if self._terminal_is_gone():
            self._on_signal()
            return
        for running in self._running("frontend"):
            running.process.send_signal(signal.SIGHUP)

    def _running(self, role: Role | None = None, *, up: bool = False) -> list[_Running]:
        """The processes of a role, or only those that gave a sign of life."""
        seats = (seat for seat in self._children if role in (None, seat.role))
        found = [seat.running for seat in seats if seat.running is not None]
        return [running for running in found if running.heartbeat is not None or not up]

    def _bury(self, role: Role, identity: bytes) -> None:
        self._metrics.retire(identity)
        for (asked, _), scrape in self._scrapes.items():
            if asked == identity and not scrape.done():
                scrape.set_result(None)
        if role == "engine":
            self._introduce_engines(self._running("frontend", up=True))
        else:
            for engine in self._running("engine", up=True):
                self._channel.send(PeerLost(identity), engine.launch.identity)

    def _introduce_engines(self, front_ends: list[_Running]) -> None:
        peers = tuple(
            Peer(engine.launch.identity, engine.heartbeat.endpoint)
            for engine in self._running("engine", up=True)
            if engine.heartbeat is not None
        )
        for front_end in front_ends:
            self._channel.send(Engines(peers), front_end.launch.identity)

    def _receive(self, sender: bytes, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Heartbeat():
                    self._on_heartbeat(sender, message)
                case Scrape():
                    task = asyncio.create_task(self._scrape(sender, message))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case Scraped():
                    scrape = self._scrapes.get((sender, message.id))
                    if scrape is not None and not scrape.done():
                        self._metrics.note(sender, message.text)
                        scrape.set_result(None)

    def _on_heartbeat(self, sender: bytes, heartbeat: Heartbeat) -> None:
        for seat in self._children:
            running = seat.running
            if running is None or running.launch.identity != sender:
                continue
            first = running.heartbeat is None
            running.heartbeat, running.last_sign = heartbeat, time.monotonic()
            seat.ever_up = True
            seat.models = heartbeat.models
            if first and seat.role == "engine":
                self._introduce_engines(self._running("frontend", up=True))
            elif first:
                self._introduce_engines([running])

    async def _scrape(self, sender: bytes, asked: Scrape) -> None:
        """Ask all processes; one that does not answer in time counts as it was."""
        number = next(self._numbers)
        loop = asyncio.get_running_loop()
        identities = [running.launch.identity for running in self._running(up=True)]
        for identity in identities:
            self._scrapes[identity, number] = loop.create_future()
            self._channel.send(Scrape(number), identity)
        await asyncio.wait(
            [self._scrapes[identity, number] for identity in identities], timeout=SCRAPE_SECONDS
        )
        for identity in identities:
            del self._scrapes[identity, number]
        self._channel.send(Scraped(asked.id, self._metrics.text()), sender)
