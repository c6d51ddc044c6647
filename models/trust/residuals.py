"""How badly an output misses its PDE, given the input: residuals, scaled so that they estimate the relative L2 error."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from turbofno.models.trust.tables import remembered
from turbofno.models.zoo.pde.darcy import apply_operator
from turbofno.models.zoo.pde.navier_stokes import paper_forcing

_BURGERS_MODES = 64
_DARCY_MODES = 16
_FLOW_MODES = 10
_FLOW_GRID = 32
"""Points an axis that carry products of two fields of that many modes without aliasing into them."""
DARCY_LEAST = 3
"""Fewest points an axis."""
NAVIER_STOKES_LEAST = 2 * _FLOW_MODES + 2
"""Fewest points an axis."""


def burgers(u0: Tensor, u: Tensor, *, nu: float, time: float) -> Tensor:
    """[n] from u0, u [n, points] a time apart: distance of u from the state that Cole-Hopf gives of u0, over its norm.

    u = m - 2 nu phi_x / phi, in the frame that moves with the mean m; phi solves the heat equation from
    exp(-(antiderivative of u0 - m) / (2 nu)). Only modes up to 64 are looked at: viscosity leaves no others.
    """
    kept = min(_BURGERS_MODES, (u0.shape[-1] - 1) // 2)
    few = 4 * kept
    ik, antiderivative, heat = _burgers_tables(kept, nu, time, u0.device)
    before, after = torch.fft.rfft(torch.stack([u0, u]).double(), norm="forward")[
        ..., : kept + 1
    ].unbind(0)
    mean = before[:, :1].real
    exponent = torch.fft.irfft(before * antiderivative, n=few, norm="forward")
    phi = (exponent - exponent.amax(1, keepdim=True)).exp_()
    later = torch.fft.rfft(phi, norm="forward")[:, : kept + 1] * heat
    phi, slope = torch.fft.irfft(torch.stack([later, later * ik]), n=few, norm="forward").unbind(0)
    expected = torch.fft.rfft(mean - 2 * nu * slope / phi, norm="forward")[:, : kept + 1]
    expected = expected * torch.exp(ik * (-time * mean))
    return _relative(after - expected, expected).to(u.dtype)


def darcy(a: Tensor, u: Tensor, *, source: float) -> Tensor:
    """[n] from a, u [n, points, points]: the residual of -div(a grad u) = source with u = 0 on the boundary, over |u|.

    Tested against the 16 x 16 smoothest sines and put through the inverse Laplacian over the mean of a, so that
    discontinuities of a do not drown it.
    """
    n = a.shape[-1]
    residual = source / (n - 1) ** 2 - apply_operator(a, u[:, 1:-1, 1:-1])
    sines, inverse = _darcy_tables(n - 2, a.dtype, a.device)
    projected = inverse * (sines.mT @ residual @ sines)
    estimate = projected.flatten(1).norm(dim=1) / a.mean((1, 2)).abs()
    return _ratio(estimate, u.flatten(1).norm(dim=1))


def navier_stokes(w0: Tensor, w1: Tensor, *, nu: float, time: float) -> Tensor:
    """[n] from vorticities [n, *grid] a time apart: what w1 - w0 differs from the tendency's integral, over |w1|.

    The integral is that of the cubic through both ends' tendencies and their rates of change (Hermite), for wavenumbers up
    to 10.
    """
    flow = _flow_tables(nu, w0.dtype, w0.device)
    both = _low_modes(torch.stack([w0, w1]))
    tendency = _tendency(both, flow) + flow.forcing
    # The advection is quadratic: its derivative along the tendency is a difference of two squares.
    ahead, behind = _tendency(torch.stack([both + tendency, both - tendency]), flow).unbind(0)
    rate = (ahead - behind) / 2
    integral = time / 2 * tendency.sum(0) + time**2 / 12 * (rate[0] - rate[1])
    return _relative(both[1] - both[0] - integral, both[1])


def _low_modes(w: Tensor) -> Tensor:
    """Fourier coefficients [..., 32, 17] of w [..., *grid], those above the highest wavenumber looked at being zero."""
    top = _FLOW_MODES
    spectrum = torch.fft.rfft2(w, norm="forward")
    low = spectrum.new_zeros((*w.shape[:-2], _FLOW_GRID, _FLOW_GRID // 2 + 1))
    low[..., : top + 1, : top + 1] = spectrum[..., : top + 1, : top + 1]
    low[..., -top:, : top + 1] = spectrum[..., -top:, : top + 1]
    return low


class _Flow(NamedTuple):
    """Tables [32, 17] of the vorticity equation in Fourier coefficients, as in models/zoo/pde/navier_stokes.py."""

    damping: Tensor
    velocity: Tensor
    cross: Tensor
    difference: Tensor
    forcing: Tensor


def _tendency(w: Tensor, flow: _Flow) -> Tensor:
    """w_t of each spectrum without forcing: -v . grad w + nu Laplacian w."""
    points = (_FLOW_GRID, _FLOW_GRID)
    v1, v2 = torch.fft.irfft2(flow.velocity * w.unsqueeze(-3), s=points, norm="forward").unbind(-3)
    products = torch.stack([v1 * v2, (v2 - v1) * (v2 + v1)], dim=-3)
    first, second = torch.fft.rfft2(products, norm="forward").unbind(-3)
    return flow.cross * first + flow.difference * second - flow.damping * w


def _relative(part: Tensor, whole: Tensor) -> Tensor:
    """Ratio, [n], of the L2 norms of fields given by what rfft or rfft2 keeps of their coefficients."""
    # Coefficients beside the last axis's zero stand for two. One call for both: with a field or two, calls are the cost.
    both = torch.stack([part, whole])
    both[..., 0] *= math.sqrt(0.5)
    norms = torch.linalg.vector_norm(both.flatten(2), dim=2)
    return _ratio(norms[0], norms[1])


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)


@remembered(16)
def _burgers_tables(
    kept: int, nu: float, time: float, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """i k; what makes the exponent of phi of u0; what the heat equation leaves of each mode."""
    k = 2 * math.pi * torch.arange(kept + 1, dtype=torch.float64)
    ik = torch.complex(torch.zeros_like(k), k)
    antiderivative = torch.complex(torch.zeros_like(k), 1 / (2 * nu * k))
    antiderivative[0] = 0
    heat = torch.exp(-nu * time * k**2)
    return ik.to(device), antiderivative.to(device), heat.to(device)


@remembered(16)
def _darcy_tables(interior: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Orthonormal sines [interior, modes], and 1 / (eigenvalues of h^2 (-Laplacian)) [modes, modes]."""
    k = torch.arange(1, min(_DARCY_MODES, interior) + 1, dtype=torch.float64)
    places = torch.arange(1, interior + 1, dtype=torch.float64)
    angles = math.pi * torch.outer(places, k) / (interior + 1)
    axis = 2 - 2 * torch.cos(math.pi * k / (interior + 1))
    sines = math.sqrt(2 / (interior + 1)) * torch.sin(angles)
    return sines.to(device, dtype), (1 / (axis[:, None] + axis)).to(device, dtype)


@remembered(16)
def _flow_tables(nu: float, dtype: torch.dtype, device: torch.device) -> _Flow:
    kx = torch.fft.fftfreq(_FLOW_GRID, 1 / _FLOW_GRID, dtype=torch.float64)[:, None]
    ky = torch.arange(_FLOW_GRID // 2 + 1, dtype=torch.float64)
    kept = (kx.abs() <= _FLOW_MODES) & (ky <= _FLOW_MODES)
    squared = kx**2 + ky**2
    inverse = torch.where(squared > 0, 1 / (2 * math.pi * squared), 0.0)
    velocity = torch.stack([ky * inverse, -kx * inverse])
    forcing = torch.fft.rfft2(paper_forcing(_FLOW_GRID), norm="forward")
    return _Flow(
        damping=(4 * math.pi**2 * nu * squared).to(device, dtype),
        velocity=torch.complex(torch.zeros_like(velocity), velocity).to(device, dtype.to_complex()),
        cross=(4 * math.pi**2 * (kx**2 - ky**2) * kept).to(device, dtype),
        difference=(4 * math.pi**2 * kx * ky * kept).to(device, dtype),
        forcing=forcing.to(device, dtype.to_complex()),
    )
