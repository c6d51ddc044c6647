"""Every error a caller can meet, and the one table from error to HTTP status.

ServiceError
 ├─ BadRequest             400  the request cannot be understood (JSON, header, body length, parameter)
 ├─ InvalidField           422  understood, but the model cannot take it (shape, channels, dtype, NaN, overflow)
 │   ├─ NotRollable        422  a rollout of a model whose output is not its next input
 │   ├─ NotDifferentiable  422  a gradient of a model that has none here
 │   └─ BlowUp             422  a rollout left what the model knows, at a named step
 ├─ Unauthorized           401  no API key, or none that is known
 ├─ Forbidden              403  switched off on this server; the message names the setting
 ├─ NotFound               404  no such route, model or version
 ├─ MethodNotAllowed       405
 ├─ NotAcceptable          406  none of the Accept types can be given
 ├─ RequestTimeout         408  the client was too slow to send its request
 ├─ PayloadTooLarge        413  over a stated limit
 ├─ UnsupportedMediaType   415  Content-Type or Content-Encoding we do not read
 ├─ Misdirected            421  asked by a host name that is not this server's
 ├─ QueueFull              429  come back after `retry_after` seconds
 ├─ Unsupported            501  part of the protocol this server does not offer
 ├─ Unavailable            503  loading, draining, or the device is out of memory
 │   └─ DeviceLost         503  the GPU failed in a way that only a new process mends
 ├─ DeadlineExceeded       504  the deadline passed before the work ran
 └─ InferenceFailed        500  the model itself failed; the log has the traceback
"""

from __future__ import annotations

import math
from typing import ClassVar


class ServiceError(Exception):
    """Base of all errors that become a response. `message` says what was wrong, what was expected and how to mend it."""

    status: ClassVar[int] = 500
    title: ClassVar[str] = "Internal error"
    slug: ClassVar[str] = "internal"

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.retry_after = retry_after

    @property
    def headers(self) -> dict[str, str]:
        """Its part of the response's headers."""
        if self.retry_after is None:
            return {}
        return {"Retry-After": str(max(1, math.ceil(self.retry_after)))}


class BadRequest(ServiceError):
    status, title, slug = 400, "Bad request", "bad-request"


class InvalidField(ServiceError):
    status, title, slug = 422, "Field not usable by this model", "invalid-field"


class NotRollable(InvalidField):
    title, slug = "Model cannot be rolled out", "not-rollable"


class NotDifferentiable(InvalidField):
    title, slug = "Model has no gradient", "not-differentiable"


class BlowUp(InvalidField):
    """`step` is the first whose fields are not to be used; `reason` is 'not_finite' or 'energy'."""

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
    """`sent` is True if there was a key, which is not known."""

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
    """`allowed` are the methods that the path has, as in the header Allow."""

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
    """Nothing runs on the device any more; the server drains and exits, for its supervisor to start another."""


class DeadlineExceeded(ServiceError):
    status, title, slug = 504, "Deadline exceeded", "deadline-exceeded"
