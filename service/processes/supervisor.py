"""Starts front ends and engines, restarts those that die or hang, and stops them in order."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from turbofno.service.processes import messages
from turbofno.service.processes.channel import Channel, new_endpoint
from turbofno.service.processes.child_process import ChildProcess
from turbofno.service.processes.fork_server import START_SECONDS, ForkServer
from turbofno.service.processes.launch import Launch
from turbofno.service.processes.liveness import HEARTBEAT_SECONDS, SCRAPE_SECONDS
from turbofno.service.processes.metrics_sum import Families, MetricsSum
from turbofno.service.settings import Settings
from turbofno.service.shared_sums import SumsMemory
from turbofno.service.system import on_hangup

logger = logging.getLogger(__name__)

OWN_FRONT_END = b"frontend-0.1"
"""Identity of a front end in the supervisor's process."""
KILL_SECONDS = 5.0
"""Most time to stop after the drain time."""
_QUICK_SECONDS = 10.0
"""A process that dies earlier is restarted after a pause, twice as long each time."""
_PAUSES = tuple(0.1 * 2**n for n in range(8))
_FAILED_STARTS = 3
"""Consecutive processes of a child that sent no heartbeat, from which on it is a failure."""


@dataclass(slots=True, eq=False)
class _Child:
    """A child to keep running."""

    launch: Launch
    """Of the present process, or the next one before the first."""
    process: ChildProcess | None = None
    heartbeat: messages.Heartbeat | None = None
    """The last one of the process."""
    last_heartbeat: float = 0.0
    was_up: bool = False
    failed_starts: int = 0
    """Number of its last processes that sent no heartbeat."""

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.returncode is None

    def send(self, number: signal.Signals) -> None:
        """Send a signal to the process, which has been started."""
        assert self.process is not None
        self.process.send_signal(number)


class Supervisor:
    """Keeps the processes of a service running, until it is stopped."""

    def __init__(
        self,
        settings: Settings,
        *,
        engines: list[Settings],
        frontends: int,
        banner: bool = False,
        on_engines: Callable[[Sequence[messages.Peer]], None] = lambda _: None,
        fork_server: ForkServer | None = None,
    ) -> None:
        """`settings` are those of the service and of its front ends, `engines` those of each engine.

        `on_engines` is called with the live engines when they change or a front end starts, for a front end in this process.
        """
        self._settings = settings
        self._endpoint = new_endpoint()
        self._fork_server = fork_server or ForkServer()
        first = partial(Launch, generation=0, parent=os.getpid(), endpoint=self._endpoint)
        self._sums = SumsMemory(settings)
        sums = self._sums.file
        self._children = [
            *(
                _Child(first("frontend", i, settings=settings, banner=banner and i == 0, sums=sums))
                for i in range(frontends)
            ),
            *(_Child(first("engine", i, settings=one)) for i, one in enumerate(engines)),
        ]
        self._metrics = MetricsSum()
        self._numbers = itertools.count()
        self._scrapes: dict[tuple[bytes, int], asyncio.Future[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._signals = 0
        self._stop = asyncio.Event()
        self._failed = ""
        self._on_engines = on_engines

    def stop(self) -> None:
        self._stop.set()

    @property
    def failure(self) -> str:
        """The reason why a process cannot be kept running, or empty."""
        if self._failed:
            return self._failed
        for child in self._children:
            if child.failed_starts >= _FAILED_STARTS:
                return f"{child.launch.name} failed to start {child.failed_starts} times in a row"
        return ""

    async def run(self, *, signals: bool = False) -> int:
        """Run until it is stopped or a child has a configuration error. Returns the exit status. Cancelling it kills all.

        With `signals`, on the main thread, the first SIGTERM or SIGINT drains, the second aborts, SIGHUP is passed on.
        """
        if signals:
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self._on_signal)
            loop.add_signal_handler(signal.SIGHUP, self._on_hangup, on_hangup())
        self._channel = Channel(self._receive).listen(self._endpoint)
        tasks = [asyncio.create_task(self._supervise(child)) for child in self._children]
        for task in tasks:
            task.add_done_callback(self._on_supervised)
        try:
            await self._stop.wait()
        except asyncio.CancelledError:
            for task in tasks:
                task.cancel()
            self._fork_server.kill()
            for child in self._running("frontend", "engine"):
                child.send(signal.SIGKILL)
            self._channel.close()
            raise
        await self._fork_server.close()
        await self._terminate("frontend", self._settings.drain_seconds + KILL_SECONDS)
        await self._terminate("engine", KILL_SECONDS)
        await asyncio.wait(tasks)
        self._channel.close()
        return 1 if self._failed or self._signals > 1 else 0

    def _on_supervised(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.critical("a process is supervised no more", exc_info=error)
            self._failed = f"{type(error).__name__}: {error}"
            self._stop.set()

    async def _supervise(self, child: _Child) -> None:
        """Keep a child running until the service stops."""
        quick_deaths = 0
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                status = await self._run_once(child)
                outcome = f"ended with status {status}"
            except OSError as error:
                status, outcome = -1, f"cannot be started: {error}"
            if self._stop.is_set():
                return
            child.failed_starts = 0 if child.heartbeat else child.failed_starts + 1
            if status == os.EX_CONFIG and not child.was_up:
                # A restart would not help.
                self._failed = f"{child.launch.name} cannot start: its log says why"
                self._stop.set()
                return
            logger.error("%s %s; starting it again", child.launch.name, outcome)
            quick_deaths = quick_deaths + 1 if time.monotonic() - started < _QUICK_SECONDS else 0
            if quick_deaths:
                pause = _PAUSES[min(quick_deaths, len(_PAUSES)) - 1]
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._stop.wait(), pause)

    async def _run_once(self, child: _Child) -> int:
        """Start a process and wait for its end. Returns its exit status."""
        old = child.launch
        launch = child.launch = replace(
            old,
            generation=old.generation + 1,
            recovery=old.recovery if child.heartbeat is None else child.heartbeat.models,
            banner=old.banner and not old.generation,
        )
        child.heartbeat = None
        process = child.process = await self._fork_server.start(launch)
        child.last_heartbeat = time.monotonic()
        if self._stop.is_set():
            process.kill()
        ended = asyncio.create_task(process.wait())
        while not ended.done():
            before = time.monotonic()
            await asyncio.wait((ended,), timeout=HEARTBEAT_SECONDS)
            late = time.monotonic() - before - HEARTBEAT_SECONDS
            if late > HEARTBEAT_SECONDS:
                # The supervisor was stopped itself, perhaps with all others (a paused container).
                child.last_heartbeat += late
            patience = self._settings.hang_seconds if child.heartbeat else START_SECONDS
            silent = time.monotonic() - child.last_heartbeat
            if silent > patience and process.returncode is None:
                logger.error("%s sent no heartbeat for %.1f s; killing it", launch.name, silent)
                process.kill()
                break
        status = await ended
        self._on_exit(launch)
        return status

    async def _terminate(self, role: str, seconds: float) -> None:
        """Terminate all processes of a role; kill those still running after that time."""
        ends = []
        for child in self._running(role):
            assert child.process is not None
            child.send(signal.SIGTERM)
            ends.append(asyncio.create_task(child.process.wait()))
        if not ends:
            return
        await asyncio.wait(ends, timeout=seconds)
        for child in self._running(role):
            logger.error("%s did not end in time; killing it", child.launch.name)
            child.send(signal.SIGKILL)
        await asyncio.gather(*ends)

    def _on_signal(self) -> None:
        self._signals += 1
        if self._signals == 1:
            logger.info("draining: no new work, finishing what was accepted")
            self._stop.set()
            return
        for child in self._running("frontend"):
            child.send(signal.SIGTERM)

    def _on_hangup(self, terminal_is_gone: Callable[[], bool]) -> None:
        if terminal_is_gone():
            self._on_signal()
            return
        for child in self._running("frontend"):
            child.send(signal.SIGHUP)

    def _running(self, *roles: str, up: bool = False) -> list[_Child]:
        """The children of these roles that run; with `up` only those that sent a heartbeat."""
        found = [one for one in self._children if one.running and one.launch.role in roles]
        return [one for one in found if one.heartbeat is not None or not up]

    def _on_exit(self, launch: Launch) -> None:
        self._metrics.retire(launch.identity)
        for (asked, _), scrape in self._scrapes.items():
            if asked == launch.identity and not scrape.done():
                scrape.set_result(None)
        if launch.role == "engine":
            self._send_engines()
        else:
            self._sums.forget(launch.index)

    def _send_engines(self) -> None:
        """Tell all front ends which engines live, also where nothing has changed for them."""
        peers = tuple(
            messages.Peer(engine.launch.identity, engine.heartbeat.endpoint)
            for engine in self._running("engine", up=True)
            if engine.heartbeat is not None
        )
        self._on_engines(peers)
        for front_end in self._running("frontend", up=True):
            self._channel.send(messages.Engines(peers), front_end.launch.identity)

    def _receive(self, sender: bytes, received: list[messages.Message]) -> None:
        for message in received:
            match message:
                case messages.Heartbeat():
                    self._on_heartbeat(sender, message)
                case messages.Call():
                    task = asyncio.create_task(self._send_metrics(sender, message.id))
                    self._tasks.add(task)
                    task.add_done_callback(self._tasks.discard)
                case messages.Returned():
                    scrape = self._scrapes.get((sender, message.id))
                    if scrape is not None and not scrape.done():
                        self._metrics.update(sender, message.value)
                        scrape.set_result(None)

    def _on_heartbeat(self, sender: bytes, heartbeat: messages.Heartbeat) -> None:
        for child in self._children:
            if child.launch.identity != sender:
                continue
            first = child.heartbeat is None and child.running
            child.heartbeat, child.last_heartbeat = heartbeat, time.monotonic()
            child.was_up = True
            if first:
                self._send_engines()

    async def _send_metrics(self, sender: bytes, asked: int) -> None:
        self._channel.send(messages.Returned(asked, await self.metrics()), sender)

    async def metrics(self, own: Families = ()) -> bytes:
        """The merged metrics of all processes; the last ones of those that do not answer in time.

        `own` are the metrics of a front end in this process.
        """
        if own:
            self._metrics.update(OWN_FRONT_END, own)
        number, loop = next(self._numbers), asyncio.get_running_loop()
        asked_now = self._running("engine", "frontend", up=True)
        scrapes = {(child.launch.identity, number): loop.create_future() for child in asked_now}
        self._scrapes |= scrapes
        for identity, _ in scrapes:
            self._channel.send(messages.Call(number, "metrics"), identity)
        if scrapes:
            await asyncio.wait(scrapes.values(), timeout=SCRAPE_SECONDS)
        for key in scrapes:
            del self._scrapes[key]
        return await self._metrics.text()
