"""A child process's link to its supervisor: heartbeats, and metrics."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Sequence

from prometheus_client import CollectorRegistry

from turbofno.service.errors import Unavailable
from turbofno.service.processes.channel import Channel
from turbofno.service.processes.launch import Launch
from turbofno.service.processes.messages import Call, Engines, Heartbeat, Message, Peer, Returned
from turbofno.service.processes.metrics_sum import families

HEARTBEAT_SECONDS = 0.25
SCRAPE_SECONDS = 2.0


class LivenessPipe:
    """Sends heartbeats while the event loop runs, and metrics on request."""

    def __init__(
        self,
        launch: Launch,
        registry: CollectorRegistry,
        *,
        make_heartbeat: Callable[[], Heartbeat],
        on_engines: Callable[[Sequence[Peer]], None] = lambda _: None,
    ) -> None:
        """`on_engines` is called with the live engines when they change or a front end starts, for a front end."""
        self._registry = registry
        self._make_heartbeat = make_heartbeat
        self._on_engines = on_engines
        self._numbers = itertools.count()
        self._scrapes: dict[int, asyncio.Future[bytes]] = {}
        self._answers: set[asyncio.Task[None]] = set()
        self._channel = Channel(self._on_messages).connect(launch.endpoint, launch.identity)
        self._heartbeats = asyncio.create_task(self._send_heartbeats())

    async def scrape(self) -> bytes:
        """The merged metrics of all processes. Raises Unavailable if the supervisor does not answer."""
        number = next(self._numbers)
        future = self._scrapes[number] = asyncio.get_running_loop().create_future()
        self._channel.send(Call(number, "metrics"))
        try:
            async with asyncio.timeout(2 * SCRAPE_SECONDS):
                return await future
        except TimeoutError:
            raise Unavailable("the supervisor does not answer; retry", retry_after=1.0) from None
        finally:
            del self._scrapes[number]

    def send_heartbeat(self) -> None:
        self._channel.send(self._make_heartbeat())
        self._channel.flush()

    def close(self) -> None:
        for task in (self._heartbeats, *self._answers):
            task.cancel()
        self._channel.close()

    async def _send_heartbeats(self) -> None:
        while True:
            self.send_heartbeat()
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _send_metrics(self, number: int) -> None:
        self._channel.send(Returned(number, await families(self._registry)))

    def _on_messages(self, _: bytes, messages: list[Message]) -> None:
        for message in messages:
            match message:
                case Call():
                    answer = asyncio.create_task(self._send_metrics(message.id))
                    self._answers.add(answer)
                    answer.add_done_callback(self._answers.discard)
                case Returned():
                    future = self._scrapes.get(message.id)
                    if future is not None and not future.done():
                        future.set_result(message.value)
                case Engines():
                    self._on_engines(message.peers)
