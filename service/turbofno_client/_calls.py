"""Every call of the API once: its keywords, its request, and what its answer means.

A call is a generator that yields requests to send and seconds to wait (`_exchange.py`); `_clients.py` makes a
blocking and an awaiting method of each.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypedDict, Unpack, overload
from urllib.parse import quote

import httpx
from numpy.typing import ArrayLike

from ._answers import AnswerT, Gradient, Prediction, about, trust
from ._arrays import NPY, NPZ, Fields, Inputs, Named, decode, encode, npz_arrays, npz_bytes
from ._errors import BadInput, DeadlineExceeded, ServerError, issue, json_object
from ._exchange import Exchange, Steps
from ._frames import FRAMES, FrameReader

_READY_POLL_SECONDS = 0.1
_CALLER = 4
"""Frames between one of these generators and the code that called the client's method."""


class VjpOptions(TypedDict, total=False):
    """For type checkers: keywords of `vjp`, wherever an answer's type depends on the input's."""

    version: str | int | None
    deadline: float | None
    priority: int


class PredictOptions(VjpOptions, total=False):
    """The same of `predict`."""

    output_grid: Sequence[int] | None


class RolloutOptions(TypedDict, total=False):
    """The same of `rollout`."""

    frames: Literal["all", "last"] | int
    start: int
    version: str | int | None
    deadline: float | None


class SolveOptions(TypedDict, total=False):
    """The same of `solve`, for a field."""

    steps: int


@dataclass(frozen=True, slots=True)
class Rollout(Generic[AnswerT]):
    """A rollout to begin, and what reads its frames."""

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
        """Ask the model for the solution that belongs to each field.

        Args:
            model: name of a model that the server has.
            fields: real numbers of any dtype, in the model's physical units, sent as float32: a batch
                [n, channels, *grid], one field [channels, *grid], or, for one channel, one field [*grid]. Or a
                dict with an array [n, *grid] or [*grid] for each input channel's name.
            version: of the model; the newest if None.
            deadline: seconds after which the answer is of no use; the server then drops work not yet begun.
            priority: 1 is highest, 10 lowest; 0, the default, is in the middle (5).
            output_grid: points on each axis of the answer, whatever the input's; the model then runs on the
                grid that it was trained on.

        Returns:
            float32, in physical units, laid out as the input: [n, channels, *grid], [channels, *grid], or
            [*grid] if there is one output channel. For a dict, a dict by output channel.

        Warns:
            PredictionWarning: the answer came with a warning, for example of a grid that nobody has evaluated.

        Raises:
            BadInput, NotFound, Overloaded, DeadlineExceeded, ServerError, ConnectionFailed.
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
        """As `predict`, with version, request id, timings and signals of trust.

        Args:
            model, fields, version, deadline, priority, output_grid: as `predict`, with their shapes and units.

        Returns:
            A Prediction, with what `predict` returns as its `fields`; warnings are told there, not issued.

        Raises:
            As `predict`.
        """
        params: dict[str, int | str] = {"priority": priority} if priority else {}
        if output_grid is not None:
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
        """Multiply the cotangent by the Jacobian of the model at these fields: dL/d(fields), given dL/d(output).

        Args:
            model, fields, version, deadline, priority: as `predict`, with their shapes and units.
            cotangent: real numbers in the shape that `predict` answers with, or a dict by output channel; in
                units of L over those of the output; sent as float32.

        Returns:
            float32, laid out as `fields`, in units of L over those of the input. For a dict, a dict by input
            channel.

        Warns:
            PredictionWarning: as `predict`.

        Raises:
            As `predict`; BadInput also if the model has no gradient.
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
        """As `vjp`, with version, request id and timings.

        Args:
            model, fields, cotangent, version, deadline, priority: as `vjp`, with their shapes and units.
            output: give the model's output too, laid out as the cotangent.

        Returns:
            A Gradient, with what `vjp` returns as its `gradient`; warnings are told there, not issued.

        Raises:
            As `vjp`.
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
        """Run an autoregressive model on its own output until step `steps`, and give the frames as they are made.

        Closing the generator, or leaving the loop over it, ends the rollout on the server. To resume after a lost
        connection: `rollout(model, frame.fields, steps, start=frame.step)`, with the last frame that came.

        Args:
            model, fields, version: as `predict`, with their shapes and units.
            steps: number of the last step.
            frames: "all"; "last"; or k: those of steps k, 2 k, ... and the last.
            start: number of the step that the input is at: to resume from a frame.
            deadline: seconds within which the first step must have begun.

        Returns:
            A generator of Frames: float32, in physical units, laid out as the input.

        Warns:
            PredictionWarning: as `predict`, with the frame from which on it holds.

        Raises:
            BlowUp: after the last frame that can be used.
            As `predict`; ConnectionFailed also if the stream breaks off.
        """
        media_type, content = encode(fields)
        opening = self._exchange(
            "POST",
            _path(model, version) + ":rollout",
            deadline=deadline,
            content=content,
            headers={"Content-Type": media_type, "Accept": FRAMES},
            params={"steps": steps, "frames": frames, "start": start},
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
        """Draw a random input of the model.

        Args:
            model: name of a model whose description has a `reference` (those of the zoo).
            seed: which sample, 0 to 2**20 - 1.
            grid: points along each axis; those of the training grid if None.
            parameters: of the sampler, as `model(name)["reference"]["parameters"]` lists them; without any, the
                field is from the distribution that the model was trained on.

        Returns:
            float32 [channels, *grid], in the model's physical units.

        Raises:
            As `predict`; NotFound also if there is no sampler; BadInput also if the server has them off.
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
        """Ask the PDE solver for what the model should answer: to one field, or to a sample by its seed.

        Args:
            model: as `sample`.
            fields: one field as `predict` takes it, no batch; it is interpolated to the solver's grid.
            seed, grid, parameters: a sample as `sample` draws it, solved as the function that it is.
            steps: how many of the model's time steps, where it has one.

        Returns:
            float32, in physical units, laid out as the input; for a sample [channels, *grid].

        Raises:
            As `sample`; BadInput also unless there is either a field or a seed.
        """
        if (fields is None) == (seed is None):
            raise BadInput("solve takes either a field or the seed of a sample")
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
        """Name, version, state, reason and description of every model, ready or not. Raises as `predict`."""
        body = yield from self._json("/v1/models", "models", list)
        return list(body["models"])

    def model(self, name: str) -> Steps[dict[str, Any]]:
        """Signature of one model: channels with units, grid limits, PDE, measured errors. Raises as `predict`."""
        return (yield from self._json(_path(name), "name", str))

    def card(self, name: str) -> Steps[str]:
        """The model card in Markdown: what the model is for, how it was trained, how well it does.

        Raises as `predict`; NotFound also if the model has no card.
        """
        response = yield from self._exchange("GET", _path(name) + "/card", headers={})
        return response.text

    def ready(self) -> Steps[bool]:
        """True if the server answers and all its models are loaded and warm. Never raises."""
        return (yield from self._ready(self._timeout))

    def wait_ready(self, timeout: float = 60.0) -> Steps[None]:
        """Return once the server is ready. Raises DeadlineExceeded after `timeout` seconds."""
        give_up = time.monotonic() + timeout
        while not (yield from self._ready(max(give_up - time.monotonic(), 0.0))):
            if time.monotonic() + _READY_POLL_SECONDS > give_up:
                raise DeadlineExceeded(f"{self._http.base_url} not ready within {timeout:g} s")
            yield _READY_POLL_SECONDS

    def _ready(self, seconds: float) -> Steps[bool]:
        outcome = yield self._request("GET", "/readyz", seconds=seconds)
        return isinstance(outcome, httpx.Response) and outcome.status_code == 200

    def _json(self, path: str, key: str, kind: type) -> Steps[dict[str, Any]]:
        response = yield from self._exchange("GET", path, headers={"Accept": "application/json"})
        if isinstance((body := json_object(response)).get(key), kind):
            return body
        raise ServerError("the answer is not as expected: is this a turbofno server?", response)


def _path(model: str, version: str | int | None = None) -> str:
    path = f"/v1/models/{quote(model, safe='')}"
    return path if version is None else f"{path}/versions/{quote(str(version), safe='')}"


def _sample(
    seed: int | None, grid: int | None, parameters: Mapping[str, float] | None
) -> dict[str, int | float]:
    """The query of a sample; what is None is left to the server."""
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
    """The array of this name, or a dict of those whose name begins with it and a dot."""
    if single and name in arrays:
        return arrays[name]
    dotted = {
        key.removeprefix(f"{name}."): array
        for key, array in arrays.items()
        if key.startswith(f"{name}.")
    }
    if single or not dotted:
        raise ServerError(
            f"the answer is not an .npz archive of {name}: is this a turbofno server?", response
        )
    return dotted
