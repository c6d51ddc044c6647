"""Builds the application from settings: metrics, admission, engine, routes; and drains it."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, cast

from turbofno.service.coalesced import Coalesced
from turbofno.service.context import AppContext
from turbofno.service.demo.solver_process import SolverProcess
from turbofno.service.http.access_log import AccessLog
from turbofno.service.http.asgi import CallMiddleware
from turbofno.service.http.fastapi_app import FastAPIApp
from turbofno.service.http.guard import Guard
from turbofno.service.http.keys import Keys
from turbofno.service.http.pages import PAGE_PATHS
from turbofno.service.http.served import ServedModels
from turbofno.service.http.shedding import Shedding
from turbofno.service.metrics import Metrics
from turbofno.service.pipeline.admission import Admission
from turbofno.service.pipeline.queue_capacity import QueueCapacity
from turbofno.service.shared_sums import SharedSums
from turbofno.service.triton_metrics import TritonMetrics
from turbofno.service.version import SERVER

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fastapi import FastAPI

    from turbofno.service.engine.interface import Engine
    from turbofno.service.settings import Settings

logger = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *,
    engine: Engine | None = None,
    metrics: Metrics | None = None,
    slots: QueueCapacity | None = None,
    sums: SharedSums | None = None,
    scrape: Callable[[], Awaitable[bytes]] | None = None,
    meet: Callable[[], Awaitable[None]] | None = None,
) -> FastAPI:
    """Build the application. Its engine runs from lifespan start to end, once.

    Models load in the background, so that the server reports that it is alive but not ready.

    Args:
        engine: by default one in this process.
        metrics, slots: those of the given engine.
        sums: those of all front ends, if there are several.
        scrape: returns the text of /metrics, if several processes contribute to it.
        meet: waits for an engine in another process that is there already. Before, no connection is accepted.

    Raises:
        ValueError: a wrong repository, model name, device or key file; tracing that cannot be set up.
    """
    metrics = metrics or Metrics()
    if settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    slots = slots or QueueCapacity(settings, metrics)
    sums = sums or SharedSums(settings)
    if engine is None:
        # Imports PyTorch, which front ends do not need.
        from turbofno.service.engine.local import LocalEngine

        engine = LocalEngine(settings, metrics, slots)
    tracer = None
    if settings.tracing:
        from turbofno.service.tracing import requests, setup

        setup.start()
        tracer = requests.RequestTracer()
    keys = None
    if settings.api_keys_file is not None:
        # A browser loads the page without a key; the user enters it there.
        public = PAGE_PATHS | {"/"} | ({"/metrics"} if settings.public_metrics else set())
        keys = Keys(settings.api_keys_file, public=public)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if context.begun.is_set():
            raise RuntimeError(
                "the lifespan of this application began before, and it can begin only once: make another application with "
                "create_app for another event loop"
            )
        context.begun.set()
        context.engine.start()
        within = settings.drain_seconds
        try:
            if meet is not None:
                await meet()
            yield
        except asyncio.CancelledError:
            # uvicorn asks for no shutdown then. Raised on, it would be logged as an error of the application.
            logger.warning("aborted by a second signal: unfinished requests are answered with 503")
            # In a task that is still being cancelled, asyncio.timeout of Python 3.11.2 (Debian 12) raises no TimeoutError.
            cast("asyncio.Task[None]", asyncio.current_task()).uncancel()
            within = 0.0
        finally:
            await drain(context, within)
            if context.solver is not None:
                await context.solver.close()
            if settings.tracing:
                await asyncio.to_thread(setup.stop)

    shedding = Shedding()
    app = FastAPIApp(lifespan=lifespan)
    context = app.state.context = AppContext(
        app=app,
        settings=settings,
        engine=engine,
        admission=Admission(settings, metrics, slots, sums),
        metrics=metrics,
        access_log=AccessLog(metrics, shedding, SERVER, cors_origins=settings.cors_origins),
        shedding=shedding,
        served=ServedModels(engine, settings),
        guard=Guard(settings),
        connections=sums.connections,
        scrape=Coalesced(scrape or metrics.text),
        keys=keys,
        tracer=tracer,
        solver=SolverProcess(metrics, seconds=settings.solver_seconds) if settings.ui else None,
    )

    app.add_middleware(CallMiddleware, context=context)
    return app


async def drain(context: AppContext, within: float) -> None:
    """Refuse new requests, finish the admitted ones within so many seconds, then stop the engine. Repeatable."""
    until = time.monotonic() + within
    context.admission.start_draining()
    # From now on requests are refused for this reason.
    context.shedding.flush()
    try:
        async with asyncio.timeout(within):
            await context.admission.wait_idle()
    except TimeoutError:
        logger.warning("requests were unfinished when the drain time ended")
        context.admission.end()
    await context.engine.close(within=max(0.0, until - time.monotonic()))
