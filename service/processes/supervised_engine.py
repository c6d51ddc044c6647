"""Engine processes with their supervisor in the process of the only front end, for an application that Ray Serve runs."""

from __future__ import annotations

import asyncio

from turbofno.service.metrics import Metrics
from turbofno.service.processes.metrics_sum import families
from turbofno.service.processes.remote_engine import RemoteEngine
from turbofno.service.processes.start import engine_settings
from turbofno.service.processes.supervisor import OWN_FRONT_END, Supervisor
from turbofno.service.settings import Settings


class SupervisedEngine(RemoteEngine):
    """Starts the engine processes of the settings, keeps them running, and ends them when it is closed.

    They are killed when the tasks of the event loop are cancelled, as `asyncio.run` does in the end, or the process ends.
    """

    def __init__(self, settings: Settings, metrics: Metrics) -> None:
        super().__init__(OWN_FRONT_END, settings, metrics)
        self._metrics = metrics
        self._supervisor = Supervisor(
            settings, engines=engine_settings(settings), frontends=0, on_engines=self.set_engines
        )
        self._running: asyncio.Task[int] | None = None

    def start(self) -> None:
        if not self._closed:
            self._running = asyncio.create_task(self._supervisor.run())

    async def close(self, *, within: float) -> None:
        await super().close(within=within)
        if self._running is not None:
            self._supervisor.stop()
            # Cancelling this must not cancel it.
            await asyncio.wait((self._running,))

    async def scrape(self) -> bytes:
        """The merged metrics of this process and of the engines."""
        return await self._supervisor.metrics(await families(self._metrics.registry))

    @property
    def failure(self) -> str:
        """The reason why an engine cannot be kept running, or empty."""
        running = self._running
        if running is not None and running.done() and (error := running.exception()) is not None:
            return f"the engines cannot be supervised: {error}"
        return self._supervisor.failure
