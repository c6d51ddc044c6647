"""Residuals of the PDEs, scaled to estimate the relative L2 error of an output."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from turbofno.models.trust.tables import cached_table
from turbofno.models.zoo.pde.darcy import apply_operator
from turbofno.models.zoo.pde.navier_stokes import paper_forcing
from turbofno_ops import fft

_BURGERS_MODES = 64
_DARCY_MODES = 16
_FLOW_MODES = 10
_FLOW_GRID = 32
"""Points per axis on which products of two fields with _FLOW_MODES modes do not alias."""
DARCY_LEAST = 3
"""Fewest points per axis."""
NAVIER_STOKES_LEAST = 2 * _FLOW_MODES + 2
"""Fewest points per axis."""


def burgers(u0: Tensor, u: Tensor, *, nu: float, time: float) -> Tensor:
    """Relative distance [n] of u from the Cole-Hopf solution for u0; u0 and u are [n, points].

    In the frame that moves with the mean m, the solution is m - 2 nu phi_x / phi, where phi solves the heat equation
    from exp(-(antiderivative of u0 - m) / (2 nu)). Only modes up to 64 count: viscosity damps the others.
    """
    kept = min(_BURGERS_MODES, (u0.shape[-1] - 1) // 2)
    few = 4 * kept
    ik, antiderivative, heat = _burgers_tables(kept, nu, time, u0.device)
    before, after = _first_modes(torch.stack([u0, u]), kept + 1).unbind(0)
    mean = before[:, :1].real
    exponent = torch.fft.irfft(before * antiderivative, n=few, norm="forward")
    phi = (exponent - exponent.amax(1, keepdim=True)).exp_()
    later = torch.fft.rfft(phi, norm="forward")[:, : kept + 1] * heat
    phi, slope = torch.fft.irfft(torch.stack([later, later * ik]), n=few, norm="forward").unbind(0)
    expected = torch.fft.rfft(mean - 2 * nu * slope / phi, norm="forward")[:, : kept + 1]
    expected = expected * torch.exp(ik * (-time * mean))
    return _relative(after - expected, expected).to(u.dtype)


def _first_modes(u: Tensor, count: int) -> Tensor:
    """The first Fourier coefficients [..., count] of u [..., points], complex128.

    Computed in float64, but in float32 where the kernels of `turbofno_ops.fft` are preferred for u.
    """
    if fft.is_preferred(u, in_graph=True):
        return fft.rfft(u, norm="forward", modes=count).to(torch.complex128)
    return torch.fft.rfft(u.double(), norm="forward")[..., :count]


def darcy(a: Tensor, u: Tensor, *, source: float) -> Tensor:
    """Scaled residual [n] of -div(a grad u) = source, u = 0 on the boundary; a and u are [n, points, points].

    The residual is projected on the 16 x 16 smoothest sines, since the discontinuities of a dominate the others;
    then multiplied by the inverse Laplacian and divided by the mean of a and the norm of u.
    """
    n = a.shape[-1]
    residual = source / (n - 1) ** 2 - apply_operator(a, u[:, 1:-1, 1:-1])
    sines, inverse = _darcy_tables(n - 2, a.dtype, a.device)
    projected = inverse * (sines.mT @ residual @ sines)
    estimate = projected.flatten(1).norm(dim=1) / a.mean((1, 2)).abs()
    return _ratio(estimate, u.flatten(1).norm(dim=1))


def navier_stokes(w0: Tensor, w1: Tensor, *, nu: float, time: float) -> Tensor:
    """Relative difference [n] between w1 - w0 and the time integral of the tendency; w0 and w1 are [n, *grid].

    The integral is that of the cubic Hermite interpolant of the tendencies at both ends, for wavenumbers up to 10.
    """
    flow = _flow_tables(nu, w0.dtype, w0.device)
    both = _low_modes(torch.stack([w0, w1]))
    tendency = _tendency(both, flow) + flow.forcing
    # Advection is quadratic, so a central difference gives its derivative along the tendency exactly.
    ahead, behind = _tendency(torch.stack([both + tendency, both - tendency]), flow).unbind(0)
    rate = (ahead - behind) / 2
    integral = time / 2 * tendency.sum(0) + time**2 / 12 * (rate[0] - rate[1])
    return _relative(both[1] - both[0] - integral, both[1])


def _low_modes(w: Tensor) -> Tensor:
    """Fourier coefficients [..., 32, 17] of w [..., *grid], zero above wavenumber 10."""
    top = _FLOW_MODES
    if fft.is_preferred(w, in_graph=True):
        spectrum = fft.rfft2(w, norm="forward", modes=(2 * top + 1, top + 1))
    else:
        spectrum = torch.fft.rfft2(w, norm="forward")
    # counted from both ends, a coefficient is at the same place in the whole spectrum and among the kept ones
    low = spectrum.new_zeros((*w.shape[:-2], _FLOW_GRID, _FLOW_GRID // 2 + 1))
    low[..., : top + 1, : top + 1] = spectrum[..., : top + 1, : top + 1]
    low[..., -top:, : top + 1] = spectrum[..., -top:, : top + 1]
    return low


class _Flow(NamedTuple):
    """Coefficients [32, 17] of the vorticity equation in Fourier space; see models/zoo/pde/navier_stokes.py."""

    damping: Tensor
    velocity: Tensor
    cross: Tensor
    difference: Tensor
    forcing: Tensor


def _tendency(w: Tensor, flow: _Flow) -> Tensor:
    """The tendency w_t without forcing, in Fourier space: -v . grad w + nu Laplacian w."""
    points = (_FLOW_GRID, _FLOW_GRID)
    transforms = fft.transforms_for(w, in_graph=True)
    v1, v2 = transforms.irfft2(flow.velocity * w.unsqueeze(-3), s=points, norm="forward").unbind(-3)
    products = torch.stack([v1 * v2, (v2 - v1) * (v2 + v1)], dim=-3)
    first, second = transforms.rfft2(products, norm="forward").unbind(-3)
    return flow.cross * first + flow.difference * second - flow.damping * w


def _relative(part: Tensor, whole: Tensor) -> Tensor:
    """Ratio [n] of the L2 norms of two fields given by their coefficients from rfft or rfft2."""
    # rfft omits the conjugates of coefficients with k > 0 on the last axis. Small batches: fewer calls are faster.
    both = torch.stack([part, whole])
    both[..., 0] *= math.sqrt(0.5)
    norms = torch.linalg.vector_norm(both.flatten(2), dim=2)
    return _ratio(norms[0], norms[1])


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)


@cached_table(16)
def _burgers_tables(
    kept: int, nu: float, time: float, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """i k; the factors from u0 to the exponent of phi; the decay of each mode in the heat equation."""
    k = 2 * math.pi * torch.arange(kept + 1, dtype=torch.float64)
    ik = torch.complex(torch.zeros_like(k), k)
    antiderivative = torch.complex(torch.zeros_like(k), 1 / (2 * nu * k))
    antiderivative[0] = 0
    heat = torch.exp(-nu * time * k**2)
    return ik.to(device), antiderivative.to(device), heat.to(device)


@cached_table(16)
def _darcy_tables(interior: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """Orthonormal sines [interior, modes], and 1 / (eigenvalues of h^2 (-Laplacian)) [modes, modes]."""
    k = torch.arange(1, min(_DARCY_MODES, interior) + 1, dtype=torch.float64)
    places = torch.arange(1, interior + 1, dtype=torch.float64)
    angles = math.pi * torch.outer(places, k) / (interior + 1)
    axis = 2 - 2 * torch.cos(math.pi * k / (interior + 1))
    sines = math.sqrt(2 / (interior + 1)) * torch.sin(angles)
    return sines.to(device, dtype), (1 / (axis[:, None] + axis)).to(device, dtype)


@cached_table(16)
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
