"""One request with retries, as a generator of requests and pauses."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Generator, Mapping
from typing import Any, Generic, TypeAlias, TypeVar

import httpx

from ._errors import BadInput, DeadlineExceeded, error_of

T = TypeVar("T")
HttpT = TypeVar("HttpT", httpx.Client, httpx.AsyncClient)
Outcome: TypeAlias = httpx.Response | httpx.RequestError | None
Steps: TypeAlias = Generator[httpx.Request | float, Outcome, T]
"""Yields a request to send, and receives its outcome; or yields seconds to wait. Returns a T."""

_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_CONNECT_SECONDS = 5.0
_LONGEST_SECONDS = 1e6
"""Sockets take no longer time limit than some weeks, nor an infinite one."""


class Http(Generic[HttpT]):
    """An httpx client, made anew for another owner of connections, a forked process or an event loop.

    On connections that they share, processes would read each other's responses.
    """

    def __init__(self, make: Callable[[], HttpT], owner: Callable[[], object]) -> None:
        self._make: Callable[[], HttpT] = make
        self._http: HttpT = make()
        self._current_owner = owner
        self._owner: object = None
        """Nobody until the first use."""

    def __call__(self) -> HttpT:
        owner = self._current_owner()
        if self._owner not in (None, owner) and not self._http.is_closed:
            self._http = self._make()
        self._owner = owner
        return self._http


class Exchange:
    """Requests to one server; `timeout` and `retries` are documented at the clients."""

    def __init__(
        self,
        http: Http[httpx.Client] | Http[httpx.AsyncClient],
        *,
        timeout: float,
        retries: int,
    ) -> None:
        self._http = http
        self._timeout = timeout
        self._retries = retries

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        deadline: float | None = None,
        content: bytes | None = None,
        params: Mapping[str, float | str] | None = None,
        stream: bool = False,
    ) -> Steps[httpx.Response]:
        """The response with status 200. Raises TurboFNOError for any other outcome.

        The `deadline` of a `stream` is for its start at the server: its bytes may come later.
        """
        if deadline is not None and math.isnan(deadline):
            raise BadInput("deadline must be a number of seconds, got nan")
        allowed = self._timeout if deadline is None else min(deadline, self._timeout)
        started = time.monotonic()
        give_up = started + allowed
        patience = self._timeout if stream else allowed
        pause = _FIRST_PAUSE
        tries_left = self._retries
        while True:
            now = time.monotonic()
            remaining = give_up - now
            if remaining <= 0:
                raise DeadlineExceeded(
                    f"no response within {allowed:g} s: allow more time, or send less"
                )
            limit = {} if deadline is None else {"X-Deadline-Ms": f"{remaining * 1e3:.6g}"}
            outcome = yield self._request(
                method,
                path,
                seconds=started + patience - now,
                content=content,
                headers={**headers, **limit},
                params=params,
            )
            if isinstance(outcome, httpx.Response) and outcome.status_code == 200:
                if stream:
                    # It has begun, so the time limit is now that of a pause between its pieces.
                    outcome.request.extensions["timeout"]["read"] = _limited(self._timeout)
                return outcome
            error = error_of(outcome, patience)
            # Retry if the server did no work, or if a proxy lost the server during the work: all calls are idempotent.
            refused = error.status in (429, 503) or isinstance(outcome, httpx.ConnectError)
            lost = error.status in (500, 502) and not _from_service(outcome)
            wait = (error.retry_after or 0.0) + pause * random.uniform(0.5, 1.0)
            if not (refused or lost) or not tries_left or time.monotonic() + wait >= give_up:
                raise error
            yield wait
            pause = min(2 * pause, _LONGEST_PAUSE)
            tries_left -= 1

    def _request(self, method: str, path: str, *, seconds: float, **what: Any) -> httpx.Request:
        http = self._http()
        if http.is_closed:
            raise BadInput("the client is closed: make a new one, or close it after the last call")
        limits = httpx.Timeout(_limited(seconds), connect=min(seconds, _CONNECT_SECONDS))
        return http.build_request(method, path, timeout=limits, **what)


def _limited(seconds: float) -> float:
    return min(seconds, _LONGEST_SECONDS)


def _from_service(outcome: Outcome) -> bool:
    """True if the response is from the service, whose errors are JSON, not from a proxy in front of it."""
    return isinstance(outcome, httpx.Response) and "json" in outcome.headers.get("content-type", "")
