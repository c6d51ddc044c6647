"""Results of calls, read from an answer and its headers."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import httpx

AnswerT = TypeVar("AnswerT")
"""An array [*axes], or a dict of them where the input was one."""

_TIMING = re.compile(r"([\w-]+)\s*;[^,]*?dur=([0-9]+(?:\.[0-9]*)?)\s*(?=[,;]|$)")


@dataclass(frozen=True, slots=True)
class Prediction(Generic[AnswerT]):
    """One answer: `fields` is float32, in physical units, laid out as the input was."""

    fields: AnswerT
    """An array for an array, a dict of arrays by output channel for a dict."""
    version: str | None
    request_id: str | None
    timings: dict[str, float]
    """Stage -> seconds, as the server measured them (its Server-Timing header)."""
    trust: dict[str, float] = field(default_factory=dict)
    """Signal -> its largest value over the fields, where the server can judge: `input_distance` (over 1 is unusual for
    the training data) and `residual` (about the relative error that the PDE shows)."""
    trust_status: str = ""
    """In words, why there are no signals; empty if there are."""
    warnings: tuple[str, ...] = ()
    """In words, why the answer may be worse than the model's card says."""


@dataclass(frozen=True, slots=True)
class Gradient(Generic[AnswerT]):
    """One vector-Jacobian product: float32, `gradient` laid out as the input was, `output` as the cotangent."""

    gradient: AnswerT
    """An array for an array, a dict of arrays by input channel for a dict."""
    output: Any
    """The answer of `predict`, an array or a dict as the cotangent was; None if it was not asked for."""
    version: str | None
    request_id: str | None
    timings: dict[str, float]
    """Stage -> seconds, as the server measured them (its Server-Timing header)."""
    warnings: tuple[str, ...] = ()
    """In words, why the gradient may be worse than the model's card says."""


@dataclass(frozen=True, slots=True)
class Frame(Generic[AnswerT]):
    """The fields of one step of a rollout: float32, in physical units, laid out as the input was."""

    step: int
    fields: AnswerT
    """An array for an array, a dict of arrays by channel for a dict."""
    trust: dict[str, float] = field(default_factory=dict)
    """As in `Prediction`: the largest values of the steps since the frame before."""
    warnings: tuple[str, ...] = ()
    """In words, why frames from this one on may be worse than the model's card says; each is given once a rollout."""


def about(response: httpx.Response) -> dict[str, Any]:
    """The members that Prediction and Gradient share, from an answer's headers."""
    found = _TIMING.findall(response.headers.get("server-timing", ""))
    return {
        "version": response.headers.get("x-model-version"),
        "request_id": response.headers.get("x-request-id"),
        "timings": {stage: float(milliseconds) / 1e3 for stage, milliseconds in found},
        "warnings": told(response),
    }


def trust(response: httpx.Response) -> dict[str, float]:
    """Signal -> value of the X-Trust headers."""
    prefix = "x-trust-"
    return {
        name.removeprefix(prefix).replace("-", "_"): float(value)
        for name, value in response.headers.items()
        if name.startswith(prefix)
    }


def told(response: httpx.Response) -> tuple[str, ...]:
    """The warnings that an answer came with."""
    return tuple(filter(None, response.headers.get("x-warning", "").split("; ")))
