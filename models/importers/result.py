"""The result of an importer, and the user's settings for choices that a file leaves open."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypeVar

from torch import Tensor

from turbofno.models.core.architecture import FNOArchitecture
from turbofno.models.core.config import Normalization
from turbofno.models.importers.refusal import ImportRefused

Choice = TypeVar("Choice", bound=str)


@dataclass(frozen=True, slots=True)
class Imported:
    """A foreign checkpoint as our architecture and state dict.

    `state` has the keys, shapes and dtypes of `FNO(architecture).state_dict()`. `assumptions` are sentences for the
    user: choices that the file left open, and peculiarities of the library. `release_is_known` is False if the file
    fits several releases and `format` names the assumed one.
    """

    format: str
    architecture: FNOArchitecture
    state: dict[str, Tensor]
    assumptions: tuple[str, ...] = ()
    normalization: Normalization | None = None
    training_grid: tuple[int, ...] | None = None
    release_is_known: bool = True


@dataclass(slots=True)
class Options:
    """Settings KEY=VALUE from the command line. An importer reads its own, then calls `finish`."""

    given: dict[str, str] = field(default_factory=dict)
    _known: list[str] = field(default_factory=list)

    def text(self, name: str) -> str | None:
        """The value given for `name`, or None."""
        self._known.append(name)
        return self.given.get(name)

    def choice(self, name: str, choices: tuple[Choice, ...], default: Choice) -> Choice:
        """The value given for `name`, which must be one of `choices`."""
        value = self.text(name)
        if value is None:
            return default
        for one in choices:
            if value == one:
                return one
        raise ImportRefused(f"{name} must be one of {', '.join(choices)}, not {value!r}")

    def numbers(self, name: str) -> tuple[int, ...] | None:
        """The comma-separated whole numbers from 0 given for `name`, or None."""
        value = self.text(name)
        if value is None:
            return None
        parts = value.split(",")
        if not all(part.strip().isdecimal() for part in parts):
            raise ImportRefused(f"{name} must be whole numbers from 0, like 9,9, not {value!r}")
        return tuple(map(int, parts))

    def pairs(self, name: str, count: int) -> tuple[tuple[float, float], ...] | None:
        """The ranges `low:high,low:high` given for `name`, one or `count` of them, or None."""
        value = self.text(name)
        if value is None:
            return None
        try:
            ranges = [(float(low), float(high)) for low, high in
                      (part.split(":") for part in value.split(","))]  # fmt: skip
        except ValueError:
            raise ImportRefused(f"{name} must be ranges like 0:1,-1:1, not {value!r}") from None
        ranges *= count if len(ranges) == 1 else 1
        if len(ranges) != count:
            raise ImportRefused(f"{name} has {len(ranges)} ranges, expected 1 or {count}")
        return tuple(ranges)

    def finish(self, format_name: str) -> None:
        """Refuse settings that were not read."""
        unknown = sorted(set(self.given) - set(self._known))
        if unknown:
            known = ", ".join(sorted(set(self._known))) or "none"
            raise ImportRefused(
                f"{format_name} has no setting {', '.join(unknown)}; its settings are: {known}"
            )
