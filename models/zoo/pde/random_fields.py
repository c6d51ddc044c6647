"""Gaussian random fields whose samples do not depend on the grid or the device.

Every field is a truncated Karhunen-Loeve sum

    g(x) = sum_k sqrt(lambda_k) xi_k phi_k(x),   xi_k ~ N(0, 1) independent,

of N(0, C), C = sigma^2 (-Laplacian + tau^2 I)^(-alpha), with phi_k the eigenfunctions of the
Laplacian of unit norm in L2 of the unit interval, square or cube and

    periodic:      lambda_k = sigma^2 (4 pi^2 |k|^2 + tau^2)^(-alpha),
                   phi = sqrt(2) cos(2 pi k.x), sqrt(2) sin(2 pi k.x) for each pair {k, -k};
    zero Neumann:  lambda_k = sigma^2 (pi^2 |k|^2 + tau^2)^(-alpha),
                   phi = prod_i c_ki cos(pi ki xi), c_0 = 1, c_k = sqrt(2) for k > 0.

The eigenvalues of -Laplacian on the unit domain thus carry 4 pi^2 (torus) and pi^2 (Neumann), and
the constant mode k = 0 is left out, so every sample has zero mean over the domain. Both agree
with the scripts published with Li et al. 2020 (arXiv:2010.08895), section 5. sigma^2 is the factor
in front of the covariance: pass sigma = 25, tau = 5, alpha = 2 for N(0, 625 (-Lap + 25 I)^(-2)).

The xi_k of a sample are drawn in float64 on the CPU from (seed, index) alone, always
`modes` of them, and the sum is evaluated at the grid points by matrix products in float64. A
sample is therefore the same function on every grid, and equal up to rounding on every device.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from turbofno.models.zoo.pde.checks import check_at_least, check_dtype, check_positive

SEED_LIMIT = 1 << 12
INDEX_LIMIT = 1 << 20

# Bounds the float64 work arrays for thousands of samples.
_SAMPLES_PER_CHUNK = 64


@dataclass(frozen=True)
class Covariance:
    """C = sigma^2 (-Laplacian + tau^2 I)^(-alpha), kept for wavenumbers up to `modes` per axis.

    All numbers are non-dimensional. Raises ValueError for sigma, tau, alpha <= 0 or modes < 1.
    """

    sigma: float
    tau: float
    alpha: float
    modes: int

    def __post_init__(self) -> None:
        """Raise ValueError for a parameter out of range."""
        check_positive(self.sigma, "sigma")
        check_positive(self.tau, "tau")
        check_positive(self.alpha, "alpha")
        check_at_least(self.modes, 1, "modes")

    def sqrt_eigenvalues(self, laplacian_eigenvalues: Tensor) -> Tensor:
        """Square roots of the eigenvalues of C; the constant mode is set to zero."""
        roots = self.sigma * (laplacian_eigenvalues + self.tau**2) ** (-self.alpha / 2)
        return torch.where(laplacian_eigenvalues > 0, roots, 0.0)


def standard_normals(seed: int, index: int, count: int) -> Tensor:
    """`count` float64 N(0, 1) numbers of sample `index` of stream `seed`.

    Raises ValueError unless 0 <= seed < 4096 and 0 <= index < 2^20.
    """
    if not 0 <= seed < SEED_LIMIT:
        raise ValueError(f"seed is {seed}; expected 0 <= seed < {SEED_LIMIT}; pass a smaller seed")
    if not 0 <= index < INDEX_LIMIT:
        raise ValueError(
            f"sample index is {index}; expected 0 <= index < {INDEX_LIMIT}; "
            "use another seed to get more samples"
        )
    # torch's CPU generator uses only the low 32 bits of its seed. This mix is a bijection of 32 bits, so that no two
    # samples (one perhaps held out) have the same field.
    state = seed * INDEX_LIMIT + index
    state = ((state ^ (state >> 16)) * 0x85EBCA6B) & 0xFFFFFFFF
    state = ((state ^ (state >> 13)) * 0xC2B2AE35) & 0xFFFFFFFF
    generator = torch.Generator(device="cpu").manual_seed(state ^ (state >> 16))
    return torch.randn(count, generator=generator, dtype=torch.float64)


def periodic_1d(
    covariance: Covariance,
    indices: Sequence[int],
    *,
    seed: int,
    n: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Samples [len(indices), n] at x_j = j / n of the zero-mean periodic field on [0, 1).

    Raises ValueError for empty `indices`, n < 2, an unsupported dtype or a bad seed or index.
    """
    check_at_least(n, 2, "n")
    k = torch.arange(1, covariance.modes + 1, dtype=torch.float64)
    scale = math.sqrt(2) * covariance.sqrt_eigenvalues((2 * math.pi * k) ** 2)
    x = torch.arange(n, dtype=torch.float64) / n
    phase = 2 * math.pi * torch.outer(k, x)
    basis = torch.cat([scale[:, None] * phase.cos(), scale[:, None] * phase.sin()]).to(device)
    return _evaluate(
        lambda xi: xi @ basis, 2 * covariance.modes, indices, seed, (n,), device, dtype
    )


def periodic_2d(
    covariance: Covariance,
    indices: Sequence[int],
    *,
    seed: int,
    n: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Samples [len(indices), n, n] at (i / n, j / n) of the zero-mean field on the unit torus.

    The sum is written as Re sum_k sqrt(lambda_k) (xi_k + i eta_k) exp(2 pi i k.x) over all k with
    |k1|, |k2| <= modes, which has the covariance stated above: k and -k share one cosine and one
    sine. Raises ValueError as `periodic_1d`.
    """
    check_at_least(n, 2, "n")
    k = torch.arange(-covariance.modes, covariance.modes + 1, dtype=torch.float64)
    scale = covariance.sqrt_eigenvalues(4 * math.pi**2 * (k[:, None] ** 2 + k**2)).to(device)
    x = torch.arange(n, dtype=torch.float64) / n
    waves = torch.exp(2j * math.pi * torch.outer(x, k)).to(device)

    def evaluate(xi: Tensor) -> Tensor:
        noise = xi.view(-1, 2, *scale.shape)
        amplitudes = scale * torch.complex(noise[:, 0], noise[:, 1])
        return (waves @ amplitudes @ waves.mT).real

    return _evaluate(evaluate, 2 * k.numel() ** 2, indices, seed, (n, n), device, dtype)


def neumann(
    covariance: Covariance,
    indices: Sequence[int],
    *,
    dimensions: Literal[2, 3],
    seed: int,
    n: int,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Samples [len(indices), n, n] or [len(indices), n, n, n] at i / (n - 1) on each axis, both boundaries included.

    Zero-mean field on the unit square or cube with zero normal derivative: wavenumbers 0..modes - 1 per axis. Raises
    ValueError as `periodic_1d`, and for modes < 2, which leaves no mode at all.
    """
    check_at_least(n, 2, "n")
    cosines, scale = _neumann_basis(covariance, n, dimensions=dimensions, device=device)

    def evaluate(xi: Tensor) -> Tensor:
        planes = cosines @ (scale * xi.view(-1, *scale.shape)) @ cosines.mT
        return planes if dimensions == 2 else (cosines @ planes.flatten(2)).unflatten(2, (n, n))

    return _evaluate(evaluate, scale.numel(), indices, seed, (n,) * dimensions, device, dtype)


def _neumann_basis(
    covariance: Covariance, n: int, *, dimensions: int, device: torch.device | str
) -> tuple[Tensor, Tensor]:
    """Normalised cosines at the nodes [n, modes], and the standard deviation of each mode [modes, ...]."""
    check_at_least(covariance.modes, 2, "modes")
    k = torch.arange(covariance.modes, dtype=torch.float64)
    squares = sum(torch.meshgrid(*[k**2] * dimensions, indexing="ij"), torch.zeros(()))
    x = torch.arange(n, dtype=torch.float64) / (n - 1)
    norm = torch.where(k > 0, math.sqrt(2), 1.0)
    cosines = norm * torch.cos(math.pi * torch.outer(x, k))
    return cosines.to(device), covariance.sqrt_eigenvalues(math.pi**2 * squares).to(device)


def _evaluate(
    evaluate: Callable[[Tensor], Tensor],
    count: int,
    indices: Sequence[int],
    seed: int,
    shape: tuple[int, ...],
    device: torch.device | str,
    dtype: torch.dtype,
) -> Tensor:
    check_dtype(dtype, "dtype")
    if len(indices) == 0:
        raise ValueError("indices is empty; expected at least one sample index; pass e.g. range(8)")
    fields = torch.empty((len(indices), *shape), device=device, dtype=dtype)
    for start in range(0, len(indices), _SAMPLES_PER_CHUNK):
        chunk = indices[start : start + _SAMPLES_PER_CHUNK]
        xi = torch.stack([standard_normals(seed, index, count) for index in chunk]).to(device)
        fields[start : start + len(chunk)] = evaluate(xi)
    return fields
