"""Query parameters and the deadline header: parsing, error texts and OpenAPI description."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any
from urllib.parse import parse_qs

from turbofno.service.errors import BadRequest
from turbofno.service.http.call import Call

_CACHED_BYTES = 128
"""Longest query that is cached: clients choose queries, and long ones would fill the memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Parameter:
    """One query parameter; `parse` raises ValueError for an invalid value."""

    name: str
    description: str
    schema: dict[str, Any]
    expected: str = ""
    """The valid values, for error texts."""
    parse: Callable[[str], Any] = str
    default: Any = None
    required: bool = False
    example: Any = None

    def described(self) -> dict[str, Any]:
        """The OpenAPI parameter object."""
        schema = self.schema
        if self.default is not None:
            schema = schema | {"default": self.default}
        if self.example is not None:
            schema = schema | {"examples": [self.example]}
        return {
            "name": self.name,
            "in": "query",
            "required": self.required,
            "description": self.description,
            "schema": schema,
        }


def integer(
    name: str,
    description: str,
    *,
    least: int = 0,
    most: int = 2**31 - 1,
    meaning: str = "",
    **options: Any,
) -> Parameter:
    """A whole number from `least` to `most`; `meaning` is appended to the error text."""

    def parse(text: str) -> int:
        if not re.fullmatch(r"[+-]?[0-9]{1,18}", text) or not least <= int(text) <= most:
            raise ValueError
        return int(text)

    return Parameter(
        name,
        description,
        {"type": "integer", "minimum": least, "maximum": most},
        f"a whole number from {least} to {most}{meaning}",
        parse,
        **options,
    )


def flag(name: str, description: str) -> Parameter:
    """True or false; false by default."""

    def parse(given: str) -> bool:
        given = given.lower()
        if given not in ("true", "1", "false", "0"):
            raise ValueError
        return given in ("true", "1")

    return Parameter(name, description, {"type": "boolean"}, "true or false", parse, default=False)


PRIORITY = integer(
    "priority",
    "1 is highest, 10 lowest; 0, the default, is in the middle (5)",
    most=10,
    meaning=": 1 is the highest, 10 the lowest, 0 the default, in the middle",
    default=0,
)
DEADLINE = "X-Deadline-Ms"


def read_query(call: Call, known: tuple[Parameter, ...], *, hint: str | None) -> Mapping[str, Any]:
    """Parse a request's query.

    Unknown parameters are refused, with `hint` at the end of the error text, or ignored if that is None: ?version= must
    not silently select another model.

    Raises:
        BadRequest: a parameter is unknown, repeated, missing or invalid.
    """
    if len(call.query) <= _CACHED_BYTES:
        return _cached(call.query, known, hint)
    return _parse(call.query, known, hint)


def seconds_allowed(call: Call) -> float | None:
    """Seconds within which the work must start, by the header X-Deadline-Ms. Raises BadRequest."""
    given = call.headers.get(b"x-deadline-ms")
    if given is None:
        return None
    try:
        milliseconds = float(given)
    except ValueError:
        milliseconds = 0.0
    if not milliseconds > 0.0:
        raise BadRequest(
            f"header {DEADLINE!r} is {given[:80].decode('latin-1')!r}, expected a number of milliseconds above 0"
        )
    return milliseconds / 1e3


def _parse(query: bytes, known: tuple[Parameter, ...], hint: str | None) -> Mapping[str, Any]:
    given = parse_qs(query.decode("latin-1"), keep_blank_values=True)
    names = [one.name for one in known]
    unknown = sorted(given.keys() - names)
    if unknown and hint is not None:
        listed = " and ".join(filter(None, (", ".join(map(repr, names[:-1])), repr(names[-1]))))
        are = "is known" if len(names) == 1 else "are known"
        raise BadRequest(f"unknown query parameter {unknown[0][:80]!r}; {listed} {are}{hint}")
    values = {}
    for one in known:
        texts = given.get(one.name, [])
        if len(texts) > 1:
            raise BadRequest(
                f"query parameter {one.name!r} is given {len(texts)} times, expected once"
            )
        if not texts:
            if one.required:
                raise BadRequest(
                    f"query parameter {one.name!r} is missing, expected {one.expected}"
                )
            values[one.name] = one.default
            continue
        try:
            values[one.name] = one.parse(texts[0])
        except ValueError:
            raise BadRequest(
                f"query parameter {one.name!r} is {texts[0][:80]!r}, expected {one.expected}"
            ) from None
    return MappingProxyType(values)


_cached = lru_cache(maxsize=1024)(_parse)
