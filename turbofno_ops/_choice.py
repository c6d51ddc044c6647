"""The record of a chosen backend, and what choices go by."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache


@dataclass(frozen=True, slots=True)
class Choice:
    """A chosen backend.

    Attributes:
        backend: Its name.
        reason: Why it was chosen.
    """

    backend: str
    reason: str


@lru_cache(maxsize=4096)
def largest_prime_factor(n: int) -> int:
    """Return the largest prime factor of n, or 1. Transforms of sizes with a large one are slow."""
    factor = 2
    while factor * factor <= n:
        if n % factor == 0:
            n //= factor
        else:
            factor += 1
    return n
