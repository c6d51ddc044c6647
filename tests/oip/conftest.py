"""Options and the server under test: any base URL, or this repository's own server with a tiny model."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.oip.target import NUMPY, Target


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("oip", "Open Inference Protocol conformance")
    group.addoption("--base-url", help="server under test, for example http://127.0.0.1:8080")
    group.addoption("--model", help="model to call; it must have one numeric input")
    group.addoption("--dim", type=int, default=64, help="size for every free axis but the batch")
    group.addoption("--control", action="store_true", help="also unload and load the model")


@pytest.fixture(scope="session")
def base_url(request: pytest.FixtureRequest) -> Iterator[str]:
    url = request.config.getoption("base_url", default=None)
    if url:
        yield url.rstrip("/")
        return
    yield from _own_server(request.getfixturevalue("tmp_path_factory").mktemp("repository"))


@pytest.fixture(scope="session")
def target(base_url: str, request: pytest.FixtureRequest) -> Target:
    option = request.config.getoption
    with httpx.Client(base_url=base_url, timeout=30) as http:
        server = http.get("/v2").raise_for_status().json()
        name = option("model", default=None) or http.post("/v2/repository/index").json()[0]["name"]
        model = http.get(f"/v2/models/{name}").raise_for_status().json()
    (tensor,) = model["inputs"]
    if tensor["datatype"] not in NUMPY:
        pytest.exit(f"the suite cannot make {tensor['datatype']} data for model {name}")
    free = option("dim", default=64)
    first, *others = tensor["shape"]
    return Target(
        url=base_url,
        control=bool(option("control", default=False)) or not option("base_url", default=None),
        model=name,
        version=model["versions"][-1],
        input=tensor["name"],
        datatype=tensor["datatype"],
        shape=(1 if first < 0 else first, *(free if size < 0 else size for size in others)),
        outputs=tuple(output["name"] for output in model["outputs"]),
        extensions=tuple(server["extensions"]),
    )


@pytest.fixture(scope="session")
def http(base_url: str) -> Iterator[httpx.Client]:
    """A client that adds only the headers Host and Content-Length."""
    with httpx.Client(base_url=base_url, timeout=30) as client:
        for header in ("accept", "accept-encoding", "connection", "user-agent"):
            client.headers.pop(header, None)
        yield client


def _own_server(repository: Path) -> Iterator[str]:
    import uvicorn

    from tests.service.tiny import save_tiny
    from turbofno.service.app import create_app
    from turbofno.service.http.edge import Edge
    from turbofno.service.settings import Settings

    save_tiny(repository, "tiny-2d", n_dim=2)
    settings = Settings(
        model_repository=repository, device="cpu", torch_threads=1, model_control=True
    )
    app = create_app(settings)
    config = uvicorn.Config(
        app,
        port=0,
        log_config=None,
        access_log=False,
        ws="none",
        http=Edge,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), name="oip-server")
    thread.start()
    try:
        until = time.monotonic() + 30
        while not (server.started and app.state.context.engine.ready):
            assert time.monotonic() < until, "the server did not become ready"
            time.sleep(0.02)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(60)
