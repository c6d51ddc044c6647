"""Error replies: RFC 9457 problem+json, or {"error": text} on Open Inference Protocol paths."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

import msgspec
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response

from turbofno.service.errors import (
    BadRequest,
    MethodNotAllowed,
    NotFound,
    ServiceError,
    Unavailable,
)
from turbofno.service.http.access_log import shown_path
from turbofno.service.http.call import Call, Reply, encoded
from turbofno.service.logs import request_id

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from fastapi import FastAPI, Request


logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
CLIENT_CLOSED_REQUEST = 499
"""Status in logs and metrics of a request whose client left; unregistered, and never sent."""


class Problem(msgspec.Struct):
    """An error, in a form for programs (RFC 9457): its detail says what was wrong, what was expected, how to mend it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str


def install(app: FastAPI) -> None:
    """Register the error handlers of FastAPI's routes. asgi.py handles unexpected exceptions."""
    kinds: tuple[int | type[Exception], ...] = (ServiceError, RequestValidationError, 404, 405)
    for kind in kinds:
        app.add_exception_handler(kind, _on_error)


def problem(path: str, error: ServiceError) -> Reply:
    """The reply to `error`, in the format of `path`."""
    document: dict[str, str] | Problem
    if path == "/v2" or path.startswith("/v2/"):
        media_type, document = "application/json", {"error": _text(error.message)}
    else:
        media_type = MEDIA_TYPE
        document = Problem(
            f"urn:turbofno:problem:{error.slug}", error.title, error.status, _text(error.message),
            _text(path), request_id.get(),
        )  # fmt: skip
    headers = encoded({"Content-Type": media_type, **error.headers})
    return Reply(error.status, headers, (msgspec.json.encode(document),))


def unexpected(call: Call) -> Reply:
    """Log the exception being handled; return a reply with the request id and no detail of the exception."""
    logger.exception("unexpected failure of %s %s", call.method, shown_path(call))
    return problem(
        call.path,
        ServiceError(
            "the server failed on this request; its log has the cause under request id "
            f"{call.request_id}"
        ),
    )


def stopped(call: Call) -> Reply:
    """The reply to a request that is cancelled because the process ends."""
    return problem(
        call.path,
        Unavailable(
            "the service stopped before it had answered; retry, another instance may answer",
            retry_after=1.0,
        ),
    )


def _text(text: str) -> str:
    """Replace lone surrogates, which a client can send and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()


async def _on_error(request: Request, raised: Exception) -> Response:
    path = request.scope["path"]
    match raised:
        case ServiceError():
            error = raised
        case RequestValidationError():
            error = BadRequest("; ".join(map(_describe, raised.errors())))
        case HTTPException(status_code=HTTPStatus.NOT_FOUND):
            error = NotFound(f"there is no route {path!r}; GET /docs lists the routes")
        case _:
            # All of FastAPI's routes are GET.
            error = not_allowed(request.method, path, ["GET"])
            if request.method == "OPTIONS":
                return Response(status_code=204, headers={"Allow": f"{error.allowed}, OPTIONS"})
    reply = problem(path, error)
    response = Response(b"".join(reply.body), reply.status)
    response.raw_headers += reply.headers
    return response


def not_allowed(method: str, path: str, methods: Sequence[str]) -> MethodNotAllowed:
    """The error for a method other than the `methods` of a path; GET implies HEAD."""
    allowed = ", ".join("GET, HEAD" if name == "GET" else name for name in methods)
    return MethodNotAllowed(f"{method} is not allowed on {path!r}; use {allowed}", allowed=allowed)


def _describe(error: Mapping[str, Any]) -> str:
    where, *names = error["loc"]
    given = str(error.get("input"))
    shown = "" if error["type"] == "missing" else f", got {given[:80]!r}"
    return f"{where} parameter {'.'.join(map(str, names))!r}: {error['msg']}{shown}"
