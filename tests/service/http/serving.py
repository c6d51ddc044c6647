"""The application with a fake engine, called in this process."""

from __future__ import annotations

from contextlib import asynccontextmanager, contextmanager
from typing import TYPE_CHECKING, Any
from unittest import mock

import httpx

from tests.service.http.fake_engine import FakeEngine
from tests.service.tiny import tiny_config
from turbofno.service.app import create_app
from turbofno.service.http import operations
from turbofno.service.http.call import Operation
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

    from fastapi import FastAPI

    from turbofno.service.http.call import Call, Reply


def application(**settings: Any) -> tuple[FastAPI, FakeEngine]:
    """tiny-1d in versions 1 and 2, tiny-2d in version 1: one input channel u0, outputs u and v."""
    engine = FakeEngine(
        tiny_config("tiny-1d"), tiny_config("tiny-1d", version="2"), tiny_config("tiny-2d", n_dim=2)
    )
    return create_app(Settings(**settings), engine=engine), engine


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, FakeEngine]]:
    """Yield a client of the application, and its engine."""
    app, engine = application(**settings)
    transport = httpx.ASGITransport(app=app)
    client = httpx.AsyncClient(transport=transport, base_url="http://localhost")
    async with app.router.lifespan_context(app), client:
        yield client, engine


@contextmanager
def added_to_the_table(run: Callable[[Call], Awaitable[Reply]], *paths: str) -> Iterator[None]:
    """Serve these paths by `run`, which is a GET operation without fields."""
    added = operations._routes([Operation(run, {path: {} for path in paths}, "GET")])
    with mock.patch.object(operations, "_ROUTES", [*added, *operations._ROUTES]):
        operations._cached.cache_clear()
        yield
    operations._cached.cache_clear()
