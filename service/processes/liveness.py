"""A child process's link to its supervisor: launch parameters, heartbeats, metrics, and death with its parent."""

from __future__ import annotations

import asyncio
import ctypes
import itertools
import json
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Self

from prometheus_client import CollectorRegistry, generate_latest

from turbofno.service.engine.interface import RecoveryRecord
from turbofno.service.errors import Unavailable
from turbofno.service.processes.channel import Channel
from turbofno.service.processes.messages import Heartbeat, Message, Scrape, Scraped
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable

HEARTBEAT_SECONDS = 0.25
SCRAPE_SECONDS = 2.0
EX_CONFIG = 78
"""Exit status for a configuration error, as in sysexits.h: a restart would not help."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """Launch parameters that a child reads from its standard input."""

    role: Literal["frontend", "engine"]
    index: int
    generation: int
    """Counts the processes with this role and index, from 1."""
    supervisor: int
    """The supervisor's process id."""
    endpoint: str
    """The supervisor's address."""
    settings: Settings
    recovery: tuple[RecoveryRecord, ...] = ()
    """Models of the dead engine that this one replaces."""
    banner: bool = False
    """Print usage examples once the models are ready."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def identity(self) -> bytes:
        """Sender of this process's messages; never used by another process."""
        return f"{self.name}.{self.generation}".encode()

    def dump(self) -> bytes:
        """Serialise for `load`."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values | {"settings": self.settings.model_dump(mode="json")}).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        values = json.loads(data)
        values["settings"] = Settings(**values["settings"])
        values["recovery"] = tuple(RecoveryRecord(*one) for one in values["recovery"])
        return cls(**values)


def die_with_parent(supervisor: int) -> None:
    """Have the kernel kill this process when its supervisor dies."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)


class LivenessPipe:
    """Sends heartbeats while the event loop runs, and metrics on request."""

    def __init__(
        self,
        launch: Launch,
        registry: CollectorRegistry,
        *,
        make_heartbeat: Callable[[], Heartbeat],
        receive: Callable[[Message], None],
    ) -> None:
        self._registry = registry
        self._make_heartbeat = make_heartbeat
        self._receive = receive
        self._numbers = itertools.count()
        self._scrapes: dict[int, asyncio.Future[bytes]] = {}
        self._channel = Channel.connect(launch.endpoint, launch.identity, self._on_messages)
        self._heartbeats = asyncio.create_task(self._send_heartbeats())

    async def scrape(self) -> bytes:
        """The merged metrics of all processes. Raises Unavailable if the supervisor does not answer."""
        number = next(self._numbers)
        future = self._scrapes[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Scrape(number))
        try:
            async with asyncio.timeout(2 * SCRAPE_SECONDS):
                return await future
        except TimeoutError:
            raise Unavailable("the supervisor does not answer; retry", retry_after=1.0) from None
        finally:
            del self._scrapes[number]

    def send_heartbeat(self) -> None:
        """Send a heartbeat at once."""
        self._channel.send(self._make_heartbeat())
        self._channel.flush()

    def close(self) -> None:
        self._heartbeats.cancel()
        self._channel.close()

    async def _send_heartbeats(self) -> None:
        while True:
            self.send_heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    def _on_messages(self, _: bytes, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Scrape():
                    self._channel.send(Scraped(message.id, generate_latest(self._registry)))
                case Scraped():
                    future = self._scrapes.get(message.id)
                    if future is not None and not future.done():
                        future.set_result(message.text)
                case _:
                    self._receive(message)
