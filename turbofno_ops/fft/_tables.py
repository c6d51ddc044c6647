"""Tables of mixed_radix_fft and half_fft (csrc/kernels), computed in float64."""

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


def half_table(points: int) -> torch.Tensor:
    """Return the table of half_fft for lines of a power of two from 128 on (csrc/kernels/half_fft_tile.cuh).

    Point j + tiles (step a + b) is that of high digit a and low digit b of tile j; result p + 16 q is of frequencies p and q.

    Returns:
        int32 [tiles + 1, 512]: twiddles of p and b, in float32; of each tile, float16 roots of a and p, times the factors of tile
        and p, then those of b and q, times the factors of tile and q; as the lanes of a warp have them.
    """
    tiles, roots_of_unity = max(1, points // 256), torch.view_as_real(_roots(points))
    lane = torch.arange(32).view(-1, 1, 1)
    g, t, pair = lane // 4, lane % 4, torch.arange(2)

    def low_digit(column: torch.Tensor, fragment: torch.Tensor) -> torch.Tensor:
        if points == 128:
            return column + 0 * fragment  # each fragment has a line of its own
        return 2 * column + fragment if points <= 512 else 8 * fragment + column

    def frequency(half: torch.Tensor) -> torch.Tensor:
        """Of row g, or in the second half g + 8, of the first product."""
        return 4 * (g // 2) + g % 2 + 2 * half

    # [half, fragment, lane, column]
    half, fragment = torch.arange(2).view(2, 1, 1, 1, 1), torch.arange(2).view(2, 1, 1, 1)
    low = low_digit(2 * t + pair, fragment)
    twiddles = roots_of_unity[tiles * frequency(half) * low % points].to(torch.float32)

    # [lane, register of an A operand, term]: rows g, g + 8, g, g + 8, the first two with half of the terms
    register = torch.arange(4).view(-1, 1)
    half, fragment = register % 2, register // 2
    high, low = t + 4 * pair + 8 * fragment, low_digit(2 * t + pair, fragment)
    # of 128 points there are 8 rows of 8 terms
    exists = ((register == 0) | (points > 128))[..., None]

    def matrices(tile: int) -> torch.Tensor:
        of_high = (points // 16 * high + tile) * frequency(half)
        of_low = 16 * (tiles * low + tile) * (g + 8 * half)
        first, second = (roots_of_unity[exponent % points] for exponent in (of_high, of_low))
        return torch.stack([first, second * exists]).movedim(-1, 1).to(torch.float16).contiguous()

    words = [twiddles, *map(matrices, range(tiles))]
    return torch.stack([word.view(torch.int32).flatten() for word in words])


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
