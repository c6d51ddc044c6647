"""The two clients: how they are set up, and each call of `_calls.py` carried out, blocking or awaiting."""

from __future__ import annotations

import asyncio
import inspect
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import update_wrapper
from typing import (
    Any,
    Concatenate,
    Generic,
    ParamSpec,
    Self,
    TypeAlias,
    TypeVar,
)

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

from ._answers import AnswerT, Frame, told
from ._arrays import Fields
from ._calls import Calls, Rollout, VjpOptions
from ._errors import error_of, issue
from ._exchange import Outcome, Steps

P = ParamSpec("P")
T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])
HttpT = TypeVar("HttpT", httpx.Client, httpx.AsyncClient)

_Call: TypeAlias = Callable[Concatenate[Calls, P], Steps[T]]
_CALLER = 2
"""Frames between the generator of a rollout and the loop over it."""


def _described(method: MethodT, call: Callable[..., Any], returns: str = "{}") -> MethodT:
    """The method with the name, docstring and signature of the call; it returns what those steps do."""
    update_wrapper(method, call)
    signature = inspect.signature(call)
    # "Steps[Fields]" -> "Fields"
    answer = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    told = signature.replace(return_annotation=returns.format(answer))
    vars(method).update(__signature__=told)
    return method


def _blocking(call: _Call[P, T]) -> Callable[Concatenate[Client, P], T]:
    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> T:
        return self._carry_out(call(self._calls, *args, **options))

    return _described(method, call)


def _awaiting(call: _Call[P, T]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    async def method(self: AsyncClient, /, *args: P.args, **options: P.kwargs) -> T:
        return await self._carry_out(call(self._calls, *args, **options))

    return _described(method, call)


def _streaming(
    call: Callable[Concatenate[Calls, P], Rollout[AnswerT]],
) -> Callable[Concatenate[Client, P], Generator[Frame[AnswerT]]]:
    def method(self: Client, /, *args: P.args, **options: P.kwargs) -> Generator[Frame[AnswerT]]:
        return self._stream(call(self._calls, *args, **options))

    return _described(method, call, "Generator[Frame[{}]]")


def _streaming_async(
    call: Callable[Concatenate[Calls, P], Rollout[AnswerT]],
) -> Callable[Concatenate[AsyncClient, P], AsyncGenerator[Frame[AnswerT]]]:
    def method(
        self: AsyncClient, /, *args: P.args, **options: P.kwargs
    ) -> AsyncGenerator[Frame[AnswerT]]:
        return self._stream(call(self._calls, *args, **options))

    return _described(method, call, "AsyncGenerator[Frame[{}]]")


class _Connection(Generic[HttpT]):
    _http_class: type[HttpT]

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        api_key: str | None = None,
        verify: bool | str | ssl.SSLContext = True,
        timeout: float = 60.0,
        retries: int = 4,
        headers: Mapping[str, str] | None = None,
        transport: Any = None,
    ) -> None:
        """Set the client up; nothing is sent yet.

        Args:
            url: where the server listens, for example "http://127.0.0.1:8080".
            api_key: sent with every request, for a server that asks for one.
            verify: how to check the certificate of a server with TLS: against the system's (True), against those
                in the file of this path, by an ssl.SSLContext, or not at all (False).
            timeout: seconds a call may take, retries and the waits between them included.
            retries: how often a call is tried again after 429, 503, a refused connection, or a proxy's 500 or 502
                (the server behind it died), each time after the server's Retry-After plus a jittered, doubling
                pause. Nothing else is retried.
            headers: sent with every request.
            transport: the httpx transport to use, an async one for `AsyncClient`.

        Raises:
            ValueError: a URL without http:// or https://, or a timeout or number of retries that makes no sense.
            OSError: the file of certificates cannot be read.
        """
        if timeout <= 0 or retries < 0:
            raise ValueError(f"need timeout > 0 and retries >= 0, got {timeout=}, {retries=}")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"the URL must begin with http:// or https://, got {url!r}")
        authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: HttpT = self._http_class(
            base_url=url,
            # Compressing float fields saves next to nothing and costs far more than it saves.
            headers={"Accept-Encoding": "identity", **authorization, **(headers or {})},
            verify=ssl.create_default_context(cafile=verify) if isinstance(verify, str) else verify,
            transport=transport,
        )
        self._timeout = timeout
        self._calls = Calls(self._http, timeout=timeout, retries=retries)


class Client(_Connection[httpx.Client]):
    """Blocking client of one server, safe to share between threads; `close` it or use `with`."""

    _http_class = httpx.Client

    predict = _blocking(Calls.predict)
    predict_detailed = _blocking(Calls.predict_detailed)
    vjp = _blocking(Calls.vjp)
    vjp_detailed = _blocking(Calls.vjp_detailed)
    rollout = _streaming(Calls.rollout)
    sample = _blocking(Calls.sample)
    solve = _blocking(Calls.solve)
    models = _blocking(Calls.models)
    model = _blocking(Calls.model)
    card = _blocking(Calls.card)
    ready = _blocking(Calls.ready)
    wait_ready = _blocking(Calls.wait_ready)

    def objective(
        self,
        model: str,
        loss: Callable[[Fields], tuple[float, ArrayLike]],
        shape: Sequence[int],
        *,
        version: str | int | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> Callable[[ArrayLike], tuple[float, NDArray[np.float64]]]:
        """Make a loss of the model's output a function of its input, for `scipy.optimize.minimize(..., jac=True)`.

        Args:
            model, version, deadline, priority: as `predict`.
            loss: takes the output, float32 as `predict` gives it, and returns a number and its derivative with
                respect to the output.
            shape: of the input, [n, channels, *grid], [channels, *grid], or [*grid] of one channel.

        Returns:
            A function of a flat vector, in the units of the input, that gives the number and its float64 gradient.
            It asks the server twice, and raises as `predict`.
        """
        options: VjpOptions = {"version": version, "deadline": deadline, "priority": priority}

        def value_and_gradient(x: ArrayLike) -> tuple[float, NDArray[np.float64]]:
            fields = np.reshape(x, tuple(shape))
            value, cotangent = loss(self.predict(model, fields, **options))
            gradient = self.vjp(model, fields, cotangent, **options)
            return float(value), gradient.astype(np.float64).ravel()

        return value_and_gradient

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry_out(self, steps: Steps[T], *, stream: bool = False) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                return done.value
            outcome = None
            if isinstance(step, float):
                time.sleep(step)
                continue
            try:
                outcome = self._http.send(step, stream=stream)
                if stream and outcome.status_code != 200:
                    outcome.read()
            except httpx.RequestError as error:
                outcome = error

    def _stream(self, rollout: Rollout[AnswerT]) -> Generator[Frame[AnswerT]]:
        response = self._carry_out(rollout.opening, stream=True)
        with closing(response):
            rollout.reader.begin(response)
            issue(told(response), depth=_CALLER)
            try:
                for chunk in response.iter_raw():
                    for frame in rollout.reader.feed(chunk):
                        issue(frame.warnings, depth=_CALLER)
                        yield frame
            except httpx.RequestError as error:
                raise error_of(error, self._timeout) from error
            rollout.reader.finish(response)


class AsyncClient(_Connection[httpx.AsyncClient]):
    """`Client` for asyncio: `await client.predict(...)`, `async for frame in client.rollout(...)`, `async with`."""

    _http_class = httpx.AsyncClient

    predict = _awaiting(Calls.predict)
    predict_detailed = _awaiting(Calls.predict_detailed)
    vjp = _awaiting(Calls.vjp)
    vjp_detailed = _awaiting(Calls.vjp_detailed)
    rollout = _streaming_async(Calls.rollout)
    sample = _awaiting(Calls.sample)
    solve = _awaiting(Calls.solve)
    models = _awaiting(Calls.models)
    model = _awaiting(Calls.model)
    card = _awaiting(Calls.card)
    ready = _awaiting(Calls.ready)
    wait_ready = _awaiting(Calls.wait_ready)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _carry_out(self, steps: Steps[T], *, stream: bool = False) -> T:
        outcome: Outcome = None
        while True:
            try:
                step = steps.send(outcome)
            except StopIteration as done:
                return done.value
            outcome = None
            if isinstance(step, float):
                await asyncio.sleep(step)
                continue
            try:
                outcome = await self._http.send(step, stream=stream)
                if stream and outcome.status_code != 200:
                    await outcome.aread()
            except httpx.RequestError as error:
                outcome = error

    async def _stream(self, rollout: Rollout[AnswerT]) -> AsyncGenerator[Frame[AnswerT]]:
        response = await self._carry_out(rollout.opening, stream=True)
        async with aclosing(response):
            rollout.reader.begin(response)
            issue(told(response), depth=_CALLER)
            try:
                async for chunk in response.aiter_raw():
                    for frame in rollout.reader.feed(chunk):
                        issue(frame.warnings, depth=_CALLER)
                        yield frame
            except httpx.RequestError as error:
                raise error_of(error, self._timeout) from error
            rollout.reader.finish(response)
