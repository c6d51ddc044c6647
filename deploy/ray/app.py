"""The service as a Ray Serve deployment: each replica is the whole application with the engine in its process.

    serve run deploy/ray/cpu.yaml

Ray places and counts replicas, hands requests out and replaces what dies; batching, limits and answers are ours.
"""

from __future__ import annotations

import asyncio
import sys
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import ray
from ray import serve

from turbofno.service import logs
from turbofno.service.app import create_app
from turbofno.service.server import SWITCH_SECONDS
from turbofno.service.settings import Settings, env_name

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI
    from ray.serve import Application

    from turbofno.service.context import AppContext
    from turbofno.service.engine.interface import Engine

FULL_BATCHES = 4
"""Most requests in one replica, in full batches of one field each: one runs, one waits, the rest are read or written."""


def application(args: dict[str, Any]) -> Application:
    """The Serve application. `args` are settings by name; the TURBOFNO_* variables give the others.

    Raises:
        ValueError: a setting is wrong, or of no use under Ray.
    """
    settings = Settings(**args)
    for name, instead in (
        ("frontends", "num_replicas or autoscaling_config gives the number of processes"),
        ("tls_certificate", "Ray's proxy, or what stands before it, speaks TLS"),
    ):
        if getattr(settings, name):
            raise ValueError(f"{env_name(name)} has no use under Ray Serve: {instead}")
    # A model would be loaded by whichever replica got the request, and by no other.
    settings = settings.model_copy(update={"model_control": False})
    # Who reaches Ray's proxy, and by which names, is not known from our own address.
    if "ui" not in settings.model_fields_set:
        settings = settings.model_copy(update={"ui": False})
    if "host" not in settings.model_fields_set:
        settings = settings.model_copy(update={"host": "0.0.0.0"})

    def build() -> FastAPI:
        return replica_application(settings)

    @serve.deployment(
        name="turbofno",
        max_ongoing_requests=FULL_BATCHES * settings.max_batch_size,
        max_queued_requests=1024,
        health_check_period_s=2.0,
        health_check_timeout_s=10.0,
        graceful_shutdown_timeout_s=settings.drain_seconds + 5.0,
        logging_config={"enable_access_log": False},  # ours says more
    )
    @serve.ingress(build)
    class Replica:
        def check_health(self) -> None:
            """Asked by Ray; a replica that raises is replaced."""
            context: AppContext = self.app.state.context  # type: ignore[attr-defined] # ingress adds it
            if context.engine.failure:
                raise RuntimeError(context.engine.failure)

    return Replica.bind()  # type: ignore[attr-defined] # deployment adds it


def replica_application(settings: Settings) -> FastAPI:
    """The application of one replica. Its start ends when the models are warm, so that it gets no request earlier."""
    logs.configure(settings, process=serve.get_replica_context().replica_id.unique_id)
    sys.setswitchinterval(SWITCH_SECONDS)
    share = ray.get_runtime_context().get_assigned_resources().get("GPU", 0.0)  # type: ignore[no-untyped-call]
    if 0 < share < 1:
        fraction = settings.device_memory_fraction * share
        settings = settings.model_copy(update={"device_memory_fraction": fraction})
    app = create_app(settings)
    begin = app.router.lifespan_context

    @asynccontextmanager
    async def warm(of: FastAPI) -> AsyncIterator[None]:
        async with begin(of):
            await _ready(of.state.context.engine)
            yield

    app.router.lifespan_context = warm
    return app


async def _ready(engine: Engine) -> None:
    while not engine.ready:
        statuses = engine.statuses()
        if all(one.state != "LOADING" for one in statuses):
            reasons = [f"{one.name} {one.version}: {one.reason}" for one in statuses if one.reason]
            raise RuntimeError(f"the models could not be made ready: {'; '.join(reasons)}")
        await asyncio.sleep(0.05)
