"""A front-end process: the HTTP application, with engines in other processes."""

from __future__ import annotations

from turbofno.service.app import create_app
from turbofno.service.banner import greet
from turbofno.service.metrics import Metrics
from turbofno.service.processes.launch import Launch
from turbofno.service.processes.liveness import LivenessPipe
from turbofno.service.processes.messages import Heartbeat
from turbofno.service.processes.port import bind
from turbofno.service.processes.remote_engine import RemoteEngine
from turbofno.service.server import DrainingServer
from turbofno.service.shared_sums import SharedSums


async def run(launch: Launch) -> int:
    """Serve HTTP until SIGTERM. Returns the exit status: 1 if the drain was cut short."""
    settings = launch.settings
    metrics = Metrics()
    engine = RemoteEngine(launch.identity, settings, metrics)
    pipe = LivenessPipe(
        launch, metrics.registry, make_heartbeat=Heartbeat, on_engines=engine.set_engines
    )
    try:
        app = create_app(
            settings,
            engine=engine,
            metrics=metrics,
            slots=engine.queue,
            sums=SharedSums(settings, launch.sums, launch.index),
            scrape=pipe.scrape,
            meet=engine.meet,
        )
        server = DrainingServer(app, greet if launch.banner else None, lambda: False)
        await server.serve(sockets=[bind(settings, shared=True)])
    finally:
        # Before the first heartbeat, if the settings are wrong: the supervisor starts again what has been up.
        pipe.close()
    return 1 if server.force_exit else 0
