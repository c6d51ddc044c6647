"""All errors that become a response, with their HTTP status.

ServiceError
 ├─ BadRequest             400  malformed request (JSON, header, body length, parameter)
 ├─ InvalidField           422  well formed, but the model cannot take it (shape, channels, dtype, NaN, overflow)
 │   ├─ NotRollable        422  rollout of a model whose output is not its next input
 │   ├─ NotDifferentiable  422  gradient of a model that has none here
 │   └─ BlowUp             422  a rollout diverged, at a named step
 ├─ Unauthorized           401  no API key, or an unknown one
 ├─ Forbidden              403  disabled on this server; the message names the setting
 ├─ NotFound               404  no such route, model or version
 ├─ MethodNotAllowed       405
 ├─ NotAcceptable          406  no type of Accept is supported
 ├─ RequestTimeout         408  the client was too slow to send its request
 ├─ PayloadTooLarge        413  over a limit, which the message names
 ├─ UnsupportedMediaType   415  unsupported Content-Type or Content-Encoding
 ├─ Misdirected            421  the Host header is not a name of this server
 ├─ QueueFull              429  overloaded; retry after `retry_after` seconds
 ├─ Unsupported            501  an unsupported part of the protocol
 ├─ Unavailable            503  loading, draining, or out of memory
 │   └─ DeviceLost         503  the GPU failed; only a new process can use it again
 ├─ DeadlineExceeded       504  the deadline passed before the work ran
 └─ InferenceFailed        500  the model failed; the log has the traceback
"""

from __future__ import annotations

import math
from typing import ClassVar

_LONGEST_RETRY = 3600.0
"""Most seconds of a Retry-After that follows from a setting, which may be infinite."""


class ServiceError(Exception):
    """Base of all errors that become a response. `message` states what was wrong, what was expected and how to mend it."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    slug: ClassVar[str] = "internal"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Headers that this error adds to the response."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(min(self.retry_after, _LONGEST_RETRY))))}


class BadRequest(ServiceError):
    status, title, slug = 400, "Bad request", "bad-request"


class InvalidField(ServiceError):
    status, title, slug = 422, "Field not usable by this model", "invalid-field"


class NotRollable(InvalidField):
    title, slug = "Model cannot be rolled out", "not-rollable"


class NotDifferentiable(InvalidField):
    title, slug = "Model has no gradient", "not-differentiable"


class BlowUp(InvalidField):
    """`step` is the first step with unusable fields; `reason` is 'not_finite' or 'energy'."""

    title, slug = "Rollout blew up", "blow-up"

    def __init__(
        self,
        message: str,
        *,
        retry_after: float | None = None,
        step: int = 0,
        reason: str = "not_finite",
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.step = step
        self.reason = reason


class Unauthorized(ServiceError):
    """`sent` is True if the request had a key, which is unknown."""

    status, title, slug = 401, "Unauthorized", "unauthorized"

    def __init__(
        self, message: str, *, retry_after: float | None = None, sent: bool = False
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.sent = sent

    @property
    def headers(self) -> dict[str, str]:
        problem = ', error="invalid_token"' if self.sent else ""
        return {"WWW-Authenticate": f'Bearer realm="turbofno"{problem}'}


class Forbidden(ServiceError):
    status, title, slug = 403, "Forbidden", "forbidden"


class NotFound(ServiceError):
    status, title, slug = 404, "Not found", "not-found"


class MethodNotAllowed(ServiceError):
    """`allowed` is the value of the header Allow."""

    status, title, slug = 405, "Method not allowed", "method-not-allowed"

    def __init__(
        self, message: str, *, retry_after: float | None = None, allowed: str = ""
    ) -> None:
        super().__init__(message, retry_after=retry_after)
        self.allowed = allowed

    @property
    def headers(self) -> dict[str, str]:
        return {"Allow": self.allowed} if self.allowed else {}


class NotAcceptable(ServiceError):
    status, title, slug = 406, "Not acceptable", "not-acceptable"


class RequestTimeout(ServiceError):
    status, title, slug = 408, "Request timeout", "request-timeout"


class PayloadTooLarge(ServiceError):
    status, title, slug = 413, "Payload too large", "payload-too-large"


class UnsupportedMediaType(ServiceError):
    status, title, slug = 415, "Unsupported media type", "unsupported-media-type"


class Misdirected(ServiceError):
    status, title, slug = 421, "Misdirected request", "misdirected"


class QueueFull(ServiceError):
    status, title, slug = 429, "Queue full", "queue-full"


class InferenceFailed(ServiceError):
    status, title, slug = 500, "Inference failed", "inference-failed"


class Unsupported(ServiceError):
    status, title, slug = 501, "Not supported", "unsupported"


class Unavailable(ServiceError):
    status, title, slug = 503, "Unavailable", "unavailable"


class DeviceLost(Unavailable):
    """The device is unusable for this process. The server drains and exits, so that its supervisor restarts it."""


class DeadlineExceeded(ServiceError):
    status, title, slug = 504, "Deadline exceeded", "deadline-exceeded"
