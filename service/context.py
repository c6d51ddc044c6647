"""The objects of one application that its requests use."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request

    from turbofno.service.demo.solver_process import SolverProcess
    from turbofno.service.engine.interface import Engine
    from turbofno.service.http.access_log import AccessLog
    from turbofno.service.http.fastapi_app import FastAPIApp
    from turbofno.service.http.guard import Guard
    from turbofno.service.http.keys import Keys
    from turbofno.service.http.served import ServedModels
    from turbofno.service.http.shedding import Shedding
    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.admission import Admission
    from turbofno.service.settings import Settings
    from turbofno.service.shared_sums import SharedSum
    from turbofno.service.tracing.requests import RequestTracer


@dataclass(frozen=True, slots=True)
class AppContext:
    """The objects that requests use: operations as `call.context`, FastAPI's routes through `context_of`."""

    app: FastAPIApp
    settings: Settings
    engine: Engine
    admission: Admission
    metrics: Metrics
    access_log: AccessLog
    shedding: Shedding
    served: ServedModels
    guard: Guard
    connections: SharedSum
    """Number of open connections."""
    scrape: Callable[[], Awaitable[bytes]]
    """Returns the metrics of the whole service in the text format."""
    keys: Keys | None = None
    """None: no API key is needed."""
    tracer: RequestTracer | None = None
    """None: tracing is off."""
    solver: SolverProcess | None = None
    """None: samplers and solvers are off."""
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once the application's lifespan has begun, which starts the engine."""


def context_of(request: Request) -> AppContext:
    """The context of the FastAPI application that serves `request`."""
    context: AppContext = request.app.state.context
    return context
