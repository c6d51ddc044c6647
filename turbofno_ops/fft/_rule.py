"""Measured rules: which transforms torch.fft does as fast as the kernels, and which kernel an axis takes first.

Measured on an H200 and an H100 by `python -m benchmarks.gpu fft`. cuFFT is at the speed of memory for complex lines without
large prime factors. It is slow for large primes, for real lines of most odd sizes, and for inverses to real lines, whose
input it copies.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

import torch

from turbofno_ops._choice import largest_prime_factor
from turbofno_ops.fft._transform import KINDS, Axis, Transform, real_of

LEAST_VALUES = 2**21
"""From so many values on a transform called from Python takes longer on a GPU than its call on the host, which torch.fft
does faster."""
MIXED_RADIX, DENSE = KERNELS = ("mixed_radix_fft", "dense_dft")
HALF = "half_fft"
"""For float16, on tensor cores."""
WHOLE_PLANES = "plane_fft"
"""For both axes of a plane at once, in float32."""
CONVOLVED = frozenset({211, 421})
"""Prime sizes that the mixed-radix kernel transforms as a convolution, whose list is in csrc/plan/fft_plan.h."""

_MOST_RULED = 4096
"""Transforms whose rule is kept: a call of a small field has no time to follow it anew."""
_LEAST_HALF = 128
_LARGEST_FACTOR = 17
"""Of sizes that cuFFT transforms without a detour (Bluestein's algorithm)."""
_LARGEST_DENSE = 224
"""Sizes but powers of two up to which the dense kernel is the faster one, in float32."""
_LARGEST_DENSE_INVERSE, _LARGEST_ODD_DENSE_INVERSE = 420, 640
"""The same for real results; those of odd sizes run in pairs of lines on the other kernel."""
_LEAST_SIDE, _LARGEST_PLANE = 16, 2**14
"""Points of an axis and of a plane that are transformed at once: larger planes leave a multiprocessor few blocks."""
_SIDES_OF_CUT_PLANES = frozenset({32, 64, 85, 128})
"""Sides of the squares that are faster at once also if much is cut off."""
_REAL_POWERS_OF_TWO = (32, 512)
_REAL_SIZES = (40, _LARGEST_DENSE)
"""First and last sizes of real lines for which the kernels are faster than torch.fft."""
_FAST_REAL_SIZES = frozenset({100, 120, 121, 144, 169, 192, 196})
"""Sizes between these for which they are not; 196 is not measured, but a square as others here."""
_LARGEST_PRIME_SIZES = {"real_to_complex": 900, "complex": 700}
"""Sizes with a large prime factor up to which the kernels are faster."""


def kernels(points: int, kind: int, *, cut: bool, on_words: bool = False) -> tuple[str, ...]:
    """Return the kernels in the order in which an axis of `points` takes them; the first that supports it runs.

    Args:
        points: Of the axis.
        kind: Place in `KINDS`.
        cut: True if much of the axis is not given or not kept, which costs only the dense kernel no work.
        on_words: True if values are float16, and arrays begin at multiples of 16 bytes.
    """
    if on_words and KINDS[kind] == "complex" and points >= _LEAST_HALF and _is_power_of_two(points):
        return (HALF, *KERNELS)
    if points in CONVOLVED:
        return (DENSE, MIXED_RADIX) if cut else (MIXED_RADIX, DENSE)
    to_real = KINDS[kind] == "complex_to_real"
    least = 32 if KINDS[kind] == "complex" else 64  # a real line is a complex one of half its size
    if _is_power_of_two(points) and points >= least:
        return KERNELS
    largest = _LARGEST_DENSE
    if to_real:
        largest = _LARGEST_ODD_DENSE_INVERSE if points % 2 else _LARGEST_DENSE_INVERSE
    return KERNELS[::-1] if 16 < points <= largest else KERNELS


def takes_planes(axes: Sequence[Axis]) -> bool:
    """Return True if contiguous planes with these axes are faster at once than in two passes or by torch.fft."""
    sizes = [axis.points for axis in axes]
    if len(sizes) != 2 or max(map(largest_prime_factor, sizes)) > _LARGEST_FACTOR:
        return False
    if any(is_cut(axis.points, axis.given, axis.kept) for axis in axes):
        return sizes[0] == sizes[1] and sizes[0] in _SIDES_OF_CUT_PLANES
    return min(sizes) >= _LEAST_SIDE and math.prod(sizes) <= _LARGEST_PLANE


@lru_cache(_MOST_RULED)
def torch_is_as_fast(transform: Transform, dtype: torch.dtype) -> str | None:
    """Return the reason why torch.fft is preferred to kernels that take one axis at a time, or None."""
    if any(is_cut(axis.points, axis.given, axis.kept) for axis in transform.axes):
        # what is cut off costs the kernels nothing
        return None
    if real_of(dtype) == torch.float16:
        # through torch.fft it would be computed in float32
        return None
    sizes = tuple(axis.points for axis in transform.axes)
    if len(sizes) == 1:
        slower = _line_is_slower(sizes[0], transform)
    else:
        slower = _plane_is_slower(sizes, transform.kind)
    if not slower:
        return None
    shape = "x".join(map(str, sizes))
    return (
        f"torch.fft is as fast for {transform.kind.replace('_', ' ')} transforms of {shape} points"
    )


def kernels_are_faster_at_strides(line: Transform) -> bool:
    """True if the kernels, where they support it, transform one axis of a field faster than torch.fft.

    torch.fft copies a field whose axis is not the last one, and multiplies by a factor in a pass of its own. The kernels do
    neither, so only sizes with large prime factors are left to it.
    """
    points = line.axes[0].points
    smooth = largest_prime_factor(points) <= _LARGEST_FACTOR
    return smooth or line.kind == "complex_to_real" or points <= _LARGEST_PRIME_SIZES[line.kind]


def is_cut(points: int, given: int, kept: int) -> bool:
    """True if much of an axis is not given or not kept."""
    return min(given, kept) < points // 2 + 1


def _line_is_slower(points: int, transform: Transform) -> bool:
    kind = transform.kind
    if kind == "complex_to_real":
        return False
    if largest_prime_factor(points) > _LARGEST_FACTOR:
        return points > _LARGEST_PRIME_SIZES[kind]
    if kind == "complex":
        # torch.fft multiplies by a factor in a pass of its own
        least, most = (32, 8192) if _is_power_of_two(points) else (17, _LARGEST_DENSE)
        return transform.scaling == "none" or not least <= points <= most
    least, most = _REAL_POWERS_OF_TWO if _is_power_of_two(points) else _REAL_SIZES
    return not least <= points <= most or points in _FAST_REAL_SIZES


def _plane_is_slower(sizes: tuple[int, ...], kind: str) -> bool:
    factors = [largest_prime_factor(points) for points in sizes]
    if max(factors) > _LARGEST_FACTOR:
        return kind != "complex_to_real" and max(sizes) > _LARGEST_PRIME_SIZES[kind]
    if kind == "complex_to_real" and all(map(_is_power_of_two, sizes)):
        return False
    return min(factors) < _LARGEST_FACTOR


def _is_power_of_two(points: int) -> bool:
    return points & (points - 1) == 0
