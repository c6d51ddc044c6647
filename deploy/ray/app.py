"""The service as a Ray Serve deployment. Each replica is the whole application, with the engine in its process or, with
TURBOFNO_FRONTENDS=1, in child processes, which may use several GPUs.

    serve run deploy/ray/cpu.yaml

Ray starts, scales and replaces replicas and routes requests; the service does batching, limits and answers.
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
from turbofno.service.metrics import Metrics
from turbofno.service.processes.supervised_engine import SupervisedEngine
from turbofno.service.processes.supervisor import KILL_SECONDS
from turbofno.service.server import SWITCH_SECONDS
from turbofno.service.settings import Settings, env_name
from turbofno.service.system import keep_freed_memory

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from fastapi import FastAPI
    from ray.serve import Application

    from turbofno.service.context import AppContext
    from turbofno.service.engine.interface import Engine

FULL_BATCHES = 4
"""Concurrent requests of a replica, in full batches: one runs, one is queued, the others are being read or written."""


def application(args: dict[str, Any]) -> Application:
    """The Serve application. `args` are settings by name; TURBOFNO_* variables set the others.

    Raises:
        ValueError: a setting is invalid, or cannot be used under Ray.
    """
    settings = Settings(**args)
    if settings.frontends > 1:
        raise ValueError(
            f"{env_name('frontends')} can be at most 1 under Ray Serve, where each replica is a front end: set "
            "num_replicas or autoscaling_config instead"
        )
    if settings.tls_certificate:
        raise ValueError(
            f"{env_name('tls_certificate')} cannot be used under Ray Serve: configure TLS in Ray's proxy or a proxy "
            "before it"
        )
    # Only the replica that gets the request would load the model.
    settings = settings.model_copy(update={"model_control": False})
    # Clients connect to Ray's proxy, whose address the service does not know.
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
        graceful_shutdown_timeout_s=settings.drain_seconds + 2 * KILL_SECONDS,
        logging_config={"enable_access_log": False},  # the service writes its own
    )
    @serve.ingress(build)
    class Replica:
        def check_health(self) -> None:
            """Called by Ray, which replaces a replica that raises."""
            context: AppContext = self.app.state.context  # type: ignore[attr-defined] # ingress adds it
            if failure := failure_of(context.engine):
                raise RuntimeError(failure)

    return Replica.bind()  # type: ignore[attr-defined] # deployment adds it


def replica_application(settings: Settings) -> FastAPI:
    """The application of one replica. Its startup ends when the models are warm, so that it gets no request before.

    Raises:
        ValueError: a wrong repository or model name, or devices that are not the GPUs that Ray assigned.
    """
    logs.configure(settings, process=serve.get_replica_context().replica_id.unique_id)
    keep_freed_memory()
    sys.setswitchinterval(SWITCH_SECONDS)
    replica = ray.get_runtime_context()  # type: ignore[no-untyped-call]
    check_devices(settings, replica.get_accelerator_ids()["GPU"])
    share = replica.get_assigned_resources().get("GPU", 0.0)
    if 0 < share < 1:
        fraction = settings.device_memory_fraction * share
        settings = settings.model_copy(update={"device_memory_fraction": fraction})
    if settings.frontends:
        metrics = Metrics()
        engine = SupervisedEngine(settings, metrics)
        app = create_app(
            settings, engine=engine, metrics=metrics, slots=engine.queue, scrape=engine.scrape
        )
    else:
        app = create_app(settings)
    begin = app.router.lifespan_context

    @asynccontextmanager
    async def warm(of: FastAPI) -> AsyncIterator[None]:
        async with begin(of):
            await _ready(of.state.context.engine)
            yield

    app.router.lifespan_context = warm
    return app


def check_devices(settings: Settings, assigned: Sequence[str]) -> None:
    """Raise ValueError if the settings name GPUs, and not all those that Ray assigned to this replica."""
    named = {one for group in settings.devices or () for one in group.split("+") if one != "cpu"}
    if named and named != {f"cuda:{i}" for i in range(len(assigned))}:
        raise ValueError(
            f"{env_name('devices')} names {', '.join(sorted(named))}, but Ray assigned {len(assigned)} GPUs to this replica, "
            f"numbered from 0: name them all, or set ray_actor_options.num_gpus to {len(named)}"
        )


def failure_of(engine: Engine) -> str:
    """The reason why the engine will not be ready, or empty."""
    statuses = engine.statuses()
    if engine.failure or engine.ready or any(one.state == "LOADING" for one in statuses):
        return engine.failure
    reasons = [f"{one.name} {one.version}: {one.reason}" for one in statuses if one.reason]
    return f"models could not be loaded: {'; '.join(reasons)}" if reasons else ""


async def _ready(engine: Engine) -> None:
    while not engine.ready:
        if failure := failure_of(engine):
            raise RuntimeError(failure)
        await asyncio.sleep(0.05)
