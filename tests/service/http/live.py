"""The application on a socket of this process."""

from __future__ import annotations

import asyncio
from contextlib import asynccontextmanager, suppress
from typing import TYPE_CHECKING, Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from tests.service.http.serving import application
from tests.service.waiting import until
from turbofno.service.server import server_config

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from fastapi import FastAPI

    from tests.service.http.fake_engine import FakeEngine
    from turbofno.service.context import AppContext


@asynccontextmanager
async def served(app: FastAPI, *, over_asgi: bool = False) -> AsyncIterator[int]:
    """Serve the application with `Edge`, or with uvicorn's own protocol over ASGI; yield its port."""
    config = server_config(app)
    if over_asgi:
        config.http = HttpToolsProtocol
    server = uvicorn.Server(config)
    # `serve` would install signal handlers.
    running = asyncio.create_task(server._serve())
    await until(lambda: server.started, 30)
    try:
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await running


@asynccontextmanager
async def listening(
    *, over_asgi: bool = False, **settings: Any
) -> AsyncIterator[tuple[int, FakeEngine, AppContext]]:
    """Serve the application with a fake engine; yield port, engine and context."""
    app, engine = application(port=0, **settings)
    async with served(app, over_asgi=over_asgi) as port:
        yield port, engine, app.state.context


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield reader, writer
    finally:
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
