"""Residuals of the PDEs, scaled to estimate the relative L2 error of an output."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from turbofno.models.trust.features import backend_of, lowest_rows
from turbofno.models.trust.tables import cached_table
from turbofno.models.zoo.pde.navier_stokes import paper_forcing
from turbofno_ops import _torch_fft, fft
from turbofno_ops._flow import vorticity_residual
from turbofno_ops._fluxes import project_fluxes

if TYPE_CHECKING:
    from turbofno.models.trust.features import Spectrum

_BURGERS_MODES = 64
_LEAST_PHI = 1e-13
"""Of the Cole-Hopf solution, whose largest initial value is 1."""
_DARCY_MODES = 16
_FLOW_MODES = 10
_FLOW_KEPT = (2 * _FLOW_MODES + 1, _FLOW_MODES + 1)
"""Kept coefficients of rfft2 on each axis."""
_FLOW_GRID = 32
"""Points per axis on which products of two fields with _FLOW_MODES modes do not alias."""
BURGERS_LEAST = 3
"""Fewest points."""
DARCY_LEAST = 3
"""Fewest points per axis."""
NAVIER_STOKES_LEAST = 2 * _FLOW_MODES + 2
"""Fewest points per axis."""


def burgers(
    u0: Tensor, u: Tensor, *, nu: float, time: float, spectrum: Spectrum | None = None
) -> Tensor:
    """Relative distance [n] of u from the Cole-Hopf solution for u0; u0 and u are [n, points].

    In the frame that moves with the mean m, the solution is m - 2 nu phi_x / phi, where phi solves the heat equation
    from exp(-(antiderivative of u0 - m) / (2 nu)). Only modes up to 64 count: viscosity damps the others.
    The result is NaN where phi is lost in rounding: for large fields at low viscosity and short times.
    `spectrum` is that of u0 on its grid, if it is known: [n, 1, ...].
    """
    kept = min(_BURGERS_MODES, (u0.shape[-1] - 1) // 2)
    tables = _burgers_tables(kept, nu, time, u0.device)
    if spectrum is not None and fft.is_preferred(u0, in_graph=True):
        before = spectrum.low((kept + 1,))[:, 0].to(torch.complex128)
    else:
        before = _first_modes(u0, kept + 1)
    after = _first_modes(u, kept + 1)
    mean = before[:, :1].real
    exponent = tables.points_of(before * tables.antiderivative)
    phi = (exponent - exponent.amax(1, keepdim=True)).exp_()
    later = tables.modes_of(phi) * tables.heat
    phi, slope = tables.points_of(torch.stack([later, later * tables.ik])).unbind(0)
    # It is positive. Where it is not above rounding errors, nothing is known.
    phi = phi.where(phi.amin(1, keepdim=True) > _LEAST_PHI, math.nan)
    expected = tables.modes_of(mean - 2 * nu * slope / phi)
    expected = expected * torch.exp(tables.ik * (-time * mean))
    return _relative(after - expected, expected).to(u.dtype)


def _first_modes(u: Tensor, count: int) -> Tensor:
    """The first Fourier coefficients [..., count] of u [..., points], complex128.

    Computed in float64, but in float32 where the kernels of `turbofno_ops.fft` are preferred for u.
    """
    if fft.is_preferred(u, in_graph=True):
        backend = backend_of("rfft", u, modes=count)
        return fft.rfft(u, norm="forward", modes=count, backend=backend).to(torch.complex128)
    return _torch_fft.rfft(u.double(), norm="forward")[..., :count]


def darcy(a: Tensor, u: Tensor, *, source: float) -> Tensor:
    """Scaled residual [n] of -div(a grad u) = source, u = 0 around the unit square; a and u are [n, *grid], at nodes.

    The residual is projected on the 16 x 16 smoothest sines, since the discontinuities of a dominate the others;
    then multiplied by the inverse Laplacian and divided by the mean of a and the norm of u.
    """
    points_x, points_y = a.shape[1:]
    x, y, ones, inverse = _darcy_tables(points_x - 2, points_y - 2, a.dtype, a.device)
    # Summed by parts, the divergence is taken of the sines.
    if fft.is_preferred(a, in_graph=True) and a.is_cuda:
        on_x, across, along = _projections(points_x, points_y, a.device)
        rows = project_fluxes(a, u, across, along).flatten(1, 2)
        applied = (on_x.mT @ rows)[..., : len(inverse[0])]
    else:
        flux_x = _fluxes(a[:, :, 1:-1], u[:, :, 1:-1], dim=1)
        flux_y = _fluxes(a[:, 1:-1], u[:, 1:-1], dim=2)
        applied = x.fluxes.mT @ (flux_x @ y.sines) + x.sines.mT @ (flux_y @ y.fluxes)
    projected = inverse * (source / ((points_x - 1) * (points_y - 1)) * ones - applied / 2)
    estimate = projected.flatten(1).norm(dim=1) / a.mean((1, 2)).abs()
    return _ratio(estimate, u.flatten(1).norm(dim=1))


def _fluxes(a: Tensor, u: Tensor, *, dim: int) -> Tensor:
    """Twice the fluxes through the faces across an axis of [n, *grid], for u = 0 at its ends."""
    count = u.shape[dim] - 1
    sums = a.narrow(dim, 1, count) + a.narrow(dim, 0, count)
    fluxes = (u.narrow(dim, 1, count) - u.narrow(dim, 0, count)).mul_(sums)
    torch.mul(u.select(dim, 1), sums.select(dim, 0), out=fluxes.select(dim, 0))
    torch.mul(u.select(dim, -2), sums.select(dim, -1), out=fluxes.select(dim, -1)).neg_()
    return fluxes


def navier_stokes(
    w0: Tensor, w1: Tensor, *, nu: float, time: float, spectrum: Spectrum | None = None
) -> Tensor:
    """Relative difference [n] between w1 - w0 and the time integral of the tendency; w0 and w1 are [n, *grid].

    The integral is that of the cubic Hermite interpolant of the tendencies at both ends, for wavenumbers up to 10.
    `spectrum` is that of w0 on its grid, if it is known: [n, 1, ...].
    """
    flow = _flow_tables(nu, w0.dtype, w0.device)
    before = _low_modes(w0) if spectrum is None else spectrum.low(_FLOW_KEPT)[:, 0].contiguous()
    after = _low_modes(w1)
    if fft.is_preferred(w0, in_graph=True) and w0.is_cuda:
        return vorticity_residual(before, after, flow.forcing, viscosity=nu, time=time)
    both = torch.stack([before, after])
    velocity = _velocity(both, flow)
    tendency = _advection(velocity, velocity, flow)
    _damp(tendency, both, flow)
    tendency += flow.forcing
    # Advection is bilinear and symmetric, so this is half its derivative along the tendency.
    rate = _advection(velocity, _velocity(tendency, flow), flow).mul_(2)
    _damp(rate, tendency, flow)
    missed = both[1] - both[0]
    missed.sub_(tendency[0] + tendency[1], alpha=time / 2)
    missed.sub_(rate[0] - rate[1], alpha=time**2 / 12)
    return _relative(missed, both[1])


def _low_modes(w: Tensor) -> Tensor:
    """Fourier coefficients [..., 21, 11] of w [..., *grid] for wavenumbers up to 10, in the order of rfft2."""
    if fft.is_preferred(w, in_graph=True):
        return fft.rfft2(w, norm="forward", modes=_FLOW_KEPT)
    half = _torch_fft.rfft(w, norm="forward")[..., : _FLOW_MODES + 1]
    return lowest_rows(_torch_fft.fft(half, dim=-2, norm="forward"), _FLOW_KEPT[0])


def _on_grid(low: Tensor) -> Tensor:
    """The field [..., 32, 32] of Fourier coefficients [..., 21, 11]."""
    points = (_FLOW_GRID, _FLOW_GRID)
    if fft.is_preferred(low, in_graph=True):
        return fft.irfft2(low, s=points, norm="forward", modes=_FLOW_KEPT)
    spectrum = low.new_zeros((*low.shape[:-2], _FLOW_GRID, _FLOW_MODES + 1))
    spectrum[..., : _FLOW_MODES + 1, :] = low[..., : _FLOW_MODES + 1, :]
    spectrum[..., -_FLOW_MODES:, :] = low[..., -_FLOW_MODES:, :]
    half = _torch_fft.ifft(spectrum, dim=-2, norm="forward")
    return _torch_fft.irfft(half, n=_FLOW_GRID, norm="forward")


class _Flow(NamedTuple):
    """Coefficients of the vorticity equation in Fourier space; see models/zoo/pde/navier_stokes.py.

    Real ones are [21, 11, 1], factors of real and imaginary parts: PyTorch multiplies complex numbers slowly.
    """

    damping: Tensor
    velocity: Tensor
    """Complex [2, 21, 11]."""
    cross: Tensor
    difference: Tensor
    forcing: Tensor
    """Complex [21, 11]."""


def _velocity(w: Tensor, flow: _Flow) -> Tensor:
    """The velocity [..., 2, 32, 32] of a flow with vorticity w [..., 21, 11]."""
    return _on_grid(flow.velocity * w.unsqueeze(-3))


def _advection(v: Tensor, u: Tensor, flow: _Flow) -> Tensor:
    """The symmetric bilinear form [..., 21, 11] of two velocities that for v = u is -v . grad w."""
    (v1, v2), (u1, u2) = v.unbind(-3), u.unbind(-3)
    products = torch.empty_like(v)
    cross, difference = products.unbind(-3)
    torch.mul(v1, u2, out=cross).addcmul_(v2, u1)
    torch.mul(v2, u2, out=difference).addcmul_(v1, u1, value=-1)
    first, second = torch.view_as_real(_low_modes(products)).unbind(-4)
    return torch.view_as_complex((flow.cross * first).addcmul_(flow.difference, second))


def _damp(rate: Tensor, w: Tensor, flow: _Flow) -> None:
    """Subtract from the rate of change of vorticity what viscosity damps of it."""
    torch.view_as_real(rate).addcmul_(flow.damping, torch.view_as_real(w), value=-1)


def _relative(part: Tensor, whole: Tensor) -> Tensor:
    """Ratio [n] of the L2 norms of two fields given by their coefficients from rfft or rfft2."""
    # rfft omits the conjugates of coefficients with k > 0 on the last axis. Small batches: fewer calls are faster.
    both = torch.stack([part, whole])
    both[..., 0] *= math.sqrt(0.5)
    norms = torch.linalg.vector_norm(torch.view_as_real(both).flatten(2), dim=2)
    return _ratio(norms[0], norms[1])


def _ratio(part: Tensor, whole: Tensor) -> Tensor:
    return part / whole.clamp_min(torch.finfo(whole.dtype).tiny)


class _ColeHopf(NamedTuple):
    """Factors of the modes 0 to `kept`, and matrices that transform them to 4 * kept points and back, in float64.

    Matrices, since torch.fft would make a plan for each batch size on a GPU (see `backend_of`).
    """

    ik: Tensor
    antiderivative: Tensor
    """From u0 to the exponent of phi."""
    heat: Tensor
    """Decay in the heat equation."""
    to_points: Tensor
    """[2 (kept + 1), points]: real and imaginary part of a mode are next to each other."""
    to_modes: Tensor
    """[points, 2 (kept + 1)]."""

    def points_of(self, modes: Tensor) -> Tensor:
        return torch.view_as_real(modes).flatten(-2) @ self.to_points

    def modes_of(self, points: Tensor) -> Tensor:
        return torch.view_as_complex((points @ self.to_modes).unflatten(-1, (-1, 2)))


@cached_table(16)
def _burgers_tables(kept: int, nu: float, time: float, device: torch.device) -> _ColeHopf:
    wavenumbers, points = torch.arange(kept + 1, dtype=torch.float64), 4 * kept
    k = 2 * math.pi * wavenumbers
    zeros = torch.zeros_like(k)
    antiderivative = torch.complex(zeros, 1 / (2 * nu * k))
    antiderivative[0] = 0
    angles = torch.outer(k, torch.arange(points, dtype=torch.float64) / points)
    waves = torch.stack([angles.cos(), -angles.sin()], dim=1)
    # each mode but the first stands for its conjugate, too
    to_points = torch.where(wavenumbers > 0, 2.0, 1.0)[:, None, None] * waves
    tables = _ColeHopf(
        torch.complex(zeros, k),
        antiderivative,
        torch.exp(-nu * time * k**2),
        to_points.flatten(0, 1),
        (waves / points).flatten(0, 1).T.contiguous(),
    )
    return _ColeHopf(*(table.to(device) for table in tables))


class _DarcyAxis(NamedTuple):
    """Orthonormal sines along an axis [interior, modes], and the weights of fluxes through faces [interior + 1, modes].

    The weights are the sines' differences times the spacing of the other axis over that of this one.
    """

    sines: Tensor
    fluxes: Tensor


@cached_table(16)
def _darcy_tables(
    interior_x: int, interior_y: int, dtype: torch.dtype, device: torch.device
) -> tuple[_DarcyAxis, _DarcyAxis, Tensor, Tensor]:
    """Both axes; then, for each pair of modes, the coefficient of a field of ones and 1 / (eigenvalue of -hx hy Laplacian)."""
    axes, sums, eigenvalues = [], [], []
    for interior, other in ((interior_x, interior_y), (interior_y, interior_x)):
        k = torch.arange(1, min(_DARCY_MODES, interior) + 1, dtype=torch.float64)
        places = torch.arange(interior + 2, dtype=torch.float64)
        angles = math.pi * torch.outer(places, k) / (interior + 1)
        sines = math.sqrt(2 / (interior + 1)) * torch.sin(angles)
        ratio = (interior + 1) / (other + 1)
        fluxes = ratio * sines.diff(dim=0)
        axes.append(_DarcyAxis(sines[1:-1].to(device, dtype), fluxes.to(device, dtype)))
        sums.append(sines.sum(0))
        eigenvalues.append(ratio * (2 - 2 * torch.cos(math.pi * k / (interior + 1))))
    ones, inverse = torch.outer(*sums), 1 / (eigenvalues[0][:, None] + eigenvalues[1])
    x, y = axes
    return x, y, ones.to(device, dtype), inverse.to(device, dtype)


@cached_table(16)
def _projections(
    points_x: int, points_y: int, device: torch.device
) -> tuple[Tensor, Tensor, Tensor]:
    """The tables of both axes at all points, for `project_fluxes`: [2 * points_x, modes], then twice [16, points_y]."""
    x, y, *_ = _darcy_tables(points_x - 2, points_y - 2, torch.float32, device)
    pad, more = torch.nn.functional.pad, _DARCY_MODES - y.sines.shape[1]
    on_x = torch.cat([pad(x.fluxes, (0, 0, 0, 1)), pad(x.sines, (0, 0, 1, 1))])
    across = pad(y.sines.mT, (1, 1, 0, more)).contiguous()
    return on_x, across, pad(y.fluxes.mT, (0, 1, 0, more)).contiguous()


@cached_table(16)
def _flow_tables(nu: float, dtype: torch.dtype, device: torch.device) -> _Flow:
    kx, ky = (
        torch.fft.fftfreq(_FLOW_KEPT[0], 1 / _FLOW_KEPT[0], dtype=torch.float64)[:, None],
        torch.arange(_FLOW_KEPT[1]),
    )
    squared = kx**2 + ky**2
    inverse = torch.where(squared > 0, 1 / (2 * math.pi * squared), 0.0)
    damping, cross, difference = (
        table.unsqueeze(-1).to(device, dtype)
        for table in (
            4 * math.pi**2 * nu * squared,
            2 * math.pi**2 * (kx**2 - ky**2),
            4 * math.pi**2 * kx * ky,
        )
    )
    velocity, forcing = (
        table.to(device, dtype.to_complex())
        for table in (
            1j * torch.stack([ky * inverse, -kx * inverse]),
            _low_modes(paper_forcing(_FLOW_GRID)),
        )
    )
    return _Flow(damping, velocity, cross, difference, forcing)
