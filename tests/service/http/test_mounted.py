"""The application below a path: every answer is as at the root, however the path reaches it."""

from __future__ import annotations

import asyncio
import logging
import re
from typing import TYPE_CHECKING, Any

import httpx
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from tests.service.http.fake_engine import FakeEngine
from tests.service.http.raw import FIELD, INFER_RAW, NPY, PREDICT, in_loop, npy
from tests.service.tiny import rollable_config, tiny_config
from turbofno.service.app import create_app
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from fastapi import FastAPI

VJP = "/v1/models/tiny-1d:vjp"
CASES: list[tuple[str, dict[str, Any]]] = [
    (PREDICT, {"content": npy(FIELD), "headers": NPY}),
    ("/v1/models/tiny%2D1d:predict?nonsense=1", {"content": npy(FIELD), "headers": NPY}),
    ("/v1/models/tiny-1d:predikt", {"content": b""}),
    (PREDICT, {"method": "PUT"}),
    (
        "/v1/models/tiny-flow:rollout?steps=2",
        {"content": npy(FIELD), "headers": {**NPY, "Accept": NPY["Content-Type"]}},
    ),
    (VJP, {"json": {"inputs": {"input": FIELD.tolist()}, "cotangents": {"u": FIELD[0].tolist()}}}),
    ("/v1/models/tiny-1d/sample", {"method": "GET"}),
    ("/v1/models/tiny-1d:solve", {"content": npy(FIELD), "headers": NPY}),
    ("/v1/models", {"method": "GET"}),
    ("/v1/models/tiny-1d/card", {"method": "HEAD"}),
    ("/v1/models/absent", {"method": "GET"}),
    (INFER_RAW, {"content": FIELD.tobytes(), "headers": {"Inference-Header-Content-Length": "0"}}),
    (INFER_RAW, {"content": b"x", "headers": {"Content-Type": "text/plain"}}),
    ("/v2", {"method": "GET"}),
    ("/v2/health/ready", {"method": "GET"}),
    ("/v2/nowhere", {"method": "GET"}),
    ("/healthz", {"method": "GET"}),
    ("/readyz", {"method": "HEAD"}),
    ("/", {"method": "GET"}),
    ("/", {"method": "GET", "headers": {"Accept": "text/html"}}),
    ("/ui", {"method": "GET"}),
    ("/ui/", {"method": "GET"}),
    ("/ui/app.js", {"method": "GET"}),
    ("/docs", {"method": "GET"}),
    ("/docs/start.js", {"method": "GET"}),
    ("/docs/%C3%A4.js", {"method": "GET"}),
    ("/fno", {"method": "GET"}),
    ("/nowhere", {"method": "GET"}),
    ("/openapi.json", {"method": "OPTIONS"}),
]


def application(**settings: Any) -> FastAPI:
    engine = FakeEngine(tiny_config(), rollable_config())
    return create_app(Settings(**settings), engine=engine)


def client_of(app: Any, root_path: str = "", at: str = "") -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app, root_path=root_path)
    return httpx.AsyncClient(transport=transport, base_url=f"http://localhost{at}")


def mounted(app: FastAPI, at: str) -> httpx.AsyncClient:
    """Below another application. Another server, or Ray Serve, leaves the same in the scope."""
    return client_of(Starlette(routes=[Mount(at, app)]), at=at)


def mounted_twice(app: FastAPI, at: str) -> httpx.AsyncClient:
    outer = Starlette(routes=[Mount("/outer", Starlette(routes=[Mount(at, app)]))])
    return client_of(outer, root_path="/root", at=f"/root/outer{at}")


def cut_off(app: FastAPI, at: str) -> httpx.AsyncClient:
    """Behind a proxy that cuts the path off, on a server that does not put it back."""
    return client_of(app, root_path=at)


def put_back(app: FastAPI, at: str) -> httpx.AsyncClient:
    """Behind such a proxy, on a server that puts it back, as uvicorn does: `--root-path` ends in a slash here."""
    return client_of(app, root_path=f"{at}/", at=f"{at}//")


@pytest.mark.parametrize(
    ("way", "at"),
    [
        (mounted, "/fno"),
        (mounted, "/ui"),
        (mounted_twice, "/fno"),
        (cut_off, "/fno"),
        (put_back, "/fno"),
    ],
)
@in_loop
async def test_every_route_answers_as_at_the_root(
    way: Callable[[FastAPI, str], httpx.AsyncClient], at: str
) -> None:
    app = application(ui=True)
    async with client_of(app) as there, way(app, at) as below:
        for path, given in CASES:
            headers = {"X-Request-Id": "one-and-the-same", **given.get("headers", {})}
            options = {"method": "POST", **given, "headers": headers}
            one, other = [await client.request(url=path, **options) for client in (there, below)]
            about = (path, given, one.text[:300], other.text[:300])
            assert one.status_code == other.status_code, about
            headers = [{**answer.headers, "server-timing": ""} for answer in (one, other)]
            assert headers[0] == headers[1], about
            assert one.content == other.content, about
    assert app.state.context.solver is not None
    await app.state.context.solver.close()


@pytest.mark.parametrize("way", [mounted, cut_off, put_back])
@in_loop
async def test_the_openapi_document_names_the_path(way: Any) -> None:
    app = application()
    async with way(app, "/fno") as below, client_of(app) as there:
        document = (await below.get("/openapi.json")).json()
        assert document.pop("servers") == [{"url": "/fno"}]
        assert document == (await there.get("/openapi.json")).json()


@in_loop
async def test_requests_are_counted_logged_and_admitted_as_at_the_root(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "keys").write_text("alice alice-0123456789abcdef\n")
    app = application(ui=True, api_keys_file=tmp_path / "keys")
    with caplog.at_level(logging.INFO, "service.access"):
        async with mounted(app, "/fno") as client:
            assert (await client.get("/ui/")).status_code == 200
            assert (await client.get("/healthz")).status_code == 200
            options: Any = {"content": npy(FIELD), "headers": NPY}
            assert (await client.post(PREDICT, **options)).status_code == 401
            options["headers"] = {**NPY, "Authorization": "Bearer alice-0123456789abcdef"}
            assert (await client.post(PREDICT, **options)).status_code == 200
    # Health is polled, and so logged at DEBUG. A line has the whole path.
    assert [one.getMessage() for one in caplog.records] == [
        "GET /fno/ui/",
        f"POST /fno{PREDICT}",
        f"POST /fno{PREDICT}",
    ]
    labels = {"model": "tiny-1d", "version": "1", "protocol": "predict", "code": "200"}
    registry = app.state.context.metrics.registry
    assert registry.get_sample_value("turbofno_requests_total", labels) == 1


@pytest.mark.parametrize(
    ("entry", "where"), [("/", "/fno/ui/"), ("/ui", "/fno/ui/"), ("/docs", "/fno/docs")]
)
@in_loop
async def test_a_browser_stays_below_the_path(entry: str, where: str) -> None:
    async with mounted(application(ui=True), "/fno") as client:
        headers = {"Accept": "text/html"}
        page = await client.get(entry, headers=headers, follow_redirects=True)
        assert (page.status_code, page.url.path) == (200, where)
        files = re.findall(r'(?:src|href)="([^"#:]+)"', page.text)
        assert files
        for file in files:
            # Whole, so that the client does not put it below its own base.
            url = str(page.url.join(file))
            assert url.startswith("http://localhost/fno/")
            assert (await client.get(url)).status_code == 200, url


@in_loop
async def test_without_its_lifespan_every_answer_says_so_and_the_log_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = application()
    app.state.context.engine.ready = False
    async with mounted(app, "/fno") as client:
        for path in ("/readyz", "/v1/models", "/v2/health/ready"):
            answer = await client.get(path)
            assert answer.status_code == 503
            assert "lifespan_context(app)` in the lifespan of that one" in answer.text
        said = [one.getMessage() for one in caplog.records if one.levelno == logging.ERROR]
        assert len(said) == 1
        assert said[0] in answer.text
        async with app.router.lifespan_context(app):
            assert (await client.get("/v1/models")).status_code == 200


def test_a_second_lifespan_is_refused_with_the_reason() -> None:
    app = application()

    async def live() -> None:
        async with app.router.lifespan_context(app):
            pass

    asyncio.run(live())
    with pytest.raises(RuntimeError, match="another application with create_app for"):
        asyncio.run(live())


@in_loop
async def test_a_lifespan_that_is_cancelled_drains_in_a_task_that_is_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a task that is still being cancelled, asyncio.timeout of Python 3.11.2 raises no TimeoutError."""
    app, cancelling = application(), []

    async def close(*, within: float) -> None:
        task = asyncio.current_task()
        assert task is not None
        cancelling.append((task.cancelling(), within))

    monkeypatch.setattr(app.state.context.engine, "close", close)

    async def live() -> None:
        async with app.router.lifespan_context(app):
            await asyncio.sleep(60)

    task = asyncio.create_task(live())
    await asyncio.sleep(0)
    task.cancel()
    await task
    assert cancelling == [(0, 0.0)]
