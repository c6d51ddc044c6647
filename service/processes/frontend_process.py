"""A front-end process: the HTTP application, with engines in other processes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from turbofno.service.app import create_app
from turbofno.service.banner import greet
from turbofno.service.metrics import Metrics
from turbofno.service.processes.joining import most_joined
from turbofno.service.processes.liveness import LivenessPipe
from turbofno.service.processes.memory import SlotMemory
from turbofno.service.processes.messages import Engines, Heartbeat, Message
from turbofno.service.processes.port import bind
from turbofno.service.processes.remote_engine import EngineQueue, RemoteEngine
from turbofno.service.server import DrainingServer, server_config
from turbofno.service.version import VERSION

if TYPE_CHECKING:
    from turbofno.service.processes.launch import Launch


async def run(launch: Launch) -> int:
    """Serve HTTP until SIGTERM. Returns the exit status: 1 if the drain was cut short."""
    settings = launch.settings
    metrics = Metrics(version=VERSION)
    queue = EngineQueue(settings, metrics)
    memory = SlotMemory(settings.shared_memory_bytes)
    metrics.shared_memory.set_function(lambda: memory.used_bytes)
    engine = RemoteEngine(
        launch.identity,
        memory,
        queue,
        engines=len(settings.devices or (settings.device,)),
        most_joined=most_joined(settings),
    )

    def receive(message: Message) -> None:
        if isinstance(message, Engines):
            engine.set_engines(message.peers)

    pipe = LivenessPipe(launch, metrics.registry, make_heartbeat=Heartbeat, receive=receive)
    app = create_app(settings, engine=engine, metrics=metrics, slots=queue, scrape=pipe.scrape)
    config = server_config(app, settings)
    server = DrainingServer(
        config, app.state.context, greet if launch.banner else None, lambda: False
    )
    try:
        await server.serve(sockets=[bind(settings, shared=True)])
    finally:
        pipe.close()
    return 1 if server.force_exit else 0
