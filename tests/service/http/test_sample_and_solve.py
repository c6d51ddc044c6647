"""Samples and solutions over HTTP: formats, the model's description, refusals, and when they are switched off."""

from __future__ import annotations

import asyncio
import io
import json
import math
from typing import TYPE_CHECKING, Any

import httpx
import numpy as np
import pytest

from tests.service.http.fake_engine import FakeEngine
from tests.service.http.live import connected, served
from tests.service.http.raw import raw_request, reply
from tests.service.tiny import tiny_config
from turbofno.models.core.config import Channel
from turbofno.models.zoo.pde import burgers
from turbofno.models.zoo.pde.random_fields import INDEX_LIMIT
from turbofno.models.zoo.problems import BURGERS
from turbofno.service.app import create_app
from turbofno.service.demo.solvers import STREAM
from turbofno.service.http import sample_and_solve
from turbofno.service.http.sample_and_solve import SEEDS
from turbofno.service.settings import Settings

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from fastapi import FastAPI

pytestmark = pytest.mark.timeout(120)


def with_app(
    work: Callable[[httpx.AsyncClient, FastAPI], Awaitable[None]], **settings: Any
) -> None:
    """Two models: `burgers`, which has a solver, and tiny-2d, which has none."""
    config = tiny_config("burgers").model_copy(update={"pde": BURGERS.pde})
    outputs = config.outputs[:1]
    architecture = config.architecture.model_copy(update={"out_channels": 1})
    config = config.model_copy(update={"outputs": outputs, "architecture": architecture})
    # the same PDE, but two past states, which a sample has not
    arch = architecture.model_copy(update={"in_channels": 2})
    inputs = tuple(Channel(name=name) for name in ("u0", "u1"))
    past = config.model_copy(update={"name": "past", "inputs": inputs, "architecture": arch})
    engine = FakeEngine(config, past, tiny_config("tiny-2d", n_dim=2))
    app = create_app(Settings(**settings), engine=engine)

    async def main() -> None:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost", timeout=90) as client:  # fmt: skip
            try:
                await work(client, app)
            finally:
                if app.state.context.solver is not None:
                    await app.state.context.solver.close()

    asyncio.run(main())


def array(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"] == "application/x-npy"
    found: np.ndarray[Any, Any] = np.load(io.BytesIO(answer.content), allow_pickle=False)
    return found


def test_a_sample_and_its_solution_in_every_form() -> None:
    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        about = (await client.get("/v1/models/burgers")).json()["reference"]
        assert [one["name"] for one in about["parameters"]] == ["amplitude", "tau", "alpha"]
        drawn = array(await client.get(about["sample"], params={"seed": 11, "grid": 64}))
        expected = burgers.sample_inputs([11], seed=STREAM, n=1024)
        np.testing.assert_allclose(drawn, expected[:, ::16], rtol=1e-5, atol=1e-6)
        truth = burgers.solve(expected)[:, ::16].numpy()
        solved = array(await client.post(about["solve"], params={"seed": 11, "grid": 64}))
        np.testing.assert_allclose(solved, truth, rtol=1e-4, atol=1e-6)
        body = {"inputs": {"u0": drawn[0].tolist()}}
        answer = (await client.post(about["solve"], json=body)).json()
        near = np.array(answer["outputs"]["u"])
        # 64 points do not resolve the function.
        assert np.linalg.norm(near - truth[0]) < 0.05 * np.linalg.norm(truth[0])
        default = array(await client.get(about["sample"]))
        assert default.shape == (1, 16)
        metrics = (await client.get("/metrics")).text
        assert 'turbofno_solver_seconds_count{model="burgers",version="1"} 4.0' in metrics
        # The solver's time is not counted as the model's latency.
        assert 'turbofno_request_duration_seconds_count{model="burgers"' not in metrics
        assert app.state.context.admission._requests == 0

    with_app(work)


OF_BURGERS = "'alpha', 'amplitude' and 'tau'"


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "tiny-2d/sample", 404, "no sampler and no solver for model 'tiny-2d'"),
        ("POST", "tiny-2d:solve", 404, "no sampler and no solver for model 'tiny-2d'"),
        ("GET", "past/sample", 404, "no sampler and no solver for model 'past'"),
        ("POST", "past:solve", 404, "no sampler and no solver for model 'past'"),
        ("GET", "nobody/sample", 404, "nobody"),
        ("GET", "burgers/sample?grid=65", 422, "allowed are 8 to 64"),
        ("GET", "burgers/sample?tau=1000", 400, "is 1000, expected a number from 2 to 15"),
        ("GET", "burgers/sample?tau=nan", 400, "is nan, expected a number from 2 to 15"),
        ("GET", "burgers/sample?tau=x", 400, "query parameter 'tau' is 'x', expected a number"),
        ("GET", "burgers/sample?high=9", 400, f"parameter 'high'; 'seed', 'grid', {OF_BURGERS} are known"),
        ("GET", "burgers/sample?Tau=5", 400, f"parameter 'Tau'; 'seed', 'grid', {OF_BURGERS} are known"),
        ("POST", "burgers:solve?seed=1&low=9", 400, f"'low'; 'seed', 'grid', 'steps', {OF_BURGERS} are known"),
        ("GET", "burgers/sample?seed=-1", 400, "'seed'"),
        ("POST", "burgers:solve?seed=1&steps=2", 400, "has no time step"),
        ("POST", "burgers:solve?tau=5", 400, "unknown query parameter 'tau'"),
        ("POST", "burgers:solve?grid=32", 400, "'grid' is of a sample, and a field in the body has a grid"),
        ("POST", "burgers:solve?grid=0&steps=1", 400, "neither the seed of a sample nor a body"),
        ("POST", "burgers:solve", 400, "neither the seed of a sample nor a body"),
    ],
)  # fmt: skip
def test_refusals_state_the_reason(method: str, path: str, status: int, words: str) -> None:
    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        answer = await client.request(method, f"/v1/models/{path}")
        assert (answer.status_code, words in answer.json()["detail"]) == (status, True), answer.text
        assert app.state.context.solver._child is None

    with_app(work)


def test_a_body_without_content_type_is_not_taken_for_none() -> None:
    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        answer = await client.post("/v1/models/burgers:solve", content=b"x")
        assert (answer.status_code, "no Content-Type" in answer.text) == (415, True), answer.text

    with_app(work)


@pytest.mark.parametrize("chunked", [False, True])
def test_a_seed_with_a_field_is_refused_because_one_of_them_would_be_ignored(chunked: bool) -> None:
    async def pieces() -> AsyncIterator[bytes]:
        yield body

    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        content = pieces() if chunked else body
        answer = await client.post(
            "/v1/models/burgers:solve?seed=1",
            content=content,
            headers={"Content-Type": "application/json"},
        )
        assert (answer.status_code, "leave out" in answer.text) == (400, True), answer.text
        assert app.state.context.solver._child is None

    body = json.dumps({"inputs": {"u0": [0.0, 0.5] * 8}}).encode()
    with_app(work)


def test_a_body_behind_the_repeated_head_of_a_request_without_one_is_not_ignored(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def solved(*_: object) -> np.ndarray[Any, Any]:
        return np.zeros((1, 16), np.float32)

    async def work(_: httpx.AsyncClient, app: FastAPI) -> None:
        monkeypatch.setattr(sample_and_solve, "_solved", solved)
        path = "/v1/models/burgers:solve?seed=1"
        async with served(app) as port, connected(port) as (reader, writer):
            for body, status in ((b"", 200), (b"x" * 5, 400)):
                writer.write(raw_request(path, body, "Content-Type: application/x-npy"))
                assert (await reply(reader))[0] == status

    with_app(work)


def test_every_accepted_seed_is_a_sample() -> None:
    assert SEEDS == INDEX_LIMIT


def test_the_time_limit_may_be_infinite() -> None:
    async def work(client: httpx.AsyncClient, _: FastAPI) -> None:
        array(await client.get("/v1/models/burgers/sample"))

    with_app(work, solver_seconds=math.inf)


def test_several_fields_are_refused() -> None:
    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        body = {"inputs": {"u0": [[0.0] * 16] * 2}}
        answer = await client.post("/v1/models/burgers:solve", json=body)
        assert (answer.status_code, "one field a request" in answer.text) == (422, True)

    with_app(work)


@pytest.mark.parametrize("settings", [{"ui": False}, {"host": "0.0.0.0"}], ids=["set", "public"])
def test_off_by_setting_or_on_a_public_address(settings: dict[str, Any]) -> None:
    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        for method, path in (
            ("GET", "/ui"),
            ("GET", "/ui/app.js"),
            ("GET", "/v1/models/burgers/sample"),
            ("POST", "/v1/models/burgers:solve?seed=1"),
        ):
            answer = await client.request(method, path)
            assert answer.status_code == 403
            assert "TURBOFNO_UI=true" in answer.json()["detail"]
        assert (await client.get("/v1/models/burgers")).json()["reference"] is None

    with_app(work, **settings)


def test_only_the_page_is_served_without_a_key(tmp_path: Any) -> None:
    (tmp_path / "keys").write_text("alice 0123456789abcdef\n")

    async def work(client: httpx.AsyncClient, app: FastAPI) -> None:
        for path, kind in (("", "text/html"), ("app.js", "text/javascript"), ("style.css", "text/css"), ("icon.svg", "image/svg+xml")):  # fmt: skip
            answer = await client.get(f"/ui/{path}")
            assert answer.status_code == 200
            assert answer.headers["content-type"].startswith(kind)
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert (await client.get("/ui")).headers["location"] == "ui/"
        key = {"Authorization": "Bearer 0123456789abcdef"}
        for path in ("nothing.js", "../app.py", "%2e%2e/app.py", "..%2fapp.py"):
            assert (await client.get(f"/ui/{path}")).status_code == 401
            assert (await client.get(f"/ui/{path}", headers=key)).status_code == 404
        assert (await client.get("/v1/models/burgers/sample")).status_code == 401

    with_app(work, api_keys_file=tmp_path / "keys")
