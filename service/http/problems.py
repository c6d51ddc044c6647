"""Errors as responses: RFC 9457 problem+json on our routes, {"error": text} on Open Inference Protocol paths."""

from __future__ import annotations

import math
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import orjson
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from service.errors import BadRequest, MethodNotAllowed, NotFound, ServiceError, Unavailable
from service.logs import request_id

if TYPE_CHECKING:
    from collections.abc import Mapping

    from fastapi import FastAPI, Request

MEDIA_TYPE = "application/problem+json"
CLIENT_CLOSED_REQUEST = 499
"""Not a registered status: what logs and metrics show for a client that went away. Nobody reads the response."""


def install(app: FastAPI) -> None:
    """Register the handlers. Unexpected exceptions are the middleware's, which still has the request's record."""
    app.add_exception_handler(ServiceError, _on_service_error)
    app.add_exception_handler(HTTPException, _on_http_exception)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)


def problem_response(
    path: str, error: ServiceError, *, headers: Mapping[str, str] | None = None
) -> Response:
    """The response to `error` in the form that `path` calls for."""
    sent = dict(headers or {})
    if error.retry_after is not None:
        sent["Retry-After"] = str(max(1, math.ceil(error.retry_after)))
    if path == "/v2" or path.startswith("/v2/"):
        return Response(
            orjson.dumps({"error": _text(error.message)}),
            error.status,
            sent,
            media_type="application/json",
        )
    problem = {
        "type": f"urn:turbofno:problem:{error.slug}",
        "title": error.title,
        "status": error.status,
        "detail": _text(error.message),
        "instance": _text(path),
        "request_id": request_id.get(),
    }
    return Response(orjson.dumps(problem), error.status, sent, media_type=MEDIA_TYPE)


def unexpected(path: str) -> Response:
    """The response to an exception nobody foresaw: its id for the log, nothing of its inside."""
    return problem_response(
        path,
        ServiceError(
            "the server failed on this request; its log has the cause under request id "
            f"{request_id.get() or 'unknown'}"
        ),
    )


def given_up(path: str) -> Response:
    """The response to a request that is cancelled while its client waits: the process ends."""
    return problem_response(
        path,
        Unavailable(
            "the service stopped before it had answered; retry, another instance may answer",
            retry_after=1.0,
        ),
    )


def disconnected() -> Response:
    """What logs and metrics see when the client went away. Nobody reads it."""
    return Response(status_code=CLIENT_CLOSED_REQUEST)


def _text(text: str) -> str:
    """As it can be encoded: paths and messages may hold lone surrogates from a client."""
    return text.encode("utf-8", "replace").decode()


async def _on_service_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ServiceError)
    return problem_response(request.scope["path"], error)


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path = request.scope["path"]
    known: ServiceError
    if error.status_code == HTTPStatus.NOT_FOUND:
        known = NotFound(f"there is no route {path!r}; GET /docs lists the routes")
    elif error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = (error.headers or {}).get("Allow", "another method")
        known = MethodNotAllowed(f"{request.method} is not allowed on {path!r}; use {allowed}")
    else:
        known = _other(error.status_code, str(error.detail))
    return problem_response(path, known, headers=error.headers)


def _other(status: int, message: str) -> ServiceError:
    """An error with a status of Starlette's choosing."""
    error = ServiceError(message)
    phrase = HTTPStatus(status).phrase
    error.status, error.title = status, phrase  # type: ignore[misc]
    error.slug = phrase.lower().replace(" ", "-")  # type: ignore[misc]
    return error


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return problem_response(
        request.scope["path"], BadRequest("; ".join(_describe(one) for one in error.errors()))
    )


def _describe(error: Mapping[str, Any]) -> str:
    where, *names = error["loc"]
    given = str(error.get("input"))
    shown = "" if error["type"] == "missing" else f", got {given[:80]!r}"
    return f"{where} parameter {'.'.join(map(str, names))!r}: {error['msg']}{shown}"


async def _on_disconnect(request: Request, error: Exception) -> Response:  # noqa: ARG001 - Starlette's signature
    return disconnected()
