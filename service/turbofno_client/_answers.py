"""Results of calls, and their parts in response headers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

AnswerT = TypeVar("AnswerT")
"""An array for an array as input, a dict of arrays for a dict."""

_TIMING = re.compile(r"([\w-]+)\s*;[^,]*?dur=([0-9]+(?:\.[0-9]*)?)\s*(?=[,;]|$)")


@dataclass(frozen=True, slots=True)
class Prediction(Generic[AnswerT]):
    """The result of `predict_detailed`."""

    fields: AnswerT
    """float32, in physical units, in the layout of the input: an array for an array, a dict of arrays by output channel
    for a dict."""
    version: str | None
    """Version of the model."""
    request_id: str | None
    """Id of the request in the server's log."""
    timings: dict[str, float]
    """Stage -> seconds, measured by the server (header Server-Timing)."""
    trust: dict[str, float] = field(default_factory=dict)
    """Trust signal -> its largest value over the fields: `input_distance` (above 1 is unusual for the training data)
    and `residual` (of the PDE, about the relative error). Empty if the model has none."""
    trust_status: str = ""
    """The reason why there are no trust signals; empty if there are."""
    warnings: tuple[str, ...] = ()
    """Reasons why the prediction may be worse than the model's card states."""


@dataclass(frozen=True, slots=True)
class Gradient(Generic[AnswerT]):
    """The result of `vjp_detailed`."""

    gradient: AnswerT
    """float32, in the layout of the input: an array for an array, a dict of arrays by input channel for a dict."""
    output: Any
    """The model's output, float32, in the layout of the cotangent; None unless requested."""
    version: str | None
    """Version of the model."""
    request_id: str | None
    """Id of the request in the server's log."""
    timings: dict[str, float]
    """Stage -> seconds, measured by the server (header Server-Timing)."""
    warnings: tuple[str, ...] = ()
    """Reasons why the gradient may be worse than the model's card states."""


@dataclass(frozen=True, slots=True)
class Frame(Generic[AnswerT]):
    """The fields of one step of a rollout."""

    step: int
    """Number of the step; the input has `start`, by default 0."""
    fields: AnswerT
    """float32, in physical units, in the layout of the input: an array for an array, a dict of arrays by channel for a
    dict."""
    trust: dict[str, float] = field(default_factory=dict)
    """Trust signal -> its largest value over the fields and the steps since the last frame, as in `Prediction`."""
    warnings: tuple[str, ...] = ()
    """Reasons why this frame and later ones may be worse than the model's card states; each is given once a rollout."""


def about(response: httpx.Response) -> dict[str, Any]:
    """The attributes that Prediction and Gradient share, from response headers."""
    found = _TIMING.findall(response.headers.get("server-timing", ""))
    return {
        "version": response.headers.get("x-model-version"),
        "request_id": response.headers.get("x-request-id"),
        "timings": {stage: float(milliseconds) / 1e3 for stage, milliseconds in found},
        "warnings": warnings_of(response),
    }


def trust(response: httpx.Response) -> dict[str, float]:
    """Trust signal -> value, from the X-Trust headers."""
    prefix = "x-trust-"
    return {
        name.removeprefix(prefix).replace("-", "_"): float(value)
        for name, value in response.headers.items()
        if name.startswith(prefix)
    }


def warnings_of(response: httpx.Response) -> tuple[str, ...]:
    """The warnings of a response, from its header X-Warning."""
    return tuple(filter(None, response.headers.get("x-warning", "").split("; ")))
