"""Query parameters: accepted values, defaults, and what the error of a wrong one says."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from turbofno.service.errors import BadRequest
from turbofno.service.http.call import Call
from turbofno.service.http.parameters import PRIORITY, flag, integer, read_query, seconds_allowed

KNOWN = (PRIORITY, flag("last", "only the last"), integer("steps", "steps", least=1, most=8))


def parsed(query: str) -> dict[str, Any]:
    call: Any = SimpleNamespace(query=query.encode())
    return dict(read_query(call, KNOWN, hint=""))


@pytest.mark.parametrize(
    ("query", "name", "value"),
    [
        ("", "priority", 0),
        ("priority=10", "priority", 10),
        ("priority=%2B1", "priority", 1),
        ("steps=1", "steps", 1),
        ("steps=8", "steps", 8),
        ("", "steps", None),
        ("", "last", False),
        ("last=True", "last", True),
        ("last=1", "last", True),
        ("last=false", "last", False),
        ("last=0", "last", False),
    ],
)
def test_values_and_defaults(query: str, name: str, value: Any) -> None:
    assert parsed(query)[name] is value


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("priority=-1", "is '-1', expected a whole number from 0 to 10: 1 is the highest"),
        ("priority=11", "is '11', expected"),
        ("priority=1.0", "is '1.0', expected"),
        ("priority=1_0", "is '1_0', expected"),
        ("priority=", "is '', expected"),
        ("steps=0", "is '0', expected a whole number from 1 to 8"),
        ("steps=9", "is '9', expected"),
        ("last=yes", "is 'yes', expected true or false"),
        ("last=", "is '', expected true or false"),
        ("steps=1&steps=1", "is given 2 times"),
        ("stepz=1", "'priority', 'last' and 'steps' are known"),
    ],
)
def test_a_wrong_value_is_told_with_those_that_are_right(query: str, says: str) -> None:
    with pytest.raises(BadRequest) as caught:
        parsed(query)
    assert says in caught.value.message


def test_a_deadline_may_be_below_a_millisecond() -> None:
    call: Call | Any = SimpleNamespace(headers={b"x-deadline-ms": b"0.5"})
    assert seconds_allowed(call) == 0.0005
