"""Composition root: puts settings, metrics, admission, engine and routes together into one application."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from service.context import AppContext
from service.http import problems
from service.http.admin import router as admin_router
from service.http.docs import docs
from service.http.guard import Guard, GuardMiddleware
from service.http.journal import POLLED, Journal
from service.http.keys import HEALTH, KeyMiddleware, Keys
from service.http.lean_api import LeanAPI
from service.http.middleware import RequestMiddleware
from service.http.oip import router as oip_router
from service.http.openapi import DescribedAPI
from service.http.predict import router as predict_router
from service.http.reference import router as reference_router
from service.http.rollout import router as rollout_router
from service.http.ui import PAGE_PATHS, page
from service.http.vjp import router as vjp_router
from service.metrics import Metrics
from service.pipeline.admission import Admission
from service.pipeline.queue_slots import QueueSlots
from service.solver.process import SolverProcess
from service.triton_metrics import TritonMetrics
from service.version import SERVER, VERSION

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fastapi import FastAPI

    from service.pipeline.engine import Engine
    from service.settings import Settings

logger = logging.getLogger(__name__)


def create_app(
    settings: Settings,
    *,
    engine: Engine | None = None,
    metrics: Metrics | None = None,
    slots: QueueSlots | None = None,
    scrape: Callable[[], Awaitable[bytes]] | None = None,
) -> FastAPI:
    """The application; its engine runs from lifespan start to end. Without `engine` it is one in this process.

    Models load in the background once the application has started, so that it can say that it is alive but
    not ready.

    Args:
        metrics, slots: those that a given engine shares with the application.
        scrape: gives the text of /metrics, if this process alone does not know all of it.

    Raises:
        ValueError: a wrong repository, model name, device or key file; tracing that cannot be set up.
        OSError: the key file cannot be read.
    """
    metrics = metrics or Metrics(version=VERSION)
    if settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    slots = slots or QueueSlots(settings, metrics)
    context = AppContext(
        settings=settings,
        engine=engine or _local_engine(settings, metrics, slots),
        admission=Admission(settings, metrics, slots),
        metrics=metrics,
        journal=Journal(metrics, SERVER, cors_origins=settings.cors_origins),
        guard=Guard(settings),
        scrape=scrape or metrics.text,
        keys=None if settings.api_keys_file is None else Keys.read(settings.api_keys_file),
        solver=SolverProcess(metrics, seconds=settings.solver_seconds) if settings.ui else None,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        context.engine.start()
        try:
            yield
        finally:
            await drain(context)
            if context.solver is not None:
                await context.solver.close()
            if settings.tracing:
                await _flush_traces()

    # FastAPI's spans begin in the layers that are left out otherwise.
    app = (DescribedAPI if settings.tracing else LeanAPI)(
        title="turbofno",
        version=VERSION,
        description="Inference for trained Fourier neural operators.",
        lifespan=lifespan,
        redirect_slashes=False,
        # FastAPI's own pages load their files from a CDN.
        docs_url=None,
        redoc_url=None,
        # All off unless asked for: else each request asks whether it is set up, which costs more than finding the route.
        telemetry={
            "tracing": settings.tracing,
            "metrics": False,
            "logs": False,
            "operation_spans": False,
            "auto_configure": False,
            "exclude": lambda scope: scope.get("path") in POLLED,
        },
    )
    app.state.context = context
    if context.keys is not None:
        app.add_middleware(
            KeyMiddleware,
            keys=context.keys,
            metrics=metrics,
            # A browser asks for a page without a key, before there is a field to put one in.
            open_paths=HEALTH
            | PAGE_PATHS
            | {"/"}
            | ({"/metrics"} if settings.public_metrics else set()),
        )
    app.add_middleware(GuardMiddleware, guard=context.guard, metrics=metrics)
    if settings.tracing:
        _trace(app)
    app.add_middleware(RequestMiddleware, journal=context.journal)
    problems.install(app)
    app.include_router(predict_router)
    app.include_router(rollout_router)
    app.include_router(reference_router)
    app.include_router(vjp_router)
    app.include_router(oip_router)
    app.include_router(admin_router)
    app.include_router(page)
    app.include_router(docs)
    return app


def _local_engine(settings: Settings, metrics: Metrics, slots: QueueSlots) -> Engine:
    # Brings PyTorch along, of which a front end has no use.
    from service.pipeline.local_engine import LocalEngine

    return LocalEngine(settings, metrics, slots)


def _trace(app: FastAPI) -> None:
    from service.tracing.requests import TracingMiddleware
    from service.tracing.setup import start

    start()
    app.add_middleware(TracingMiddleware)


async def _flush_traces() -> None:
    from service.tracing.setup import stop

    await asyncio.to_thread(stop)


async def drain(context: AppContext) -> None:
    """Admit nothing more, finish what was admitted within the drain time, then stop the engine. Repeatable."""
    settings = context.settings
    until = time.monotonic() + settings.drain_seconds
    context.admission.start_draining()
    context.engine.start_draining()
    try:
        async with asyncio.timeout(settings.drain_seconds):
            await context.admission.wait_idle()
    except TimeoutError:
        logger.warning("requests were unfinished when the drain time ended")
        context.admission.end()
    await context.engine.close(within=max(0.0, until - time.monotonic()))
