"""The blocking and the asyncio client: they run the generators of `_calls.py`."""

from __future__ import annotations

import asyncio
import inspect
import os
import ssl
import time
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Mapping, Sequence
from contextlib import aclosing, closing
from functools import partial, update_wrapper
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

from ._answers import AnswerT, Frame, warnings_of
from ._arrays import Fields
from ._calls import Calls, Rollout, VjpOptions
from ._errors import error_of, issue
from ._exchange import Http, HttpT, Outcome, Steps

P = ParamSpec("P")
T = TypeVar("T")
MethodT = TypeVar("MethodT", bound=Callable[..., Any])

_Call: TypeAlias = Callable[Concatenate[Calls, P], Steps[T]]
_CALLER = 2
"""Stack depth from the generator of a rollout to the loop over it, for warnings."""
_CONNECTIONS = 100
"""Most connections of an httpx client, by default."""


def _described(method: MethodT, call: Callable[..., Any], returns: str = "{}") -> MethodT:
    """Give the method the name, docstring and signature of the call, with the return type of its generator."""
    update_wrapper(method, call)
    signature = inspect.signature(call)
    # "Steps[Fields]" -> "Fields"
    result = str(signature.return_annotation).partition("[")[2].removesuffix("]")
    vars(method).update(__signature__=signature.replace(return_annotation=returns.format(result)))
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
    _owner: Callable[[], object]
    """Returns the process, and the event loop if any, to which connections belong."""

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
        """Create a client; no request is sent yet.

        Args:
            url: address of the server, for example "http://127.0.0.1:8080".
            api_key: sent with every request, for a server with API keys.
            verify: how to check the server's TLS certificate: with the system's certificate authorities (True), with
                those in the file of this path, with an ssl.SSLContext, or not at all (False).
            timeout: seconds that a call may take until its response begins, including retries and the pauses between them;
                above 0. After that, the longest pause between two pieces of the response, which as a whole may take longer.
            retries: maximum number of retries of a call; 0 for none. Retried are 429, 503, refused connections, and
                500 or 502 from a proxy whose server died, each after the server's Retry-After plus a random pause
                that doubles each time. Other errors are not retried.
            headers: sent with every request.
            transport: the httpx transport to use; an async one for `AsyncClient`. With it forked processes and event loops need
                clients of their own.

        Raises:
            ValueError: a URL without http:// or https://, a key that no header can hold, timeout <= 0, or retries < 0.
            OSError: the file of certificates cannot be read.
        """
        if not timeout > 0 or retries < 0:
            raise ValueError(f"expected timeout > 0 and retries >= 0, got {timeout=}, {retries=}")
        if not url.startswith(("http://", "https://")):
            raise ValueError(f"expected a URL that begins with http:// or https://, got {url!r}")
        if api_key and not (api_key.isascii() and api_key.isprintable()):
            raise ValueError(
                "expected an api_key of printable ASCII characters; one that is read from a file may end with a line break "
                "(key.strip() removes it)"
            )
        if verify is True or isinstance(verify, str):
            try:
                # httpx would take the authorities of the package certifi instead of the system's.
                verify = ssl.create_default_context(cafile=None if verify is True else verify)
            except OSError as error:
                raise type(error)(
                    error.errno,
                    f"cannot read certificate authorities from {verify!r}, expected the path of a PEM file: {error.strerror}",
                ) from None
        authorization = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._http: Http[HttpT] = Http(
            partial(
                self._http_class,
                base_url=url,
                # Compressing float fields takes more time than it saves.
                headers={"Accept-Encoding": "identity", **authorization, **(headers or {})},
                verify=verify,
                transport=transport,
            ),
            self._owner,
        )
        self._timeout = timeout
        self._calls = Calls(self._http, timeout=timeout, retries=retries)


class Client(_Connection[httpx.Client]):
    """Blocking client of one server. Threads and forked processes may share it. Use `with`, or call `close`."""

    _http_class = httpx.Client
    _owner = staticmethod(os.getpid)

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
        """Turn a loss of the model's output into a function of its input, for `scipy.optimize.minimize(..., jac=True)`.

        Args:
            model, version, deadline, priority: as for `predict`.
            loss: takes the output of `predict` (float32), returns a number and its derivative by the output, an array
                in the shape of the output.
            shape: shape of the input: [n, channels, *grid], [channels, *grid] or, for one channel, [*grid].

        Returns:
            A function of a flat vector in the units of the input. It returns the loss and its gradient, a flat float64
            vector. It sends two requests, and raises the errors of `predict` and `vjp`.
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
        self._http().close()

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
                outcome = self._http().send(step, stream=stream)
                if stream and outcome.status_code != 200:
                    outcome.read()
            except httpx.RequestError as error:
                outcome = error

    def _stream(self, rollout: Rollout[AnswerT]) -> Generator[Frame[AnswerT]]:
        response = self._carry_out(rollout.opening, stream=True)
        with closing(response):
            rollout.reader.begin(response)
            issue(warnings_of(response), depth=_CALLER)
            try:
                for chunk in response.iter_raw():
                    for frame in rollout.reader.feed(chunk):
                        issue(frame.warnings, depth=_CALLER)
                        yield frame
            except httpx.RequestError as error:
                raise error_of(error, self._timeout) from error
            rollout.reader.finish(response)


class _AsyncHttp(httpx.AsyncClient):
    """Lets requests wait for a connection before httpx, which with some hundreds of them blocks the event loop for seconds.

    Streams keep their connection for longer than `send` and are not counted.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._turns = asyncio.Semaphore(_CONNECTIONS)

    async def send(
        self, request: httpx.Request, *, stream: bool = False, **options: Any
    ) -> httpx.Response:
        if stream:
            return await super().send(request, stream=True, **options)
        limits, begun = request.extensions["timeout"], time.monotonic()
        try:
            async with asyncio.timeout(limits["pool"]):
                await self._turns.acquire()
        except TimeoutError:
            raise httpx.PoolTimeout("no free connection", request=request) from None
        # the time that is left for the response
        limits["read"] -= time.monotonic() - begun
        try:
            return await super().send(request, **options)
        finally:
            self._turns.release()


class AsyncClient(_Connection[httpx.AsyncClient]):
    """`Client` for asyncio: `await client.predict(...)`, `async for frame in client.rollout(...)`, `async with`.

    Event loops that run one after the other may share it.
    """

    _http_class = _AsyncHttp

    @staticmethod
    def _owner() -> object:
        return os.getpid(), asyncio.get_running_loop()

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
        await self._http().aclose()

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
                outcome = await self._http().send(step, stream=stream)
                if stream and outcome.status_code != 200:
                    await outcome.aread()
            except httpx.RequestError as error:
                outcome = error

    async def _stream(self, rollout: Rollout[AnswerT]) -> AsyncGenerator[Frame[AnswerT]]:
        response = await self._carry_out(rollout.opening, stream=True)
        async with aclosing(response):
            rollout.reader.begin(response)
            issue(warnings_of(response), depth=_CALLER)
            try:
                async for chunk in response.aiter_raw():
                    for frame in rollout.reader.feed(chunk):
                        issue(frame.warnings, depth=_CALLER)
                        yield frame
            except httpx.RequestError as error:
                raise error_of(error, self._timeout) from error
            rollout.reader.finish(response)
