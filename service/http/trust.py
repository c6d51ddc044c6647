"""How an answer says how far it can be trusted: headers, and what OpenAPI tells of them (docs/trust.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from turbofno.models.core.statistics import INPUT_DISTANCE, RESIDUAL
from turbofno.service.settings import env_name

if TYPE_CHECKING:
    from turbofno.models.core.config import ModelConfig
    from turbofno.service.engine.interface import Trust
    from turbofno.service.http.call import Headers

_MEANINGS = {
    "input_distance": "distance of the input from the training data; one in 100 training inputs is above 1",
    "residual": "how badly the output misses the model's PDE, about its relative L2 error",
}
TRUST_LARGEST: dict[str, Any] = {
    name: {
        "type": "number",
        "description": f"{meaning}; the largest over the request's fields, where it can be told",
    }
    for name, meaning in _MEANINGS.items()
}
UNTOLD = "X-Trust"
NOT_COMPUTED = "trust signals could not be computed"
_WHY_UNTOLD = "in words, why the answer carries no trust signals; absent if it does"
TRUST_STATUS: dict[str, Any] = {"type": "string", "description": _WHY_UNTOLD}
TRUST_HEADERS: dict[str, Any] = {
    UNTOLD: {"description": _WHY_UNTOLD, "schema": {"type": "string"}}
} | {
    f"X-Trust-{name.replace('_', '-').title()}": {
        "description": TRUST_LARGEST[name]["description"],
        "schema": {"type": "number"},
    }
    for name in _MEANINGS
}
TRUST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "one value a field, where it can be told: "
    + "; ".join(f"{name}: {meaning}" for name, meaning in _MEANINGS.items()),
    "additionalProperties": {"type": "array", "items": {"type": "number"}},
}
FRAME_TRUST_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "frame by frame, one value a field: the largest of the steps since the frame before",
    "additionalProperties": {
        "type": "array",
        "items": {"type": "array", "items": {"type": "number"}},
    },
}


def trust_status(config: ModelConfig, *, judged: bool) -> str:
    """The signals that answers of the model carry and whether its error was ever measured, in words.

    `judged` is False where the server computes no signals.
    """
    signals = _signals(config)
    if not signals:
        status = "no trust signals"
    elif not judged:
        status = f"trust signals are switched off ({env_name('trust')})"
    else:
        status = " and ".join(signals)
        if config.statistics is None or config.statistics.thresholds is None:
            status += " without thresholds"
    return status if config.evaluation else f"{status}, not evaluated"


def never_told(config: ModelConfig, *, judged: bool) -> str:
    """The reason why no answer of a model carries signals, as X-Trust says it; empty if answers may."""
    return "" if judged and _signals(config) else trust_status(config, judged=judged)


def _signals(config: ModelConfig) -> list[str]:
    statistics, pde = config.statistics, config.pde
    known = {
        INPUT_DISTANCE: statistics is not None and statistics.distribution is not None,
        RESIDUAL: pde is not None and pde.residual is not None,
    }
    return [name for name, given in known.items() if given]


def largest(trust: Trust) -> dict[str, float]:
    """Each signal's largest value over the request's fields."""
    return {name: max(values) for name, values in trust.items() if values}


def trust_headers(trust: Trust) -> Headers:
    """X-Trust-Input-Distance and the like, to four digits."""
    return [
        (b"x-trust-" + name.replace("_", "-").encode(), b"%.4g" % value)
        for name, value in largest(trust).items()
    ]
