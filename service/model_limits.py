"""What single models may take of the service: the form of a setting."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping

_FORM = "NAME [fields=N] [bytes=N] [batch=N], with a comma between models"
_LIMIT = re.compile(r"(fields|bytes|batch)=([1-9][0-9]{0,17})")


class ModelLimits(NamedTuple):
    """0: no limit but those of the service as a whole."""

    fields: int = 0
    """Most fields in work at once: waiting, and on the device."""
    bytes: int = 0
    """Most body and unsent answer bytes of its requests at once."""
    batch: int = 0
    """Most fields in one device batch, by which the memory goes that the model takes on the device."""


UNLIMITED = ModelLimits()


def parse(text: str) -> dict[str, ModelLimits]:
    """Model -> its limits. Raises ValueError."""
    limits: dict[str, ModelLimits] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, *words = part.split()
        matches = [_LIMIT.fullmatch(word) for word in words]
        given = {match[1]: int(match[2]) for match in matches if match is not None}
        if not words or None in matches or len(given) != len(words):
            raise ValueError(
                f"{part!r} gives no limits that are known: expected {_FORM}, N above 0"
            )
        if name in limits:
            raise ValueError(f"model {name!r} is given twice")
        limits[name] = ModelLimits(**given)
    return limits


def text(limits: Mapping[str, ModelLimits]) -> str:
    """As `parse` reads it."""
    return ", ".join(
        " ".join([name, *(f"{key}={value}" for key, value in one._asdict().items() if value)])
        for name, one in limits.items()
    )
