"""Composition root: puts settings, metrics, admission, engine and routes together into one application."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import turbofno_ops
from service.context import AppContext
from service.http import problems
from service.http.admin import router as admin_router
from service.http.middleware import RequestMiddleware
from service.http.oip import router as oip_router
from service.http.openapi import DescribedAPI
from service.http.predict import router as predict_router
from service.metrics import Metrics
from service.pipeline.admission import Admission, QueueSlots
from service.pipeline.local_engine import LocalEngine
from service.triton_metrics import TritonMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from service.pipeline.engine import Engine
    from service.settings import Settings

logger = logging.getLogger(__name__)


def create_app(settings: Settings, *, engine: Engine | None = None) -> FastAPI:
    """The application. Without `engine` it runs its own in this process, from lifespan start to end.

    Models load in the background once the application has started, so that it can say that it is alive but
    not ready.

    Raises:
        ValueError: a wrong repository, model name or device.
    """
    metrics = Metrics(version=turbofno_ops.__version__)
    if settings.triton_metrics:
        metrics.registry.register(TritonMetrics(metrics))
    slots = QueueSlots(settings, metrics)
    context = AppContext(
        settings=settings,
        engine=engine or LocalEngine(settings, metrics, slots),
        admission=Admission(settings, metrics, slots),
        metrics=metrics,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        if isinstance(context.engine, LocalEngine):
            context.engine.start()
        try:
            yield
        finally:
            await drain(context)

    app = DescribedAPI(
        title="turbofno",
        version=turbofno_ops.__version__,
        description="Inference for trained Fourier neural operators.",
        lifespan=lifespan,
        redirect_slashes=False,
    )
    app.state.context = context
    app.add_middleware(
        RequestMiddleware, metrics=metrics, server=f"turbofno/{turbofno_ops.__version__}"
    )
    problems.install(app)
    app.include_router(predict_router)
    app.include_router(oip_router)
    app.include_router(admin_router)
    return app


async def drain(context: AppContext) -> None:
    """Admit nothing more, finish what was admitted within the drain time, then stop the engine. Repeatable."""
    settings = context.settings
    until = time.monotonic() + settings.drain_seconds
    context.admission.start_draining()
    if isinstance(context.engine, LocalEngine):
        context.engine.start_draining()
    try:
        async with asyncio.timeout(settings.drain_seconds):
            await context.admission.wait_idle()
    except TimeoutError:
        logger.warning("requests were unfinished when the drain time ended")
    if isinstance(context.engine, LocalEngine):
        await context.engine.close(within=max(0.0, until - time.monotonic()))
