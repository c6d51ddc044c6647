"""The words for what pydantic refuses."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


def described(error: ValidationError, whole: str) -> str:
    """Each problem as `key: message`. `whole` stands for the key of a problem that concerns no single one."""
    return "; ".join(
        f"{'.'.join(map(str, one['loc'])) or whole}: {one['msg'].removeprefix('Value error, ')}"
        for one in error.errors()
    )
