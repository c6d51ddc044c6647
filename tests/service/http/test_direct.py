"""Predictions past FastAPI's routing answer as those through it."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import numpy as np
import pytest

from service.http.direct import DirectPredictions
from tests.service.http.serving import application

FIELD = np.random.default_rng().standard_normal((1, 1, 16)).astype("<f4")
RAW = {"Inference-Header-Content-Length": "0"}
PREDICT, INFER = "/v1/models/{}:predict", "/v2/models/{}/infer"


def ask(path: str, *, direct: bool, **options: Any) -> httpx.Response:
    async def main() -> httpx.Response:
        app, _ = application()
        if not direct:
            app.user_middleware = [m for m in app.user_middleware if m.cls is not DirectPredictions]
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            headers = {"X-Request-Id": "one-and-the-same", **options.pop("headers", {})}
            method = options.pop("method", "POST")
            return await client.request(method, path, headers=headers, **options)

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("path", "options"),
    [
        (PREDICT.format("tiny-1d"), {"json": {"inputs": {"input": FIELD.tolist()}}}),
        (PREDICT.format("tiny-1d"), {"json": {"inputs": {"nonsense": 1}}}),
        (PREDICT.format("absent"), {"json": {}}),
        (PREDICT.format("%2e%2e"), {"json": {}}),
        (PREDICT.format("tiny-1d"), {"content": b"x", "headers": {"Content-Type": "image/png"}}),
        (PREDICT.format("tiny-1d"), {"json": {}, "headers": {"X-Deadline-Ms": "never"}}),
        (PREDICT.format("tiny-1d") + "?priority=-1", {"json": {}}),
        (PREDICT.format("tiny-1d") + "?version=1", {"json": {}}),
        (PREDICT.format("tiny-1d"), {"method": "GET"}),
        (INFER.format("tiny-1d") + "?shape=1,1,16", {"content": FIELD.tobytes(), "headers": RAW}),
        (INFER.format("tiny-1d") + "?shape=1,1,15", {"content": FIELD.tobytes(), "headers": RAW}),
        (INFER.format("tiny-1d") + "?shape=a", {"content": FIELD.tobytes(), "headers": RAW}),
        (INFER.format("tiny-1d") + "?shape=1%2C1%2C16", {"content": b"", "headers": RAW}),
        (INFER.format("tiny-1d"), {"content": FIELD.tobytes(), "headers": RAW}),
        (INFER.format("absent"), {"content": b"{}"}),
        (INFER.format("tiny-1d"), {"content": b"{"}),
        (INFER.format("tiny-1d"), {"method": "DELETE"}),
    ],
)
def test_both_ways_give_the_same_answer(path: str, options: dict[str, Any]) -> None:
    one, other = (ask(path, direct=way, **dict(options)) for way in (True, False))
    assert one.status_code == other.status_code
    assert one.content == other.content
    unlike = {"server-timing", "date"}
    assert {k: v for k, v in one.headers.items() if k not in unlike} == {
        k: v for k, v in other.headers.items() if k not in unlike
    }


def test_a_plain_prediction_does_not_reach_the_router(monkeypatch: pytest.MonkeyPatch) -> None:
    async def unreachable(*_: object) -> None:
        raise AssertionError

    monkeypatch.setattr("starlette.routing.Router.__call__", unreachable)
    answer = ask(PREDICT.format("tiny-1d"), direct=True, json={"inputs": {"input": FIELD.tolist()}})
    assert answer.status_code == 200
    assert np.asarray(json.loads(answer.content)["outputs"]["output"]).shape == (1, 2, 16)
