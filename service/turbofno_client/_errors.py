"""Everything that the client raises or warns of, and which of it an answer, or none, means.

TurboFNOError
├── BadInput           4xx: the request cannot be used as it is
├── NotFound           404
├── Overloaded         429, 503, when retries or time ran out
├── DeadlineExceeded   504, or no answer in time
├── ServerError        5xx, or an answer that cannot be understood
├── ConnectionFailed   no answer
└── BlowUp             a rollout left what the model knows
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
    """Base of everything this client raises.

    `message` is the server's own explanation where it gave one, `status` the HTTP status (None if
    no answer came), `request_id` what to look for in the server's log, `problem` the error's body,
    `retry_after` the seconds to wait if the server said so.
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
    """The request cannot be used as it is: shape, channels, dtype, NaN, size (4xx)."""


class NotFound(TurboFNOError):
    """No such model, version or route (404)."""


class Overloaded(TurboFNOError):
    """Still refused (429, 503) when retries or time ran out; come back after `retry_after` s."""


class DeadlineExceeded(TurboFNOError):
    """The time allowed passed: at the server before the work began (504), or here while waiting."""


class ServerError(TurboFNOError):
    """The server failed (5xx), or its answer could not be understood."""


class ConnectionFailed(TurboFNOError):
    """No answer came: nothing listens there, or the connection broke."""


class BlowUp(TurboFNOError):
    """A rollout left what the model knows: NaN, or energy beyond its training range. All frames before were given.

    `step` is the first that is not to be used, `reason` "not_finite" or "energy".
    """

    def __init__(self, message: str, response: httpx.Response, *, step: int, reason: str) -> None:
        super().__init__(message, response)
        self.step = step
        self.reason = reason


class PredictionWarning(UserWarning):
    """The server answered, and says why the answer may be worse than the model's card says."""


def issue(told: Sequence[str], *, depth: int) -> None:
    """Issue each text as a PredictionWarning on the line of the caller `depth` calls above."""
    for text in told:
        warnings.warn(text, PredictionWarning, stacklevel=depth + 1)


def error_of(outcome: httpx.Response | httpx.RequestError | None, allowed: float) -> TurboFNOError:
    """The error that a refusal or a failure to get any answer is; `allowed` are the seconds it had."""
    if isinstance(outcome, httpx.Response):
        problem, status = json_object(outcome), outcome.status_code
        kinds = {404: NotFound, 429: Overloaded, 503: Overloaded, 504: DeadlineExceeded}
        kind = kinds.get(status, BadInput if 400 <= status < 500 else ServerError)
        text = problem.get("detail") or problem.get("error") or outcome.text[:500]
        return kind(str(text or f"HTTP {status} {outcome.reason_phrase}"), outcome)
    assert outcome is not None, "a request was sent, so something came of it"
    timed_out = isinstance(outcome, httpx.TimeoutException)
    if timed_out and not isinstance(outcome, httpx.ConnectTimeout):
        return DeadlineExceeded(f"no answer within {allowed:g} s")
    where = outcome.request.url.copy_with(path="/", query=None)
    return ConnectionFailed(f"cannot reach {where}: {outcome or type(outcome).__name__}")


def json_object(response: httpx.Response) -> dict[str, Any]:
    """The JSON object of a body; {} if it is none."""
    try:
        body = response.json()
    except (ValueError, httpx.ResponseNotRead):
        return {}
    return body if isinstance(body, dict) else {}


def _seconds(retry_after: str) -> float | None:
    """Retry-After in either form that HTTP allows: a number of seconds or a date."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(retry_after))
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(retry_after).timestamp() - time.time())
    return None
