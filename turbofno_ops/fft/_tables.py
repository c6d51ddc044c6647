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
    tiles = max(1, points // 256)
    lane = torch.arange(32)[:, None]
    g, t = lane // 4, lane % 4
    pair = torch.arange(2)

    def low_digit(column: torch.Tensor, fragment: int) -> torch.Tensor:
        if points == 128:
            return column
        return 2 * column + fragment if points <= 512 else 8 * fragment + column

    # of sums as the first product leaves them: rows g and g + 8, columns 2 t and 2 t + 1 of two fragments
    sums = [
        (4 * (g // 2) + g % 2 + 2 * half, low_digit(2 * t + pair, fragment))
        for half in range(2)
        for fragment in range(2)
    ]
    twiddles = torch.stack([_root(points, tiles * p * b) for p, b in sums]).to(torch.float32)

    def matrices(j: int) -> torch.Tensor:
        found: list[list[torch.Tensor]] = [[], [], [], []]
        for r in range(
            4
        ):  # registers of an A operand: rows g and g + 8, terms 2 t + 8 (r / 2) and the next one
            row, column, fragment = g + 8 * (r % 2), 2 * t + pair, r // 2
            a, p = t + 4 * pair + 8 * fragment, 4 * (g // 2) + g % 2 + 2 * (r % 2)
            first = _root(points, points // 16 * a * p + j * p)
            b = column if points == 128 else low_digit(column, fragment)
            second = _root(points, 16 * (tiles * b + j) * row)
            if points == 128 and r > 0:  # 8 rows of 8 terms
                second = torch.zeros_like(second)
            for place, parts in enumerate((first, second)):
                for imaginary in range(2):
                    found[2 * place + imaginary].append(parts[..., imaginary])
        return torch.stack([torch.stack(registers, 1) for registers in found]).to(torch.float16)

    words = [twiddles.view(torch.int32)] + [matrices(j).view(torch.int32) for j in range(tiles)]
    return torch.stack([word.reshape(512) for word in words])


def _root(points: int, exponent: torch.Tensor) -> torch.Tensor:
    """Return real and imaginary part of exp(-2 pi i exponent / points), float64 [.., 2]."""
    angle = (exponent % points).to(torch.float64) * (-2 * math.pi / points)
    return torch.stack([angle.cos(), angle.sin()], -1)


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
