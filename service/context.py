"""The parts of one application."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from fastapi import Request

    from turbofno.service.demo.solver_process import SolverProcess
    from turbofno.service.engine.interface import Engine
    from turbofno.service.http.access_log import AccessLog
    from turbofno.service.http.guard import Guard
    from turbofno.service.http.keys import Keys
    from turbofno.service.http.served import ServedModels
    from turbofno.service.http.shedding import Shedding
    from turbofno.service.metrics import Metrics
    from turbofno.service.pipeline.admission import Admission
    from turbofno.service.settings import Settings
    from turbofno.service.tracing.requests import RequestTracer


@dataclass(frozen=True, slots=True)
class AppContext:
    """The parts of the running service that requests need. Operations have it as `call.context`, FastAPI's routes as `context_of`."""

    settings: Settings
    engine: Engine
    admission: Admission
    metrics: Metrics
    access_log: AccessLog
    shedding: Shedding
    served: ServedModels
    guard: Guard
    scrape: Callable[[], Awaitable[bytes]]
    """The metrics of the whole service, in the text format."""
    keys: Keys | None = None
    """None: anyone may call."""
    open_paths: frozenset[str] = field(default_factory=frozenset)
    """Those that need no key."""
    tracer: RequestTracer | None = None
    """None: requests are not traced."""
    solver: SolverProcess | None = None
    """None: switched off."""


def context_of(request: Request) -> AppContext:
    """The context of the FastAPI application that serves `request`."""
    context: AppContext = request.app.state.context
    return context
