"""A front-end process: the HTTP application over engines in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from service.app import create_app
from service.banner import greet
from service.metrics import Metrics
from service.processes.lifeline import Lifeline
from service.processes.memory import SlotMemory
from service.processes.messages import Beat, Engines, Message
from service.processes.port import bind
from service.processes.remote_engine import EngineQueue, RemoteEngine
from service.server import DrainingServer, server_config
from service.version import VERSION

if TYPE_CHECKING:
    from service.processes.lifeline import Launch


async def run(launch: Launch) -> int:
    """Serve HTTP until SIGTERM. Returns the exit status: 1 if the drain was cut short."""
    settings = launch.settings
    metrics = Metrics(version=VERSION)
    queue = EngineQueue(settings, metrics)
    memory = SlotMemory(settings.shared_memory_bytes)
    metrics.shared_memory.set_function(lambda: memory.used_bytes)
    engine = RemoteEngine(
        launch.identity, memory, queue, engines=len(settings.devices or (settings.device,))
    )

    def tell(message: Message) -> None:
        if isinstance(message, Engines):
            engine.meet(message.peers)

    line = Lifeline(launch, metrics.registry, sign=Beat, receive=tell)
    app = create_app(settings, engine=engine, metrics=metrics, slots=queue, scrape=line.scrape)
    config = server_config(app, settings)
    server = DrainingServer(
        config, app.state.context, greet if launch.greet else None, lambda: False
    )
    try:
        await server.serve(sockets=[bind(settings, shared=True)])
    finally:
        line.close()
    return 1 if server.force_exit else 0
