"""Darcy flow on the unit square: random permeabilities and a finite-difference solver.

-div(a grad u) = f in (0, 1)^2, u = 0 on the boundary (Li et al. 2020, arXiv:2010.08895,
section 5.2); everything is non-dimensional. Grids have n x n nodes at (i / (n - 1), j / (n - 1)),
boundary included.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from turbofno.models.zoo.pde import nodes
from turbofno.models.zoo.pde.checks import SolverError, check_at_least, check_batch, check_positive
from turbofno.models.zoo.pde.random_fields import Covariance, neumann

# N(0, (-Laplacian + 9 I)^(-2)) with zero Neumann boundary. The published script has a further
# factor 3 in sigma; only the sign of the field is used, so it changes nothing.
FIELD_COVARIANCE = Covariance(sigma=1.0, tau=3.0, alpha=2.0, modes=256)
PERMEABILITY_POSITIVE = 12.0
PERMEABILITY_NEGATIVE = 3.0

# Bounds the conjugate-gradient work arrays: about 8 x 128 x n^2 float64 numbers.
_SAMPLES_PER_CHUNK = 128


def sample_inputs(
    indices: Sequence[int],
    *,
    seed: int,
    n: int = 421,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Permeabilities a [len(indices), n, n]: 12 where the Gaussian field is >= 0, 3 elsewhere.

    The field is N(0, (-Laplacian + 9 I)^(-2)), zero Neumann, zero mean, and is thresholded at the
    nodes. (The published script thresholds at cell centres and interpolates to the nodes by
    splines, which overshoots the two values; this does not.) Held-out samples are other indices or
    another seed. Raises ValueError as `random_fields.neumann`.
    """
    field = neumann(FIELD_COVARIANCE, indices, dimensions=2, seed=seed, n=n, device=device)
    a = torch.where(field >= 0, PERMEABILITY_POSITIVE, PERMEABILITY_NEGATIVE)
    return a.to(dtype)


subsample = partial(nodes.subsample, dimensions=2)
"""`nodes.subsample` of the last two axes, [..., n, n]."""


@torch.no_grad()
def solve(
    a: Tensor, *, f: Tensor | float = 1.0, rtol: float = 1e-8, max_iterations: int = 500
) -> Tensor:
    """u [batch, n, n] from the permeability a > 0 [batch, n, n], in its dtype, on its device.

    `f` is a number or a tensor [n, n] or [batch, n, n]. Second-order five-point differences in
    flux form; the permeability of a face is the arithmetic mean of its two nodes, as in the
    published script. Conjugate gradients, preconditioned by the exact inverse of the constant-
    coefficient operator through sine matrices; the iteration count depends on max(a) / min(a) and
    hardly on n. All arithmetic is float64: in float32 the rounding of the second differences on
    421 nodes is already 1e-2 of the right-hand side.

    Raises ValueError for a bad shape or dtype, a <= 0 or non-finite, n < 3, or an f that does not
    fit; SolverError if the true relative residual |h^2 f - A u| / |h^2 f| of any sample stays
    above `rtol`.
    """
    check_batch(a, dimensions=2, least=3, name="a")
    check_positive(rtol, "rtol")
    check_at_least(max_iterations, 1, "max_iterations")
    if not bool((a > 0).all()):
        raise ValueError(
            f"a has the value {a.min().item():g}; expected a > 0 everywhere for an elliptic "
            "problem; clip or exponentiate it"
        )
    n = a.shape[-1]
    source = torch.as_tensor(f, dtype=torch.float64, device=a.device)
    if source.ndim != 0 and tuple(source.shape) not in {(n, n), tuple(a.shape)}:
        raise ValueError(
            f"f has shape {tuple(source.shape)}; expected a number, {(n, n)} or {tuple(a.shape)}; "
            "sample f on the nodes of a"
        )
    if not bool(torch.isfinite(source).all()):
        raise ValueError("f holds NaN or infinity; expected finite values; check how it was made")
    source = source.expand(a.shape)
    u = torch.zeros_like(a)
    for start in range(0, a.shape[0], _SAMPLES_PER_CHUNK):
        part = slice(start, start + _SAMPLES_PER_CHUNK)
        right = source[part, 1:-1, 1:-1] / (n - 1) ** 2
        u[part, 1:-1, 1:-1] = _conjugate_gradients(
            a[part].to(torch.float64), right, rtol, max_iterations
        ).to(a.dtype)
    return u


def apply_operator(a: Tensor, u: Tensor) -> Tensor:
    """h^2 (-div(a grad u)) at the interior nodes [batch, n - 2, n - 2].

    `a` is [batch, n, n], `u` holds the interior values [batch, n - 2, n - 2] and is zero on the
    boundary.
    """
    padded = torch.nn.functional.pad(u, (1, 1, 1, 1))
    flux_x = _mean_x(a) * (padded[:, 1:, 1:-1] - padded[:, :-1, 1:-1])
    flux_y = _mean_y(a) * (padded[:, 1:-1, 1:] - padded[:, 1:-1, :-1])
    return flux_x[:, :-1] - flux_x[:, 1:] + flux_y[:, :, :-1] - flux_y[:, :, 1:]


def _mean_x(a: Tensor) -> Tensor:
    return (a[:, 1:, 1:-1] + a[:, :-1, 1:-1]) / 2


def _mean_y(a: Tensor) -> Tensor:
    return (a[:, 1:-1, 1:] + a[:, 1:-1, :-1]) / 2


def _conjugate_gradients(a: Tensor, right: Tensor, rtol: float, max_iterations: int) -> Tensor:
    m = right.shape[-1]
    k = torch.arange(1, m + 1, dtype=torch.float64, device=a.device)
    sines = math.sqrt(2 / (m + 1)) * torch.sin(math.pi * torch.outer(k, k) / (m + 1))
    axis = 2 - 2 * torch.cos(math.pi * k / (m + 1))
    inverse = 1 / (axis[:, None] + axis)

    def precondition(r: Tensor) -> Tensor:
        return sines @ (inverse * (sines @ r @ sines)) @ sines

    def dot(p: Tensor, q: Tensor) -> Tensor:
        return (p * q).sum(dim=(-2, -1), keepdim=True)

    def ratio(p: Tensor, q: Tensor) -> Tensor:
        # A sample with a zero residual has converged: no step, and no NaN.
        return torch.where(q > 0, p / q, 0.0)

    # The factor 0.5 covers the drift of the recursive residual by rounding.
    target = (0.5 * rtol) ** 2 * dot(right, right)
    u = torch.zeros_like(right)
    r = right.clone()
    z = precondition(r)
    p = z
    rz = dot(r, z)
    for _ in range(max_iterations):
        if bool((dot(r, r) <= target).all()):
            break
        ap = apply_operator(a, p)
        step = ratio(rz, dot(p, ap))
        u += step * p
        r -= step * ap
        z = precondition(r)
        rz_new = dot(r, z)
        p = z + ratio(rz_new, rz) * p
        rz = rz_new
    true_residual = right - apply_operator(a, u)
    relative = ratio(dot(true_residual, true_residual), dot(right, right)).sqrt().flatten()
    if not bool((relative <= rtol).all()):
        raise SolverError(
            f"Darcy solver stopped at a relative residual of {relative.max().item():.1e} > "
            f"{rtol:.1e} after at most {max_iterations} iterations; raise max_iterations, or rtol "
            "if the residual no longer falls"
        )
    return u
