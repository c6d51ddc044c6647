"""How an answer says how far it can be trusted: headers, and what OpenAPI tells of them (docs/trust.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.pipeline.engine import Trust

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
TRUST_HEADERS: dict[str, Any] = {
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


def largest(trust: Trust) -> dict[str, float]:
    """Each signal's largest value over the request's fields."""
    return {name: max(values) for name, values in trust.items() if values}


def trust_headers(trust: Trust) -> dict[str, str]:
    """X-Trust-Input-Distance and the like, to four digits."""
    return {
        f"X-Trust-{name.replace('_', '-').title()}": f"{value:.4g}"
        for name, value in largest(trust).items()
    }
