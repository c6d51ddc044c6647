"""The words for what pydantic refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


_MOST = 5


def described(error: ValidationError, whole: str = "") -> str:
    """The first problems as `key: message`. `whole` stands for the key of a problem that concerns no single one."""
    problems = []
    for one in error.errors()[:_MOST]:
        key = ".".join(map(str, one["loc"])) or whole
        problems.append(f"{key}: {one['msg'].removeprefix('Value error, ')}".removeprefix(": "))
    return "; ".join(problems)
