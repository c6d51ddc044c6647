"""Tables of the mixed-radix kernel (csrc/kernels/mixed_radix_fft.cu), computed in float64."""

from __future__ import annotations

import math

import torch

from turbofno_ops.fft._rule import CONVOLVED


def mixed_radix_table(points: int) -> torch.Tensor:
    """Return the table of the roots of unity, or for a size in `CONVOLVED` that of its convolution."""
    return convolution_table(points) if points in CONVOLVED else roots(points)


def roots(points: int) -> torch.Tensor:
    """Return exp(-2 pi i j / points), complex64 [points], of angles that are exact before they are rounded."""
    return _roots(points).to(torch.complex64)


def convolution_table(points: int) -> torch.Tensor:
    """Return the table of a prime size that is transformed as a convolution (csrc/kernels/fft_rader.cuh).

    The points above 0 have two axes, as long as the two coprime factors of their number: along each, powers of a number of
    that order modulo the prime.

    Returns:
        int32: bits of the inverse transform, in float32, of the roots of unity at these points [first, second, 2]; then the
        points themselves [second, first].

    Example:
        >>> convolution_table(31)[60:66]  # the points of the first row
        tensor([ 1, 26, 25, 30,  5,  6], dtype=torch.int32)
    """
    first, second = coprime_factors(points - 1)
    root = _primitive_root(points)
    field = torch.tensor(
        [[pow(root, second * i + first * j, points) for j in range(second)] for i in range(first)]
    )
    spectrum = torch.view_as_real(torch.fft.ifft2(_roots(points)[field]).to(torch.complex64))
    bits = spectrum.contiguous().view(torch.int32)
    return torch.cat([bits.flatten(), field.T.flatten().to(torch.int32)])


def coprime_factors(n: int) -> tuple[int, int]:
    """Return the coprime factors of an even number that are nearest to each other, the even one first."""
    pairs = ((a, n // a) for a in range(2, n + 1, 2) if n % a == 0)
    return min((pair for pair in pairs if math.gcd(*pair) == 1), key=max)


def _roots(points: int) -> torch.Tensor:
    angles = torch.arange(points, dtype=torch.float64) * (-2 * math.pi / points)
    return torch.polar(torch.ones_like(angles), angles)


def _primitive_root(prime: int) -> int:
    """Return the least number whose powers modulo a prime are all numbers but 0."""
    return next(
        root
        for root in range(2, prime)
        if len({pow(root, i, prime) for i in range(prime - 1)}) == prime - 1
    )
