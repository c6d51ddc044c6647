"""Errors in both forms: problem+json, and {"error": text} on Open Inference Protocol paths."""

from __future__ import annotations

import asyncio
import inspect
import math
from typing import Any

import httpx
import pytest
from starlette.exceptions import HTTPException

from tests.service.http.serving import added_to_the_table, application, serving
from turbofno.service import errors
from turbofno.service.errors import QueueFull, ServiceError
from turbofno.service.http.call import Call, Reply

ALL_ERRORS = [
    one
    for _, one in inspect.getmembers(errors, inspect.isclass)
    if issubclass(one, ServiceError) and one is not ServiceError
]


def ask(error: Exception, path: str = "/x", method: str = "GET", **options: Any) -> httpx.Response:
    """The response of an operation at `/x` and `/v2/x` that raises `error`."""

    async def fail(_: Call) -> Reply:
        raise error

    async def main() -> httpx.Response:
        async with serving() as (client, _):
            with added_to_the_table(fail, "/x", "/v2/x"):
                return await client.request(method, path, **options)

    return asyncio.run(main())


@pytest.mark.parametrize("error", ALL_ERRORS, ids=lambda one: one.__name__)
def test_service_error_has_both_forms(error: type[ServiceError]) -> None:
    ours = ask(error("what was wrong"), headers={"x-request-id": "abc"})
    assert ours.status_code == error.status
    assert ours.headers["content-type"] == "application/problem+json"
    assert ours.json() == {
        "type": f"urn:turbofno:problem:{error.slug}",
        "title": error.title,
        "status": error.status,
        "detail": "what was wrong",
        "instance": "/x",
        "request_id": "abc",
    }
    protocol = ask(error("what was wrong"), "/v2/x")
    assert protocol.status_code == error.status
    assert protocol.headers["content-type"] == "application/json"
    assert protocol.json() == {"error": "what was wrong"}


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.2, "1"), (1.01, "2"), (30.0, "30"), (math.inf, "3600")]
)
def test_retry_after_is_whole_seconds_rounded_up(seconds: float, header: str) -> None:
    assert ask(QueueFull("full", retry_after=seconds)).headers["retry-after"] == header
    assert "retry-after" not in ask(QueueFull("full")).headers


def test_unknown_route_and_method_use_the_error_form_of_their_path() -> None:
    error = KeyError()
    assert ask(error, "/nope").json()["detail"].startswith("there is no route '/nope'")
    assert ask(error, "/v2/nope").json()["error"].startswith("there is no route '/v2/nope'")
    for path in ("/x", "/v2/x"):
        answer = ask(error, path, "DELETE")
        assert answer.status_code == 405
        assert answer.headers["allow"] == "GET, HEAD"
        assert "use GET" in answer.text


@pytest.mark.parametrize("path", ["/x", "/v2/x"])
def test_unexpected_exception_reveals_only_the_request_id(path: str) -> None:
    answer = ask(KeyError("password"), path, headers={"x-request-id": "abc"})
    assert answer.status_code == 500
    assert "password" not in answer.text
    assert "request id abc" in answer.text


def test_errors_of_fastapi_are_ours_where_it_knows_less() -> None:
    app, _ = application()

    @app.get("/v2/x")
    async def route(number: int = 0) -> None:
        raise HTTPException(number, "short and stout")

    async def main() -> list[httpx.Response]:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            paths = ("/v2/x?number=seven", "/v2/x?number=418", "/v2/y")
            return [await client.get(path) for path in paths] + [await client.options("/v2/x")]

    wrong, other, unknown, options = asyncio.run(main())
    assert wrong.status_code == 400
    assert "query parameter 'number'" in wrong.json()["error"]
    assert "'seven'" in wrong.json()["error"]
    assert (other.status_code, other.json()["detail"]) == (418, "short and stout")
    assert unknown.status_code == 404
    assert "there is no route '/v2/y'" in unknown.json()["error"]
    assert (options.status_code, options.headers["allow"]) == (204, "GET, HEAD, OPTIONS")


def test_path_that_is_not_utf8_is_answered() -> None:
    assert ask(KeyError(), "/%ff%fe").status_code == 404
