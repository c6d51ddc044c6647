"""Error replies: RFC 9457 problem+json, or {"error": text} on Open Inference Protocol paths."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import msgspec

from turbofno.service.errors import MethodNotAllowed, NotFound, QueueFull, ServiceError, Unavailable
from turbofno.service.http.access_log import shown_path
from turbofno.service.http.call import Call, Reply, encoded
from turbofno.service.logs import request_id

logger = logging.getLogger(__name__)

MEDIA_TYPE = "application/problem+json"
CLIENT_CLOSED_REQUEST = 499
"""Status in logs and metrics of a request whose client left; unregistered. Only an ASGI server is told, which sends nothing."""


class Problem(msgspec.Struct):
    """An error, in a form for programs (RFC 9457): its detail says what was wrong, what was expected, how to mend it."""

    type: str
    title: str
    status: int
    detail: str
    instance: str
    request_id: str


class Error(msgspec.Struct):
    """An error on a path of the Open Inference Protocol."""

    error: str


def form_of(path: str) -> tuple[str, type[Problem | Error]]:
    """Media type and document of the errors of a path."""
    if path == "/v2" or path.startswith("/v2/"):
        return "application/json", Error
    return MEDIA_TYPE, Problem


def problem(call: Call, error: Exception) -> Reply:
    """The reply to `error`, in the format of the request's path; an unexpected one is logged, and not shown.

    OPTIONS is allowed on every path: the reply to it lists the methods. A request without room is noted as shed.
    """
    call.shed = isinstance(error, QueueFull)
    if isinstance(error, MethodNotAllowed) and call.method == "OPTIONS":
        return Reply(204, encoded({"Allow": f"{error.allowed}, OPTIONS"}))
    if not isinstance(error, ServiceError):
        token = request_id.set(call.request_id)
        about = call.method, shown_path(call)
        logger.error("unexpected failure of %s %s", *about, exc_info=error)
        request_id.reset(token)
        error = ServiceError(
            "the server failed on this request; its log has the cause under request id "
            f"{call.request_id}"
        )
    media_type, form = form_of(call.path)
    document: Problem | Error
    if form is Error:
        document = Error(_text(error.message))
    else:
        document = Problem(
            f"urn:turbofno:problem:{error.slug}", error.title, error.status, _text(error.message),
            _text(call.path), call.request_id,
        )  # fmt: skip
    headers = encoded({"Content-Type": media_type, **error.headers})
    return Reply(error.status, headers, (msgspec.json.encode(document),))


def stopped(call: Call) -> Reply:
    """The reply to a request that is cancelled because the process ends."""
    return problem(
        call,
        Unavailable(
            "the service stopped before it had answered; retry, another instance may answer",
            retry_after=1.0,
        ),
    )


def not_allowed(method: str, path: str, methods: Sequence[str]) -> MethodNotAllowed:
    """The error for a method other than the `methods` of a path; GET implies HEAD."""
    allowed = ", ".join("GET, HEAD" if name == "GET" else name for name in methods)
    return MethodNotAllowed(f"{method} is not allowed on {path!r}; use {allowed}", allowed=allowed)


def no_route(path: str, guess: str = "") -> NotFound:
    """The error for a path at which nothing is served."""
    return NotFound(f"there is no route {path!r}{guess}; GET /docs lists the routes")


def _text(text: str) -> str:
    """Replace lone surrogates, which a client can send and UTF-8 cannot encode."""
    return text.encode("utf-8", "replace").decode()
