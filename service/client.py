"""Client of a turbofno server: numpy arrays in, numpy arrays out, over one binary HTTP call.

Stands alone (httpx and numpy only), because it is shipped as the single module `turbofno_client`.

    with Client("http://127.0.0.1:8080") as client:
        solution = client.predict("burgers-1d", initial_state)
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import io
import json
import random
import re
import struct
import time
import warnings
import zipfile
from collections.abc import AsyncGenerator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, Self, TypeAlias, TypedDict, TypeVar, Unpack
from urllib.parse import quote

import httpx
import numpy as np
from numpy.typing import ArrayLike, NDArray

Fields = NDArray[np.float32]

_NPY = "application/x-npy"
_NPZ = "application/x-npz"
_FRAMES = "application/vnd.turbofno.frames"
_PREFIX = struct.Struct("<II")
_TIMING = re.compile(r"([\w-]+)\s*;[^,]*?dur=([0-9]+(?:\.[0-9]*)?)\s*(?=[,;]|$)")
_FIRST_PAUSE = 0.1
_LONGEST_PAUSE = 5.0
_CONNECT_SECONDS = 5.0
_READY_POLL_SECONDS = 0.1


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
        self.problem = {} if response is None else _json_object(response)
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


@dataclass(frozen=True, slots=True)
class Frame:
    """The fields of one step of a rollout: float32, in physical units, in the rank of the input."""

    step: int
    fields: Fields
    trust: dict[str, float] = field(default_factory=dict)
    """As in `Prediction`: the largest values of the steps since the frame before."""
    warnings: tuple[str, ...] = ()
    """In words, why frames from this one on may be worse than the model's card says; each is given once a rollout."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """One vector-Jacobian product: float32, `gradient` in the shape of the input, `output` in that of the cotangent."""

    gradient: Fields
    output: Fields | None
    """None if it was not asked for."""
    version: str | None
    request_id: str | None
    timings: dict[str, float]
    """Stage -> seconds, as the server measured them (its Server-Timing header)."""
    warnings: tuple[str, ...] = ()
    """In words, why the gradient may be worse than the model's card says."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """One answer: `fields` is float32, in physical units, in the rank of the input."""

    fields: Fields
    version: str | None
    request_id: str | None
    timings: dict[str, float]
    """Stage -> seconds, as the server measured them (its Server-Timing header)."""
    trust: dict[str, float] = field(default_factory=dict)
    """Signal -> its largest value over the fields, where the server can judge: `input_distance` (over 1 is unusual for
    the training data) and `residual` (about the relative error that the PDE shows)."""
    warnings: tuple[str, ...] = ()
    """In words, why the answer may be worse than the model's card says."""


T = TypeVar("T")
HttpT = TypeVar("HttpT", httpx.Client, httpx.AsyncClient)
_Outcome: TypeAlias = httpx.Response | httpx.RequestError | None
# What a call does is written once, as a generator that yields a request to send or the seconds to
# wait; `Client` carries it out blocking, `AsyncClient` awaiting.
_Steps: TypeAlias = Generator[httpx.Request | float, _Outcome, T]


class VjpOptions(TypedDict, total=False):
    """Keywords of `vjp` and `vjp_detailed`."""

    version: str | int | None
    """Which version of the model; the newest if None or not given."""
    deadline: float | None
    """Seconds after which the answer is of no use; the server then drops work not yet begun."""
    priority: int
    """1 is highest, 10 lowest; 0, the default, is in the middle (5)."""


class PredictOptions(VjpOptions, total=False):
    """Keywords of `predict` and `predict_detailed`."""

    output_grid: Sequence[int] | None
    """Points on each axis of the answer, whatever the input's; the model then runs on its training grid."""


class RolloutOptions(TypedDict, total=False):
    """Keywords of `rollout`."""

    frames: Literal["all", "last"] | int
    """All by default; k: those of steps k, 2 k, ... and the last."""
    start: int
    """Number of the step that the input is at, 0 by default: to resume from a frame."""
    version: str | int | None
    """Which version of the model; the newest if None or not given."""
    deadline: float | None
    """Seconds within which the first step must have begun."""


class _Calls(Generic[HttpT]):
    """How both clients are set up, and their calls as steps.

    Args:
        url: where the server listens, for example "http://127.0.0.1:8080".
        timeout: seconds a call may take, retries and the waits between them included.
        retries: how often a call is tried again after 429, 503, a refused connection, or a proxy's 500 or 502
            (the server behind it died), each time after the server's Retry-After plus a jittered, doubling
            pause. Nothing else is retried.
        headers: sent with every request, for example an Authorization.
        transport: the httpx transport to use, an async one for `AsyncClient`.
    """

    _http_class: type[HttpT]

    def __init__(
        self,
        url: str = "http://127.0.0.1:8080",
        *,
        timeout: float = 60.0,
        retries: int = 4,
        headers: Mapping[str, str] | None = None,
        transport: Any = None,
    ) -> None:
        if timeout <= 0 or retries < 0:
            raise ValueError(f"need timeout > 0 and retries >= 0, got {timeout=}, {retries=}")
        self._timeout = timeout
        self._retries = retries
        # Compressing float fields saves next to nothing and costs far more than it saves.
        self._http: HttpT = self._http_class(
            base_url=url,
            headers={"Accept-Encoding": "identity", **(headers or {})},
            transport=transport,
        )

    def _predict_steps(
        self, model: str, fields: ArrayLike, options: PredictOptions
    ) -> _Steps[Prediction]:
        params: dict[str, int | str] = {}
        if options.get("priority"):
            params["priority"] = options["priority"]
        if (grid := options.get("output_grid")) is not None:
            params["output_grid"] = ",".join(map(str, grid))
        response = yield from self._exchange(
            "POST",
            _model_path(model, options.get("version")) + ":predict",
            deadline=options.get("deadline"),
            content=_npy_bytes(fields),
            headers={"Content-Type": _NPY, "Accept": _NPY},
            params=params or None,
        )
        return Prediction(
            fields=_npy_array(response),
            version=response.headers.get("x-model-version"),
            request_id=response.headers.get("x-request-id"),
            timings=_timings(response),
            trust=_trust(response.headers),
            warnings=_told(response),
        )

    def _vjp_steps(
        self,
        model: str,
        fields: ArrayLike,
        cotangent: ArrayLike,
        options: VjpOptions,
        *,
        output: bool,
    ) -> _Steps[Gradient]:
        params = {"output": "true"} if output else {}
        if options.get("priority"):
            params["priority"] = str(options["priority"])
        response = yield from self._exchange(
            "POST",
            _model_path(model, options.get("version")) + ":vjp",
            deadline=options.get("deadline"),
            content=_npz_bytes(fields, cotangent),
            headers={"Content-Type": _NPZ, "Accept": _NPZ},
            params=params,
        )
        arrays = _npz_arrays(response, ("gradient", "output") if output else ("gradient",))
        return Gradient(
            gradient=arrays["gradient"],
            output=arrays.get("output"),
            version=response.headers.get("x-model-version"),
            request_id=response.headers.get("x-request-id"),
            timings=_timings(response),
            warnings=_told(response),
        )

    def _rollout_steps(
        self, model: str, fields: ArrayLike, steps: int, options: RolloutOptions
    ) -> _Steps[httpx.Response]:
        params = {"steps": steps, "frames": options.get("frames", "all")}
        return self._exchange(
            "POST",
            _model_path(model, options.get("version")) + ":rollout",
            deadline=options.get("deadline"),
            content=_npy_bytes(fields),
            headers={"Content-Type": _NPY, "Accept": _FRAMES},
            params={**params, "start": options.get("start", 0)},
        )

    def _json_steps(self, path: str, key: str, kind: type) -> _Steps[Any]:
        response = yield from self._exchange("GET", path, headers={"Accept": "application/json"})
        if isinstance((body := _json_object(response)).get(key), kind):
            return body
        raise ServerError("the answer is not as expected: is this a turbofno server?", response)

    def _ready_steps(self, seconds: float) -> _Steps[bool]:
        outcome = yield self._request("GET", "/readyz", seconds=seconds)
        return isinstance(outcome, httpx.Response) and outcome.status_code == 200

    def _wait_ready_steps(self, timeout: float) -> _Steps[None]:
        give_up = time.monotonic() + timeout
        while not (yield from self._ready_steps(max(give_up - time.monotonic(), 0.0))):
            if time.monotonic() + _READY_POLL_SECONDS > give_up:
                raise DeadlineExceeded(f"{self._http.base_url} not ready within {timeout:g} s")
            yield _READY_POLL_SECONDS

    def _exchange(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str],
        deadline: float | None = None,
        content: bytes | None = None,
        params: Mapping[str, int | str] | None = None,
    ) -> _Steps[httpx.Response]:
        """One request, tried again while the server says "later" and time is left."""
        allowed = self._timeout if deadline is None else min(deadline, self._timeout)
        give_up = time.monotonic() + allowed
        pause = _FIRST_PAUSE
        tries_left = self._retries
        while True:
            remaining = give_up - time.monotonic()
            if remaining <= 0:
                raise DeadlineExceeded(f"no answer within {allowed:g} s")
            limit = {} if deadline is None else {"X-Deadline-Ms": f"{remaining * 1e3:.6g}"}
            sent = {**headers, **limit}
            outcome = yield self._request(
                method, path, seconds=remaining, content=content, headers=sent, params=params
            )
            if isinstance(outcome, httpx.Response) and outcome.status_code == 200:
                return outcome
            error = _error(outcome, allowed)
            # Where the server did no work: it said "later", or there was no connection at all. And where a proxy
            # says, in words of its own, that it lost the server at work: no call does harm the second time.
            later = error.status in (429, 503) or isinstance(outcome, httpx.ConnectError)
            lost = error.status in (500, 502) and not _from_service(outcome)
            wait = (error.retry_after or 0.0) + pause * random.uniform(0.5, 1.0)
            if not (later or lost) or not tries_left or time.monotonic() + wait >= give_up:
                raise error
            yield wait
            pause = min(2 * pause, _LONGEST_PAUSE)
            tries_left -= 1

    def _request(self, method: str, path: str, *, seconds: float, **what: Any) -> httpx.Request:
        limits = httpx.Timeout(seconds, connect=min(seconds, _CONNECT_SECONDS))
        return self._http.build_request(method, path, timeout=limits, **what)


class Client(_Calls[httpx.Client]):
    """Blocking client of one server, safe to share between threads; `close` it or use `with`."""

    _http_class = httpx.Client

    def predict(self, model: str, fields: ArrayLike, **options: Unpack[PredictOptions]) -> Fields:
        """The model's answer to one field [channels, *grid] or a batch [n, channels, *grid].

        Args:
            model: name of a model the server has.
            fields: any real array, in the model's physical units; sent as float32.
            **options: version, deadline (seconds), priority, output_grid; see `PredictOptions`.

        Returns:
            float32, [channels, *grid] for one field and [n, channels, *grid] for a batch.

        Warns:
            PredictionWarning: the answer came with a warning, for example of a grid that nobody has evaluated.

        Raises:
            BadInput, NotFound, Overloaded, DeadlineExceeded, ServerError, ConnectionFailed.
        """
        prediction = self.predict_detailed(model, fields, **options)
        _warn(prediction.warnings)
        return prediction.fields

    def predict_detailed(
        self, model: str, fields: ArrayLike, **options: Unpack[PredictOptions]
    ) -> Prediction:
        """As `predict`, with version, request id and timings; warnings are told here, not issued."""
        return self._carry_out(self._predict_steps(model, fields, options))

    def vjp(
        self,
        model: str,
        fields: ArrayLike,
        cotangent: ArrayLike,
        **options: Unpack[VjpOptions],
    ) -> Fields:
        """The cotangent times the Jacobian of the model at these fields: dL/d(fields), if it is dL/d(output).

        Args:
            model, fields, **options: as `predict`.
            cotangent: any real array of the shape that `predict` answers with; sent as float32.

        Returns:
            float32, of the shape of `fields`.

        Raises:
            As `predict`; BadInput also if the model has no gradient.
        """
        gradient = self.vjp_detailed(model, fields, cotangent, **options)
        _warn(gradient.warnings)
        return gradient.gradient

    def vjp_detailed(
        self,
        model: str,
        fields: ArrayLike,
        cotangent: ArrayLike,
        *,
        output: bool = False,
        **options: Unpack[VjpOptions],
    ) -> Gradient:
        """As `vjp`, with version, request id and timings; with `output` also what `predict` answers.

        Warnings are told here, not issued.
        """
        return self._carry_out(self._vjp_steps(model, fields, cotangent, options, output=output))

    def objective(
        self,
        model: str,
        loss: Callable[[Fields], tuple[float, ArrayLike]],
        shape: Sequence[int],
        **options: Unpack[VjpOptions],
    ) -> Callable[[ArrayLike], tuple[float, NDArray[np.float64]]]:
        """A loss of the model's output as a function of its input, for `scipy.optimize.minimize(..., jac=True)`.

        Args:
            model, **options: as `vjp`.
            loss: takes the output, gives a number and its derivative with respect to the output.
            shape: of the input, [channels, *grid] or [n, channels, *grid].

        Returns:
            A function of a flat vector that gives the number and its float64 gradient. It asks the server twice, and
            raises as `predict`.
        """

        def value_and_gradient(x: ArrayLike) -> tuple[float, NDArray[np.float64]]:
            fields = np.reshape(x, tuple(shape))
            value, cotangent = loss(self.predict(model, fields, **options))
            gradient = self.vjp(model, fields, cotangent, **options)
            return float(value), gradient.astype(np.float64).ravel()

        return value_and_gradient

    def rollout(
        self, model: str, fields: ArrayLike, steps: int, **options: Unpack[RolloutOptions]
    ) -> Generator[Frame]:
        """Frames of an autoregressive model run on its own output until step `steps`, as they are made.

        Closing the generator, or leaving the loop over it, ends the rollout on the server. To resume after a lost
        connection: `rollout(model, frame.fields, steps, start=frame.step)`, with the last frame that came.

        Raises:
            BlowUp: after the last frame that can be used.
            As `predict`; ConnectionFailed also if the stream breaks off.
        """
        response = self._carry_out(self._rollout_steps(model, fields, steps, options), stream=True)
        with closing(response):
            _warn(_told(response))
            reader = _FrameReader(response, np.ndim(fields))
            try:
                for chunk in response.iter_raw():
                    for frame in reader.feed(chunk):
                        _warn(frame.warnings)
                        yield frame
            except httpx.RequestError as error:
                raise _error(error, self._timeout) from error
            reader.finish()

    def models(self) -> list[dict[str, Any]]:
        """Name, version, state, reason and description of every model, ready or not."""
        return list(self._carry_out(self._json_steps("/v1/models", "models", list))["models"])

    def model(self, name: str) -> dict[str, Any]:
        """Signature and card of one model: channels, units, grid limits, PDE. Raises NotFound."""
        return self._carry_out(self._json_steps(_model_path(name), "name", str))

    def ready(self) -> bool:
        """Whether the server answers and all its models are loaded and warm. Never raises."""
        return self._carry_out(self._ready_steps(self._timeout))

    def wait_ready(self, timeout: float = 60.0) -> None:
        """Return once the server is ready. Raises DeadlineExceeded after `timeout` seconds."""
        self._carry_out(self._wait_ready_steps(timeout))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _carry_out(self, steps: _Steps[T], *, stream: bool = False) -> T:
        outcome: _Outcome = None
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


class AsyncClient(_Calls[httpx.AsyncClient]):
    """`Client` for asyncio, method for method but `objective`: `await client.predict(...)`, `async with`."""

    _http_class = httpx.AsyncClient

    async def predict(
        self, model: str, fields: ArrayLike, **options: Unpack[PredictOptions]
    ) -> Fields:
        prediction = await self.predict_detailed(model, fields, **options)
        _warn(prediction.warnings)
        return prediction.fields

    async def predict_detailed(
        self, model: str, fields: ArrayLike, **options: Unpack[PredictOptions]
    ) -> Prediction:
        return await self._carry_out(self._predict_steps(model, fields, options))

    async def vjp(
        self,
        model: str,
        fields: ArrayLike,
        cotangent: ArrayLike,
        **options: Unpack[VjpOptions],
    ) -> Fields:
        gradient = await self.vjp_detailed(model, fields, cotangent, **options)
        _warn(gradient.warnings)
        return gradient.gradient

    async def vjp_detailed(
        self,
        model: str,
        fields: ArrayLike,
        cotangent: ArrayLike,
        *,
        output: bool = False,
        **options: Unpack[VjpOptions],
    ) -> Gradient:
        steps = self._vjp_steps(model, fields, cotangent, options, output=output)
        return await self._carry_out(steps)

    async def rollout(
        self, model: str, fields: ArrayLike, steps: int, **options: Unpack[RolloutOptions]
    ) -> AsyncGenerator[Frame]:
        response = await self._carry_out(
            self._rollout_steps(model, fields, steps, options), stream=True
        )
        try:
            _warn(_told(response))
            reader = _FrameReader(response, np.ndim(fields))
            try:
                async for chunk in response.aiter_raw():
                    for frame in reader.feed(chunk):
                        _warn(frame.warnings)
                        yield frame
            except httpx.RequestError as error:
                raise _error(error, self._timeout) from error
            reader.finish()
        finally:
            await response.aclose()

    async def models(self) -> list[dict[str, Any]]:
        return list(
            (await self._carry_out(self._json_steps("/v1/models", "models", list)))["models"]
        )

    async def model(self, name: str) -> dict[str, Any]:
        return await self._carry_out(self._json_steps(_model_path(name), "name", str))

    async def ready(self) -> bool:
        return await self._carry_out(self._ready_steps(self._timeout))

    async def wait_ready(self, timeout: float = 60.0) -> None:  # noqa: ASYNC109 (bounds polling)
        await self._carry_out(self._wait_ready_steps(timeout))

    async def close(self) -> None:
        await self._http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _carry_out(self, steps: _Steps[T], *, stream: bool = False) -> T:
        outcome: _Outcome = None
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


class _FrameReader:
    """The records of a stream of frames (the server's docs/rollouts.md) out of its bytes, cut anyhow."""

    def __init__(self, response: httpx.Response, rank: int) -> None:
        """`rank` is that of the input. Raises ServerError if the answer is no such stream."""
        if response.headers.get("content-type") != _FRAMES:
            message = "the answer is not a stream of frames: is this a turbofno server?"
            raise ServerError(message, response)
        self._response = response
        self._rank = rank
        self._bytes = bytearray()
        self._shape: tuple[int, ...] = ()
        self._last: dict[str, Any] = {}

    def feed(self, chunk: bytes) -> Iterator[Frame]:
        """The frames that this chunk completes."""
        self._bytes += chunk
        while (record := self._next_record()) is not None:
            event, payload = record
            self._last = event
            if event["event"] == "start":
                shape = tuple(event["shape"])
                self._shape = shape if self._rank == len(shape) else shape[1:]
            elif event["event"] == "frame":
                fields = np.frombuffer(payload, "<f4").astype(np.float32, copy=False)
                yield Frame(
                    event["step"],
                    fields.reshape(self._shape),
                    trust={name: max(found) for name, found in event.get("trust", {}).items()},
                    warnings=tuple(event.get("warnings", ())),
                )

    def finish(self) -> None:
        """Raise what the stream ended with, if that is no good end."""
        kind = self._last.get("event")
        if kind == "end":
            return
        if kind != "failed":
            raise ConnectionFailed(
                f"the rollout's stream broke off after {self._last or 'nothing'}"
            )
        detail, reason = str(self._last["detail"]), str(self._last["reason"])
        if reason in ("not_finite", "energy"):
            raise BlowUp(detail, self._response, step=self._last["step"], reason=reason)
        raise ServerError(detail, self._response)

    def _next_record(self) -> tuple[dict[str, Any], bytes] | None:
        if len(self._bytes) < _PREFIX.size:
            return None
        text, payload = _PREFIX.unpack_from(self._bytes)
        begin = _PREFIX.size + text
        if len(self._bytes) < begin + payload:
            return None
        event = json.loads(self._bytes[_PREFIX.size : begin])
        content = bytes(self._bytes[begin : begin + payload])
        del self._bytes[: begin + payload]
        return event, content


def _warn(told: Sequence[str]) -> None:
    """Issue what the server told, on the line that called the client's method."""
    for text in told:
        warnings.warn(text, PredictionWarning, stacklevel=3)


def _model_path(name: str, version: str | int | None = None) -> str:
    path = f"/v1/models/{quote(name, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def _timings(response: httpx.Response) -> dict[str, float]:
    found = _TIMING.findall(response.headers.get("server-timing", ""))
    return {stage: float(milliseconds) / 1e3 for stage, milliseconds in found}


def _real(fields: ArrayLike, what: str = "fields") -> Fields:
    array = np.asarray(fields)
    if array.dtype.kind not in "fiub":
        raise BadInput(f"{what} must be an array of real numbers, got dtype {array.dtype}")
    return np.asarray(array, dtype="<f4", order="C")


def _npy_bytes(fields: ArrayLike) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, _real(fields), allow_pickle=False)
    return buffer.getvalue()


def _npz_bytes(fields: ArrayLike, cotangent: ArrayLike) -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, input=_real(fields), cotangent=_real(cotangent, "the cotangent"))
    return buffer.getvalue()


def _npy_array(response: httpx.Response) -> Fields:
    try:
        array = np.lib.format.read_array(io.BytesIO(response.content), allow_pickle=False)
        return np.asarray(array, dtype=np.float32)
    except (ValueError, TypeError):
        message = "the answer is not a .npy array: is this a turbofno server?"
        raise ServerError(message, response) from None


def _npz_arrays(response: httpx.Response, names: Sequence[str]) -> dict[str, Fields]:
    try:
        with np.load(io.BytesIO(response.content), allow_pickle=False) as archive:
            return {name: np.asarray(archive[name], dtype=np.float32) for name in names}
    except (ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile):
        message = (
            f"the answer is not an .npz archive of {', '.join(names)}: is this a turbofno server?"
        )
        raise ServerError(message, response) from None


def _from_service(outcome: _Outcome) -> bool:
    """Whether the service itself answered: its errors are JSON, those of proxies in front of it are not."""
    return isinstance(outcome, httpx.Response) and "json" in outcome.headers.get("content-type", "")


def _told(response: httpx.Response) -> tuple[str, ...]:
    """The warnings that an answer came with."""
    return tuple(filter(None, response.headers.get("x-warning", "").split("; ")))


def _json_object(response: httpx.Response) -> dict[str, Any]:
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


def _trust(headers: httpx.Headers) -> dict[str, float]:
    prefix = "x-trust-"
    return {
        name.removeprefix(prefix).replace("-", "_"): float(value)
        for name, value in headers.items()
        if name.startswith(prefix)
    }


def _error(outcome: _Outcome, allowed: float) -> TurboFNOError:
    if isinstance(outcome, httpx.Response):
        problem, status = _json_object(outcome), outcome.status_code
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
