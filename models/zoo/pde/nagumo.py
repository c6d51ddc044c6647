"""Nagumo's equation in a block of excitable tissue: random rates, activation times and a spectral solver.

u_t = D Laplacian u + k(x) u (1 - u) (u - a) in a cube, no flux through its faces: the monodomain model of heart tissue
with cubic kinetics (Nagumo, Arimoto and Yoshizawa 1962, Proc. IRE 50, 2061; Keener and Sneyd, Mathematical
Physiology, 2009, chapter 6). u is the potential, 0 at rest and 1 when excited. A stimulus at the middle of the face
z = 0 starts a front that excites the whole block. Where k is constant, a plane front is

    u = 1 / (1 + exp((x - c t) / delta)),   delta = sqrt(2 D / k),   c = (1 - 2 a) sqrt(k D / 2).

The activation time of a point is T = integral over t from 0 to infinity of (1 - u), the mean action time (McNabb and
Wake 1991, IMA J. Appl. Math. 47, 193). For a front with the profile above it is the time at which u passes 1/2.

Lengths are in mm, times in ms. Grids have n^3 nodes at (i, j, l) SIDE / (n - 1), faces included.
"""

import math
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from turbofno.models.zoo.pde import nodes
from turbofno.models.zoo.pde.checks import (
    check_batch,
    check_positive,
    check_solution,
)
from turbofno.models.zoo.pde.random_fields import Covariance, neumann

SIDE = 20.0
DIFFUSIVITY = 0.1
THRESHOLD = 0.2
STIMULUS_RADIUS = 1.5

MEDIAN_RATE = 5.0
RATE_FACTOR = 2.5
# N(0, 207^2 (-Laplacian + 81 I)^(-3)) on the unit cube has unit variance with these modes.
FIELD_COVARIANCE = Covariance(sigma=207.0, tau=9.0, alpha=3.0, modes=13)

# The midpoint rule of the reaction is stable for k (1 - a) dt <= 2.
_STABLE = 2.0
_EXCITED = 0.999
_STEPS_PER_CHECK = 8
# On a CPU a sample of 41 nodes and more is solved alone: the work arrays of several leave the cache of a core.
_POINTS_PER_CHUNK = {"cpu": 1 << 17, "cuda": 1 << 25}


def sample_inputs(
    indices: Sequence[int],
    *,
    seed: int,
    n: int = 61,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float64,
) -> Tensor:
    """Excitation rates k [len(indices), n, n, n] in 1/ms: 5 * 2.5^tanh(g), between 2 and 12.5.

    g is a Gaussian field of unit variance, N(0, 207^2 (-Laplacian + 81 I)^(-3)) on the unit cube, zero Neumann, zero
    mean, with at most 12 half waves along an axis, so that 21 nodes resolve it. Held-out samples are other indices or
    another seed. Raises ValueError as `random_fields.neumann`.
    """
    field = neumann(FIELD_COVARIANCE, indices, dimensions=3, seed=seed, n=n, device=device)
    return (MEDIAN_RATE * RATE_FACTOR ** torch.tanh(field)).to(dtype)


subsample = partial(nodes.subsample, dimensions=3)
"""`nodes.subsample` of the last three axes, [..., n, n, n]."""


def mirrored(field: Tensor, number: int) -> Tensor:
    """`field` [..., n, n, n] under symmetry 0 to 7 of the problem: bit 0 mirrors x, bit 1 mirrors y, bit 2 swaps them."""
    field = field.flip([axis for axis, bit in ((-3, 1), (-2, 2)) if number & bit])
    return field.transpose(-3, -2) if number & 4 else field


def stimulus(
    n: int, *, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64
) -> Tensor:
    """u at t = 0 [n, n, n]: a half ball of radius 1.5 mm around (10, 10, 0) mm, with the profile of a front."""
    x = torch.linspace(0, SIDE, n, dtype=torch.float64)
    squares = ((x - SIDE / 2) ** 2)[:, None, None] + ((x - SIDE / 2) ** 2)[:, None] + x**2
    width = math.sqrt(2 * DIFFUSIVITY / MEDIAN_RATE)
    return torch.sigmoid((STIMULUS_RADIUS - squares.sqrt()) / width).to(device, dtype)


def activation_times(k: Tensor, *, dt: float) -> Tensor:
    """T [batch, n, n, n] in ms from the rates k > 0 [batch, n, n, n] in 1/ms, in their dtype, on their device.

    Strang splitting with steps of `dt` ms. The diffusion step is exact for the cosine interpolant of the nodes: one
    dense n x n matrix along each axis. The reaction step is the midpoint rule, whose middle stage is the solution at
    the end of the Strang step; T is its trapezoidal sum. Second order in dt; spectral in space once a grid spacing
    is below about two widths delta of the thinnest front.

    Steps end when u > 0.999 everywhere, or after 4 times as long as a plane front of the lowest rate needs for the
    diagonal.

    Raises ValueError for a bad shape or dtype, k <= 0 or non-finite, n < 3, or dt <= 0 or above the limit of stability
    2 / (max(k) (1 - a)); SolverError if the front does not excite every node.
    """
    check_batch(k, dimensions=3, least=3, name="k")
    check_positive(dt, "dt")
    lowest, highest = (value.item() for value in k.aminmax())
    if lowest <= 0:
        raise ValueError(
            f"k has the value {lowest:g}; expected k > 0 everywhere, or the front stops; clip or exponentiate it"
        )
    if (limit := _STABLE / (highest * (1 - THRESHOLD))) < dt:
        raise ValueError(
            f"dt is {dt:g}; expected at most {limit:.3g} for rates up to {highest:g}, or the reaction is unstable; "
            "pass a smaller dt"
        )
    speed = (1 - 2 * THRESHOLD) * math.sqrt(lowest * DIFFUSIVITY / 2)
    steps = math.ceil(4 * math.sqrt(3) * SIDE / speed / dt)
    at_once = max(1, _POINTS_PER_CHUNK["cpu" if k.device.type == "cpu" else "cuda"] // k[0].numel())
    return torch.cat([_march(chunk, dt, steps) for chunk in k.split(at_once)])


def extrapolated_times(k: Tensor, *, dt: float) -> Tensor:
    """T as `activation_times`, without its second-order error: extrapolated from steps of `dt` and `dt / 2`."""
    return (4 * activation_times(k, dt=dt / 2) - activation_times(k, dt=dt)) / 3


def heat_matrix(n: int, time: float) -> Tensor:
    """[n, n] float64: maps the values at n nodes of a line of SIDE mm to those after `time` ms of diffusion, no flux."""
    k = torch.arange(n, dtype=torch.float64)
    cosines = torch.cos(math.pi * torch.outer(k, k) / (n - 1))
    decay = torch.exp(-DIFFUSIVITY * (math.pi * k / SIDE) ** 2 * time)
    return torch.linalg.solve(cosines.mT, (cosines * decay).mT).mT


@torch.no_grad()
def _march(k: Tensor, dt: float, most_steps: int) -> Tensor:
    batch, n = k.shape[:2]
    heat = heat_matrix(n, dt).to(k.device, k.dtype).expand(batch, n, n)
    kdt = k * dt
    u = stimulus(n, device=k.device, dtype=k.dtype).expand_as(k).contiguous()
    waiting = (1 - u) / 2
    u, change, middle = u + _reaction(u, kdt, torch.empty_like(u)) / 2, waiting.clone(), u.clone()
    for step in range(1, most_steps + 1):
        for _ in range(3):
            # contracts the last axis and moves it to the front: after three products the axes are in order again
            torch.bmm(heat, u.view(batch, n * n, n).mT, out=change.view(batch, n, n * n))
            u, change = change, u
        _reaction(u, kdt, change)
        torch.add(u, change, alpha=0.5, out=middle)
        waiting.add_(1).sub_(middle)
        u.add_(_reaction(middle, kdt, change))
        if step % _STEPS_PER_CHECK == 0 and bool((middle > _EXCITED).all()):
            break
    excited = (middle > _EXCITED).flatten(1).all(dim=1)
    check_solution(
        excited,
        "the front did not excite every node",
        "use a finer grid, or rates with less contrast",
    )
    return dt * (waiting - (1 - middle) / 2)


def _reaction(u: Tensor, kdt: Tensor, out: Tensor) -> Tensor:
    """k dt u (1 - u) (u - a), written into `out`."""
    torch.sub(1 + THRESHOLD, u, out=out)
    return out.mul_(u).sub_(THRESHOLD).mul_(u).mul_(kdt)
