"""What ties a process to its supervisor: how it was launched, its signs of life, its metrics, its end."""

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
"""Exit status of a process that cannot start as things stand; the number is that of sysexits.h."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class Launch:
    """What a supervisor tells a process that it starts, on its standard input."""

    role: Literal["frontend", "engine"]
    index: int
    generation: int
    """How many processes had this role and index before, plus one."""
    supervisor: int
    """Its process id."""
    endpoint: str
    """Where it listens."""
    settings: Settings
    recovery: tuple[RecoveryRecord, ...] = ()
    """The models of the engine that died in this place."""
    greet: bool = False
    """Whether to tell a person how to call the models, once they are ready."""

    @property
    def name(self) -> str:
        return f"{self.role}-{self.index}"

    @property
    def identity(self) -> bytes:
        """How this process signs its messages; no other ever does."""
        return f"{self.name}.{self.generation}".encode()

    def dump(self) -> bytes:
        """As `load` reads it."""
        values: dict[str, Any] = {name: getattr(self, name) for name in self.__slots__}
        return json.dumps(values | {"settings": self.settings.model_dump(mode="json")}).encode()

    @classmethod
    def load(cls, data: bytes) -> Self:
        values = json.loads(data)
        values["settings"] = Settings(**values["settings"])
        values["recovery"] = tuple(RecoveryRecord(*one) for one in values["recovery"])
        return cls(**values)


def die_with_parent(supervisor: int) -> None:
    """From now on the kernel kills this process when its supervisor is gone, however that ended."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)


class LivenessPipe:
    """Beats as long as the event loop turns, and hands metrics over."""

    def __init__(
        self,
        launch: Launch,
        registry: CollectorRegistry,
        *,
        sign: Callable[[], Heartbeat],
        receive: Callable[[Message], None],
    ) -> None:
        self._registry = registry
        self._sign = sign
        self._receive = receive
        self._numbers = itertools.count()
        self._scrapes: dict[int, asyncio.Future[bytes]] = {}
        self._channel = Channel.connect(launch.endpoint, launch.identity, self._on_messages)
        self._beating = asyncio.create_task(self._keep_beating())

    async def scrape(self) -> bytes:
        """The metrics of all processes together. Raises Unavailable if the supervisor does not give them."""
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

    def heartbeat(self) -> None:
        """Give a sign of life at once."""
        self._channel.send(self._sign())
        self._channel.flush()

    def close(self) -> None:
        self._beating.cancel()
        self._channel.close()

    async def _keep_beating(self) -> None:
        while True:
            self.heartbeat()
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
