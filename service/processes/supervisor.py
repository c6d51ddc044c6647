"""Starts front ends and engines, restarts those that die or hang, and stops them in order."""

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
from turbofno.service.processes.launch import EX_CONFIG, Launch
from turbofno.service.processes.liveness import HEARTBEAT_SECONDS, SCRAPE_SECONDS
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
"""Most time until the first heartbeat, which includes importing PyTorch and opening a GPU."""
KILL_SECONDS = 5.0
"""Most time to stop after the drain time."""
_QUICK_SECONDS = 10.0
"""A process that dies earlier is restarted after a pause, twice as long each time."""
_PAUSES = tuple(0.1 * 2**n for n in range(8))


@dataclass(slots=True)
class _Running:
    """A running child process."""

    launch: Launch
    process: asyncio.subprocess.Process
    last_heartbeat: float
    heartbeat: Heartbeat | None = None


@dataclass(slots=True)
class _Child:
    """A child to keep running: its settings, and its current process."""

    role: Role
    index: int
    settings: Settings
    running: _Running | None = None
    generation: int = 0
    was_up: bool = False
    models: tuple[RecoveryRecord, ...] = ()
    """An engine's models as of its last heartbeat; its successor serves the same."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"


class Supervisor:
    """One run of the service as several processes."""

    def __init__(
        self,
        settings: Settings,
        *,
        engines: list[Settings],
        frontends: list[Settings],
        banner: bool,
    ) -> None:
        """`engines` and `frontends` have settings for each child; `settings` are those of the service."""
        self._settings = settings
        self._banner = banner
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
        """Run until a signal or a configuration error of a child. Returns the exit status."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal)
        loop.add_signal_handler(signal.SIGHUP, self._on_hangup)
        self._channel = Channel.listen(self._endpoint, self._receive)
        tasks = [asyncio.create_task(self._supervise(child)) for child in self._children]
        await self._stop.wait()
        await self._terminate("frontend", self._settings.drain_seconds + KILL_SECONDS)
        await self._terminate("engine", KILL_SECONDS)
        await asyncio.gather(*tasks)
        self._channel.close()
        return 1 if self._failed or self._signals > 1 else 0

    async def _supervise(self, child: _Child) -> None:
        """Keep a child running until the service stops."""
        quick_deaths = 0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                status = await self._run_once(child)
            except OSError as error:
                logger.error("%s cannot be started: %s", child.name, error)
                status = -1
            if self._stop.is_set():
                return
            if status == EX_CONFIG and not child.was_up:
                self._failed = True
                self._stop.set()
                return
            logger.error("%s ended with status %d; starting it again", child.name, status)
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_SECONDS else 0
            if quick_deaths:
                pause = _PAUSES[min(quick_deaths, len(_PAUSES)) - 1]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)

    async def _run_once(self, child: _Child) -> int:
        """Start a process and wait for its end. Returns its exit status."""
        child.generation += 1
        launch = Launch(
            child.role,
            child.index,
            child.generation,
            os.getpid(),
            self._endpoint,
            child.settings,
            child.models,
            banner=self._banner and (child.name, child.generation) == ("frontend-0", 1),
        )
        # Its own process group: Ctrl-C must reach only the supervisor, which stops the others in order.
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "turbofno.service.processes", child.name,
            stdin=asyncio.subprocess.PIPE, process_group=0,
        )  # fmt: skip
        if self._stop.is_set():
            process.kill()
        running = child.running = _Running(launch, process, time.monotonic())
        watching = asyncio.create_task(self._kill_if_silent(running))
        await process.communicate(launch.dump())
        watching.cancel()
        child.running = None
        self._on_exit(child.role, launch.identity)
        assert process.returncode is not None
        return process.returncode

    async def _kill_if_silent(self, running: _Running) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(HEARTBEAT_SECONDS)
            late = time.monotonic() - before - HEARTBEAT_SECONDS
            if late > HEARTBEAT_SECONDS:
                # The supervisor was stopped itself, perhaps with all others (a paused container).
                running.last_heartbeat += late
            patience = self._settings.hang_seconds if running.heartbeat else START_SECONDS
            silent = time.monotonic() - running.last_heartbeat
            if silent > patience:
                logger.error(
                    "%s sent no heartbeat for %.1f s; killing it", running.launch.name, silent
                )
                running.process.kill()
                return

    async def _terminate(self, role: Role, seconds: float) -> None:
        """Terminate all processes of a role; kill those still running after that time."""
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
        """The running processes of a role; with `up` only those that sent a heartbeat."""
        children = (child for child in self._children if role in (None, child.role))
        found = [child.running for child in children if child.running is not None]
        return [running for running in found if running.heartbeat is not None or not up]

    def _on_exit(self, role: Role, identity: bytes) -> None:
        self._metrics.retire(identity)
        for (asked, _), scrape in self._scrapes.items():
            if asked == identity and not scrape.done():
                scrape.set_result(None)
        if role == "engine":
            self._send_engines(self._running("frontend", up=True))
        else:
            for engine in self._running("engine", up=True):
                self._channel.send(PeerLost(identity), engine.launch.identity)

    def _send_engines(self, front_ends: list[_Running]) -> None:
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
                        self._metrics.update(sender, message.text)
                        scrape.set_result(None)

    def _on_heartbeat(self, sender: bytes, heartbeat: Heartbeat) -> None:
        for child in self._children:
            running = child.running
            if running is None or running.launch.identity != sender:
                continue
            first = running.heartbeat is None
            running.heartbeat, running.last_heartbeat = heartbeat, time.monotonic()
            child.was_up = True
            child.models = heartbeat.models
            if first and child.role == "engine":
                self._send_engines(self._running("frontend", up=True))
            elif first:
                self._send_engines([running])

    async def _scrape(self, sender: bytes, asked: Scrape) -> None:
        """Collect and send the metrics of all processes; the last ones of those that do not answer in time."""
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
