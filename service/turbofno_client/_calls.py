"""The calls of the API: arguments, request, and result of each.

Each call is a generator of requests and pauses (`_exchange.py`), from which `_clients.py` makes a blocking and an async
method.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, Unpack, overload
from urllib.parse import quote

import httpx
import numpy as np
from numpy.typing import ArrayLike

from ._answers import AnswerT, Gradient, Prediction, about, trust
from ._arrays import NPY, NPZ, Fields, Inputs, Named, decode, encode, npz_arrays, npz_bytes
from ._errors import BadInput, DeadlineExceeded, ServerError, issue, json_object
from ._exchange import Exchange, Steps
from ._frames import FRAMES, FrameReader

_READY_POLL_SECONDS = 0.1
_CALLER = 4
"""Stack depth from one of these generators to the caller of the client's method, for warnings."""


class VjpOptions(TypedDict, total=False):
    """Keywords of `vjp`, for overloads."""

    version: str | int | None
    deadline: float | None
    priority: int


class PredictOptions(VjpOptions, total=False):
    """Keywords of `predict`, for overloads."""

    output_grid: Sequence[int] | None


class RolloutOptions(TypedDict, total=False):
    """Keywords of `rollout`, for overloads."""

    frames: Literal["all", "last"] | int
    start: int
    version: str | int | None
    deadline: float | None


class SolveOptions(TypedDict, total=False):
    """Keywords of `solve` for a field, for overloads."""

    steps: int


@dataclass(frozen=True, slots=True)
class Rollout(Generic[AnswerT]):
    """The request that starts a rollout, and the parser of its response."""

    opening: Steps[httpx.Response]
    reader: FrameReader[AnswerT]


class Calls(Exchange):
    """The calls to one server."""

    @overload
    def predict(
        self, model: str, fields: Mapping[str, ArrayLike], **options: Unpack[PredictOptions]
    ) -> Steps[Named]: ...
    @overload
    def predict(
        self, model: str, fields: ArrayLike, **options: Unpack[PredictOptions]
    ) -> Steps[Fields]: ...
    def predict(
        self,
        model: str,
        fields: Inputs,
        *,
        version: str | int | None = None,
        deadline: float | None = None,
        priority: int = 0,
        output_grid: Sequence[int] | None = None,
    ) -> Steps[Fields | Named]:
        """Predict the solution for each field.

        Args:
            model: name of a model of the server.
            fields: real numbers of any dtype, in the model's physical units, sent as float32: a batch
                [n, channels, *grid], one field [channels, *grid], or, for a model with one channel, one field [*grid].
                Or a dict of input channel name -> array [n, *grid] or [*grid].
            version: version of the model; the newest if None.
            deadline: seconds after which the result is useless; the server then drops work that it has not started.
            priority: 1 (highest) to 10 (lowest); 0 stands for 5.
            output_grid: points on each axis of the output, by default those of the input; the model then runs on its
                training grid.

        Returns:
            float32, in physical units, in the layout of the input: [n, channels, *grid], [channels, *grid] or, with one
            output channel, [*grid]. For a dict, a dict of output channel name -> array.

        Warns:
            PredictionWarning: for each warning of the server, for example about a grid on which the model was not
                evaluated.

        Raises:
            BadInput: the server or the client cannot use these fields or arguments.
            NotFound: the server has no such model or version.
            Overloaded: the server refused the request until retries or time ran out.
            DeadlineExceeded: the deadline or the client's timeout passed.
            ServerError: the server failed.
            ConnectionFailed: the server cannot be reached.
        """
        prediction: Prediction[Any] = yield from self.predict_detailed(
            model, fields, version=version, deadline=deadline, priority=priority, output_grid=output_grid
        )  # fmt: skip
        issue(prediction.warnings, depth=_CALLER)
        return prediction.fields

    @overload
    def predict_detailed(
        self, model: str, fields: Mapping[str, ArrayLike], **options: Unpack[PredictOptions]
    ) -> Steps[Prediction[Named]]: ...
    @overload
    def predict_detailed(
        self, model: str, fields: ArrayLike, **options: Unpack[PredictOptions]
    ) -> Steps[Prediction[Fields]]: ...
    def predict_detailed(
        self,
        model: str,
        fields: Inputs,
        *,
        version: str | int | None = None,
        deadline: float | None = None,
        priority: int = 0,
        output_grid: Sequence[int] | None = None,
    ) -> Steps[Prediction[Any]]:
        """Predict as `predict` does, and return version, request id, timings and trust signals too.

        Args:
            model, fields, version, deadline, priority, output_grid: as for `predict`.

        Returns:
            A Prediction, whose `fields` are the result of `predict`. Warnings are in it, not issued.

        Raises:
            TurboFNOError: as `predict`.
        """
        params: dict[str, int | str] = {"priority": priority} if priority else {}
        if output_grid is not None:
            # The digits of "64" would be a grid of two axes.
            if isinstance(output_grid, str) or not np.iterable(output_grid):
                raise BadInput(
                    f"output_grid must have the points on each axis of the output, such as (64, 64), got {output_grid!r}"
                )
            params["output_grid"] = ",".join(map(str, output_grid))
        media_type, content = encode(fields)
        response = yield from self._exchange(
            "POST",
            _path(model, version) + ":predict",
            deadline=deadline,
            content=content,
            headers={"Content-Type": media_type, "Accept": media_type},
            params=params,
        )
        return Prediction(
            decode(response, media_type),
            trust=trust(response),
            trust_status=response.headers.get("x-trust", ""),
            **about(response),
        )

    @overload
    def vjp(
        self,
        model: str,
        fields: Mapping[str, ArrayLike],
        cotangent: Inputs,
        **options: Unpack[VjpOptions],
    ) -> Steps[Named]: ...
    @overload
    def vjp(
        self, model: str, fields: ArrayLike, cotangent: Inputs, **options: Unpack[VjpOptions]
    ) -> Steps[Fields]: ...
    def vjp(
        self,
        model: str,
        fields: Inputs,
        cotangent: Inputs,
        *,
        version: str | int | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> Steps[Fields | Named]:
        """Compute a vector-Jacobian product of the model: the gradient dL/d(fields), given dL/d(output).

        Args:
            model, fields, version, deadline, priority: as for `predict`.
            cotangent: dL/d(output), real numbers in the shape of the output of `predict`, sent as float32. Or a dict of
                output channel name -> array. In units of L over units of the output.

        Returns:
            dL/d(fields), float32, in the layout of `fields`, in units of L over units of the input. For a dict, a dict
            of input channel name -> array.

        Warns:
            PredictionWarning: as `predict`.

        Raises:
            TurboFNOError: as `predict`; BadInput also if the model has no gradient.
        """
        gradient: Gradient[Any] = yield from self.vjp_detailed(
            model, fields, cotangent, version=version, deadline=deadline, priority=priority
        )
        issue(gradient.warnings, depth=_CALLER)
        return gradient.gradient

    @overload
    def vjp_detailed(
        self,
        model: str,
        fields: Mapping[str, ArrayLike],
        cotangent: Inputs,
        *,
        output: bool = False,
        **options: Unpack[VjpOptions],
    ) -> Steps[Gradient[Named]]: ...
    @overload
    def vjp_detailed(
        self,
        model: str,
        fields: ArrayLike,
        cotangent: Inputs,
        *,
        output: bool = False,
        **options: Unpack[VjpOptions],
    ) -> Steps[Gradient[Fields]]: ...
    def vjp_detailed(
        self,
        model: str,
        fields: Inputs,
        cotangent: Inputs,
        *,
        output: bool = False,
        version: str | int | None = None,
        deadline: float | None = None,
        priority: int = 0,
    ) -> Steps[Gradient[Any]]:
        """Compute the gradient as `vjp` does, and return version, request id and timings too.

        Args:
            model, fields, cotangent, version, deadline, priority: as for `vjp`.
            output: return the model's output too, in the layout of the cotangent.

        Returns:
            A Gradient, whose `gradient` is the result of `vjp`. Warnings are in it, not issued.

        Raises:
            TurboFNOError: as `vjp`.
        """
        params: dict[str, int | str] = {"priority": priority} if priority else {}
        sent = _named("input", fields) | _dotted("cotangent", cotangent)
        response = yield from self._exchange(
            "POST",
            _path(model, version) + ":vjp",
            deadline=deadline,
            content=npz_bytes(sent),
            headers={"Content-Type": NPZ, "Accept": NPZ},
            params=params | ({"output": "true"} if output else {}),
        )
        arrays = npz_arrays(response)
        return Gradient(
            gradient=_undotted(
                "gradient", arrays, response, single=not isinstance(fields, Mapping)
            ),
            output=_undotted("output", arrays, response, single=not isinstance(cotangent, Mapping))
            if output
            else None,
            **about(response),
        )

    @overload
    def rollout(
        self,
        model: str,
        fields: Mapping[str, ArrayLike],
        steps: int,
        **options: Unpack[RolloutOptions],
    ) -> Rollout[Named]: ...
    @overload
    def rollout(
        self, model: str, fields: ArrayLike, steps: int, **options: Unpack[RolloutOptions]
    ) -> Rollout[Fields]: ...
    def rollout(
        self,
        model: str,
        fields: Inputs,
        steps: int,
        *,
        frames: Literal["all", "last"] | int = "all",
        start: int = 0,
        version: str | int | None = None,
        deadline: float | None = None,
    ) -> Rollout[Any]:
        """Run an autoregressive model on its own output up to step `steps`; yield frames as they are computed.

        To end the rollout on the server, close the generator or leave the loop over it. To resume after a lost
        connection, call `rollout(model, frame.fields, steps, start=frame.step)` with the last received frame. A model of
        several past states (`past_steps` of `model(name)`) takes as many frames, one after the other on the axis of
        channels.

        Args:
            model, fields, version: as for `predict`.
            steps: number of the last step.
            frames: "all", "last", or k for the steps k, 2 k, ... and the last.
            start: number of the step of the input, to resume a rollout.
            deadline: seconds within which the first step must start.

        Returns:
            A generator of Frames: float32, in physical units, in the layout of the input.

        Warns:
            PredictionWarning: as `predict`, with the first frame that it applies to.

        Raises:
            BlowUp: the rollout diverged; raised after its last usable frame.
            TurboFNOError: as `predict`; ConnectionFailed also if the stream breaks off.
        """
        media_type, content = encode(fields)
        opening = self._exchange(
            "POST",
            _path(model, version) + ":rollout",
            deadline=deadline,
            content=content,
            headers={"Content-Type": media_type, "Accept": FRAMES},
            params={"steps": steps, "frames": frames, "start": start},
            stream=True,
        )
        return Rollout(opening, FrameReader(fields))

    def sample(
        self,
        model: str,
        seed: int = 0,
        *,
        grid: int | None = None,
        parameters: Mapping[str, float] | None = None,
    ) -> Steps[Fields]:
        """Draw a random input for a model of the zoo, from a server with the setting `ui`.

        Args:
            model: name of a model whose description (`model(name)`) has a `reference`.
            seed: number of the sample, 0 to 2**20 - 1.
            grid: points on each axis; those of the training grid if None.
            parameters: values of the sampler's parameters, which `model(name)["reference"]["parameters"]` lists. The
                default is the distribution of the training data.

        Returns:
            float32 [channels, *grid], in the model's physical units.

        Raises:
            TurboFNOError: as `predict`; NotFound also if there is no sampler, BadInput if the server has them disabled.
        """
        response = yield from self._exchange(
            "GET",
            _path(model) + "/sample",
            headers={"Accept": NPY},
            params=_sample(seed, grid, parameters),
        )
        return decode(response, NPY)

    @overload
    def solve(
        self, model: str, fields: Mapping[str, ArrayLike], **options: Unpack[SolveOptions]
    ) -> Steps[Named]: ...
    @overload
    def solve(
        self,
        model: str,
        fields: ArrayLike | None = None,
        *,
        seed: int | None = None,
        grid: int | None = None,
        parameters: Mapping[str, float] | None = None,
        steps: int = 1,
    ) -> Steps[Fields]: ...
    def solve(
        self,
        model: str,
        fields: Inputs | None = None,
        *,
        seed: int | None = None,
        grid: int | None = None,
        parameters: Mapping[str, float] | None = None,
        steps: int = 1,
    ) -> Steps[Fields | Named]:
        """Solve the model's PDE numerically, for one field or for a sample by its seed.

        Args:
            model: as for `sample`.
            fields: one field as for `predict`, not a batch; it is interpolated to the solver's grid.
            seed, grid, parameters: as for `sample`; the sample is drawn on the solver's grid.
            steps: number of the model's time steps, for an autoregressive model.

        Returns:
            The solution, float32, in physical units, in the layout of the input; for a sample [channels, *grid].

        Raises:
            TurboFNOError: as `sample`; BadInput also without field and seed, or with both.
        """
        if (fields is None) == (seed is None):
            raise BadInput("solve needs either a field or the seed of a sample: give exactly one")
        media_type, content = (NPY, None) if fields is None else encode(fields)
        body = {} if content is None else {"Content-Type": media_type}
        response = yield from self._exchange(
            "POST",
            _path(model) + ":solve",
            content=content,
            headers={**body, "Accept": media_type},
            params={**_sample(seed, grid, parameters), **({"steps": steps} if steps != 1 else {})},
        )
        return decode(response, media_type)

    def models(self) -> Steps[list[dict[str, Any]]]:
        """List all models, ready or not: name, version, state, reason, description. Raises the errors of `predict`."""
        body = yield from self._json("/v1/models", "models", list)
        return list(body["models"])

    def model(self, name: str, *, version: str | int | None = None) -> Steps[dict[str, Any]]:
        """Describe one model: channels with units, grid limits, PDE, measured errors.

        Args:
            name, version: as `model` and `version` of `predict`.

        Raises:
            TurboFNOError: as `predict`.
        """
        return (yield from self._json(_path(name, version), "name", str))

    def card(self, name: str) -> Steps[str]:
        """Return the model card in Markdown: intended use, training, measured errors.

        Raises the errors of `predict`; NotFound also if the model has no card.
        """
        response = yield from self._exchange("GET", _path(name) + "/card", headers={})
        return response.text

    def ready(self) -> Steps[bool]:
        """True if the server responds, and all its models are loaded and warm. Raises only if the client is closed."""
        return (yield from self._ready(self._timeout))

    def wait_ready(self, timeout: float = 60.0) -> Steps[None]:
        """Wait until the server is ready. Raises DeadlineExceeded after `timeout` seconds."""
        give_up = time.monotonic() + timeout
        while not (yield from self._ready(max(give_up - time.monotonic(), 0.0))):
            if time.monotonic() + _READY_POLL_SECONDS > give_up:
                raise DeadlineExceeded(
                    f"{self._http().base_url} was not ready within {timeout:g} s: see GET /readyz and the server's log"
                )
            yield _READY_POLL_SECONDS

    def _ready(self, seconds: float) -> Steps[bool]:
        outcome = yield self._request("GET", "/readyz", seconds=seconds)
        return isinstance(outcome, httpx.Response) and outcome.status_code == 200

    def _json(self, path: str, key: str, kind: type) -> Steps[dict[str, Any]]:
        response = yield from self._exchange("GET", path, headers={"Accept": "application/json"})
        if isinstance((body := json_object(response)).get(key), kind):
            return body
        raise ServerError("the response has an unknown form: is this a turbofno server?", response)


def _path(model: str, version: str | int | None = None) -> str:
    path = f"/v1/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def _sample(
    seed: int | None, grid: int | None, parameters: Mapping[str, float] | None
) -> dict[str, int | float]:
    """The query of a sample, without values that are None."""
    for name in ("seed", "grid", "steps"):
        if name in (parameters or {}):
            raise BadInput(f"{name} is an argument of its own, not one of `parameters`")
    if np.iterable(grid):
        raise BadInput(f"grid must be one number of points, that of every axis, got {grid!r}")
    chosen = {"seed": seed, "grid": grid}
    return {
        **(parameters or {}),
        **{name: value for name, value in chosen.items() if value is not None},
    }


def _named(name: str, arrays: Inputs) -> dict[str, ArrayLike]:
    return dict(arrays) if isinstance(arrays, Mapping) else {name: arrays}


def _dotted(name: str, arrays: Inputs) -> dict[str, ArrayLike]:
    if isinstance(arrays, Mapping):
        return {f"{name}.{channel}": array for channel, array in arrays.items()}
    return {name: arrays}


def _undotted(name: str, arrays: Named, response: httpx.Response, *, single: bool) -> Any:
    """The array `name`, or a dict of the arrays `name.CHANNEL` by channel."""
    if single and name in arrays:
        return arrays[name]
    dotted = {
        key.removeprefix(f"{name}."): array
        for key, array in arrays.items()
        if key.startswith(f"{name}.")
    }
    if single or not dotted:
        raise ServerError(
            f"the response is not an .npz archive with {name}: is this a turbofno server?", response
        )
    return dotted
