"""Limits for single models, and their text form in the setting model_limits."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping, Sequence

_FORM = "NAME [fields=N] [bytes=N] [batch=N], with a comma between models"
_LIMIT = re.compile(r"([a-z]+)=([1-9][0-9]{0,17})")


class ModelLimits(NamedTuple):
    """Limits for one model. 0: the model has no limit of its own."""

    fields: int = 0
    """Maximum number of fields in progress: queued, and on the device."""
    bytes: int = 0
    """Maximum bytes of the model's request bodies and unsent responses together."""
    batch: int = 0
    """Maximum number of fields in a device batch, which bounds the model's memory on the device."""


def parse(text: str) -> dict[str, ModelLimits]:
    """Parse "NAME fields=N, NAME batch=N" to limits by model. Raises ValueError."""
    limits: dict[str, ModelLimits] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *words = part.split()
        given = limits_of(words, ModelLimits._fields)
        if not given:
            raise ValueError(
                f"{part!r} does not state limits of a model: expected {_FORM}, with N above 0"
            )
        if name in limits:
            raise ValueError(f"model {name!r} appears twice: give all of its limits together")
        limits[name] = ModelLimits(**given)
    return limits


def limits_of(words: Sequence[str], names: Collection[str]) -> dict[str, int] | None:
    """The limits that words such as fields=8 state; None if one has another form or name, or repeats a name."""
    matches = filter(None, map(_LIMIT.fullmatch, words))
    given = {match[1]: int(match[2]) for match in matches if match[1] in names}
    return given if len(given) == len(words) else None


def to_text(limits: Mapping[str, ModelLimits]) -> str:
    """Format limits as the text that `parse` reads."""
    return ", ".join(
        " ".join([name, *(f"{key}={value}" for key, value in model._asdict().items() if value)])
        for name, model in limits.items()
    )
