"""The application with tiny models, called in this process over ASGI."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import httpx

from tests.service.waiting import until
from turbofno.service.app import create_app
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from pathlib import Path

    from fastapi import FastAPI


@asynccontextmanager
async def serving(root: Path, **settings: Any) -> AsyncIterator[tuple[httpx.AsyncClient, FastAPI]]:
    """Yield a client and the application of the models in `root`, once they are loaded."""
    app = create_app(Settings(model_repository=root, device="cpu", **settings))
    async with app.router.lifespan_context(app):
        engine = app.state.context.engine
        await until(lambda: all(one.state != "LOADING" for one in engine.statuses()), 30)
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield client, app
