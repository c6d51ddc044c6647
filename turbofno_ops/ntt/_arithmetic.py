"""Primes, roots of unity, and exact arithmetic of residues in numpy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

BABY_BEAR = 15 * 2**27 + 1
"""The 31-bit prime 2013265921."""
GOLDILOCKS = 2**64 - 2**32 + 1
"""The 64-bit prime 18446744069414584321."""

_LOW = np.uint64(2**32 - 1)
_HALF = np.uint64(32)


@dataclass(frozen=True, slots=True)
class Field:
    """The integers modulo a prime.

    Attributes:
        name: Its name in schemas of ops.
        number: turbofno_prime.
        prime: The prime.
        generator: A generator of its multiplicative group.
        word_bytes: Bytes of a value in the kernels' tables.
        montgomery: The factor of constants in the kernels' tables.
        multiply: Product of arrays of residues.
    """

    name: str
    number: int
    prime: int
    generator: int
    word_bytes: int
    montgomery: int
    multiply: Callable[[Words, Words | np.uint64], Words]

    def root(self, order: int) -> int:
        """Return a primitive root of unity; `order` is a power of two."""
        return pow(self.generator, (self.prime - 1) // order, self.prime)

    def powers(self, base: int, count: int, first: int = 1) -> Words:
        """Return first * base^i for i = 0 .. count - 1; `count` is a power of two."""
        found = np.array([first % self.prime], dtype=np.uint64)
        while len(found) < count:
            step = np.uint64(pow(base, len(found), self.prime))
            found = np.concatenate([found, self.multiply(found, step)])
        return found

    def add(self, a: Words, b: Words) -> Words:
        """Return the sum of two arrays of residues."""
        return self.subtract(a, np.uint64(self.prime) - b)

    def subtract(self, a: Words, b: Words) -> Words:
        """Return the difference of two arrays of residues; the second may hold the prime itself."""
        difference = a - b
        difference += (a < b) * np.uint64(self.prime)
        return difference


def _multiply_baby_bear(a: Words, b: Words | np.uint64) -> Words:
    product: Words = a * b % np.uint64(BABY_BEAR)
    return product


def _multiply_goldilocks(a: Words, b: Words | np.uint64) -> Words:
    """Return a b: 128 bits by four products of 32, then 2^64 = 2^32 - 1 and 2^96 = -1."""
    a_low, a_high, b_low, b_high = a & _LOW, a >> _HALF, b & _LOW, b >> _HALF
    low, across = a_low * b_low, a_high * b_low
    middle = (low >> _HALF) + (across & _LOW) + a_low * b_high  # below 2^64
    high = a_high * b_high + (across >> _HALF) + (middle >> _HALF)
    low = (middle << _HALF) | (low & _LOW)
    top = high >> _HALF
    rest = low - top
    rest -= (low < top) * _LOW
    folded = (high & _LOW) * _LOW
    total = rest + folded
    total += (total < folded) * _LOW
    total -= (total >= np.uint64(GOLDILOCKS)) * np.uint64(GOLDILOCKS)
    return total


FIELDS = {
    BABY_BEAR: Field("baby_bear", 0, BABY_BEAR, 31, 4, 2**32, _multiply_baby_bear),
    GOLDILOCKS: Field("goldilocks", 1, GOLDILOCKS, 7, 8, 1, _multiply_goldilocks),
}
BY_NAME = {field.name: field for field in FIELDS.values()}


@cache
def roots(field: Field, points: int) -> Words:
    """Return w^i for i below points / 2, w the root of unity of order `points`. Shared; do not write to it."""
    return field.powers(field.root(points), points // 2)


@cache
def twists(field: Field, points: int, *, inverse: bool) -> Words:
    """Return psi^i for i below points, psi the root of order 2 points; inverse: psi^-i / points."""
    psi = field.root(2 * points)
    if not inverse:
        return field.powers(psi, points)
    return field.powers(pow(psi, -1, field.prime), points, pow(points, -1, field.prime))


def transform(field: Field, x: Words, *, inverse: bool, negacyclic: bool) -> Words:
    """Return the transforms of lines [lines, points], by Stockham's algorithm of radix 2."""
    points = x.shape[-1]
    if negacyclic and not inverse:
        x = field.multiply(x, twists(field, points, inverse=False))
    powers, count, done = roots(field, points), points, 1
    values = x.reshape(-1, points, 1)  # [lines, rest of n, known part of k]
    while count > 1:
        half = count // 2
        first, second = values[:, :half], values[:, half:]
        factors = powers[::done][:, None]
        pair = field.add(first, second), field.multiply(field.subtract(first, second), factors)
        # the new bit of k is above the known ones
        done *= 2
        values = np.stack(pair, axis=2).reshape(-1, half, done)
        count = half
    result = values.reshape(x.shape)
    if not inverse:
        return result
    result = np.roll(result[:, ::-1], 1, axis=1)  # k -> -k
    if negacyclic:
        return field.multiply(result, twists(field, points, inverse=True))
    return field.multiply(result, np.uint64(pow(points, -1, field.prime)))
