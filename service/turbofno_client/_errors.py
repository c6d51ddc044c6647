"""Errors and warnings of the client, and the error for each response.

TurboFNOError
├── BadInput           other 4xx, arguments that the client cannot send, or a closed client
├── NotFound           404
├── Overloaded         429 or 503, after all retries or at the time limit
├── DeadlineExceeded   504, or no response in time
├── ServerError        5xx, or an invalid response
├── ConnectionFailed   no response
└── BlowUp             a rollout diverged
"""

from __future__ import annotations

import contextlib
import email.utils
import time
import warnings
from collections.abc import Sequence
from typing import Any

import httpx


class TurboFNOError(Exception):
    """Base of all errors of this client.

    Attributes:
        message: the server's explanation, or the client's if there is none.
        status: HTTP status; None without a response.
        request_id: id of the request in the server's log; None if unknown.
        problem: the JSON body of the error response; {} if there is none.
        retry_after: seconds to wait before a retry (header Retry-After); None if not given.
    """

    def __init__(self, message: str, response: httpx.Response | None = None) -> None:
        super().__init__(message)
        headers = httpx.Headers() if response is None else response.headers
        self.message = message
        self.status = None if response is None else response.status_code
        self.request_id: str | None = headers.get("x-request-id")
        self.problem = {} if response is None else json_object(response)
        self.retry_after = _seconds(headers.get("retry-after", ""))


class BadInput(TurboFNOError):
    """The request is unusable: shape, channels, dtype, NaN, size (4xx)."""


class NotFound(TurboFNOError):
    """No such model, version or route (404)."""


class Overloaded(TurboFNOError):
    """The server refused the request (429, 503) until retries or time ran out; retry after `retry_after` seconds."""


class DeadlineExceeded(TurboFNOError):
    """The time limit passed, at the server before the work began (504) or in the client."""


class ServerError(TurboFNOError):
    """The server failed (5xx), or its response is invalid."""


class ConnectionFailed(TurboFNOError):
    """No response: the server is unreachable, or the connection broke."""


class BlowUp(TurboFNOError):
    """A rollout diverged: its fields are not finite, or their energy is beyond the training range.

    All usable frames come before this error. `step` is the first unusable step; `reason` is "not_finite" or "energy".
    """

    def __init__(
        self,
        message: str,
        response: httpx.Response | None = None,
        *,
        step: int = 0,
        reason: str = "",
    ) -> None:
        # All but the message have defaults: a copy is made of that, and gets the attributes then.
        super().__init__(message, response)
        self.step = step
        self.reason = reason


class PredictionWarning(UserWarning):
    """The result may be worse than the model's card states; the text gives the reason."""


def issue(texts: Sequence[str], *, depth: int) -> None:
    """Issue each text as a PredictionWarning, attributed to the caller `depth` calls above."""
    for text in texts:
        warnings.warn(text, PredictionWarning, stacklevel=depth + 1)


def error_of(outcome: httpx.Response | httpx.RequestError | None, allowed: float) -> TurboFNOError:
    """The error for a response other than 200, or for a failed request with a time limit of `allowed` seconds."""
    if isinstance(outcome, httpx.Response):
        problem, status = json_object(outcome), outcome.status_code
        kinds = {404: NotFound, 429: Overloaded, 503: Overloaded, 504: DeadlineExceeded}
        kind = kinds.get(status, BadInput if 400 <= status < 500 else ServerError)
        text = problem.get("detail") or problem.get("error") or outcome.text[:500]
        return kind(str(text or f"HTTP {status} {outcome.reason_phrase}"), outcome)
    assert outcome is not None, "a request was sent, so there is an outcome"
    timed_out = isinstance(outcome, httpx.TimeoutException)
    if timed_out and not isinstance(outcome, httpx.ConnectTimeout):
        return DeadlineExceeded(f"no response within {allowed:g} s: allow more time, or send less")
    where = outcome.request.url.copy_with(path="/", query=None)
    lost = isinstance(outcome, httpx.ReadError | httpx.WriteError | httpx.RemoteProtocolError)
    what = "lost the connection to" if lost else "cannot reach"
    return ConnectionFailed(f"{what} {where}: {str(outcome) or type(outcome).__name__}")


def json_object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a body; {} if it is not one."""
    try:
        body = response.json()
    except (ValueError, httpx.ResponseNotRead):
        return {}
    return body if isinstance(body, dict) else {}


def _seconds(retry_after: str) -> float | None:
    """Parse Retry-After, a number of seconds or a date, to seconds from now; None if it is neither."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after))
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None
