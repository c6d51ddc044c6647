"""The zoo's samplers and solvers for one field at a time, of any seed, grid and sampler parameters.

Solutions are computed on a grid fine enough for the solver, as accurately as the zoo's data, then sampled at the points
of the requested grid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from turbofno.models.core.config import PDE
from turbofno.models.zoo.pde import burgers, darcy, nagumo, navier_stokes
from turbofno.models.zoo.pde.random_fields import Covariance, neumann, periodic_1d
from turbofno.models.zoo.problems import BURGERS, DARCY, NAGUMO, NAVIER_STOKES, Problem

STREAM = 3
"""Seed of the random numbers; training and held-out data use others."""

Values = Mapping[str, float]

_BURGERS_POINTS = 1024
_BURGERS_STEP = 1 / 256
_USUAL_VELOCITY = 3.2
"""Largest velocity for which _BURGERS_STEP is short enough."""
_DARCY_INTERVALS = 420
_NAVIER_STOKES_POINTS = 64
_RESOLVED_POINTS = 128
"""Points on an axis that resolve the flow from an initial state of the zoo to 1e-13."""
_USUAL_VORTICITY = 2.5
"""Largest vorticity for which _TIME_STEP is short enough."""
_TIME_STEP = 0.02
_NAGUMO_INTERVALS = 50
_NAGUMO_STEP = 0.18
_USUAL_RATE = 12.5
"""Highest rate for which _NAGUMO_STEP is short enough."""


class NoSolver(ValueError):
    """There is no sampler and solver for this PDE with these parameters."""


@dataclass(frozen=True, slots=True)
class Solver:
    """The sampler and the solver of one problem. Fields are float64 [1, *grid] with n points on each axis."""

    problem: Problem
    fine: Callable[[int], int]
    """n -> points on each axis of the grid on which a field of n points is solved."""
    draw: Callable[[int, int, Values], Tensor]
    """(seed, n, parameter values) -> the sample at n points on each axis."""
    refine: Callable[[Tensor, int], Tensor]
    """(field, n) -> the field interpolated to n points on each axis."""
    coarsen: Callable[[Tensor, int], Tensor]
    """(field on the fine grid, n) -> its values at n points on each axis."""
    advance: Callable[[Tensor, int], Tensor]
    """(input, steps) -> the solution, for a problem with time after so many of the model's steps."""

    def sample(self, seed: int, n: int, values: Values) -> Tensor:
        """The sample of this seed, float32 [1, *grid]."""
        return self.draw(seed, n, values).float()

    def solve_sample(self, seed: int, n: int, values: Values, steps: int = 1) -> Tensor:
        """The solution for a sample, drawn on the fine grid, float32 [1, *grid]. Raises SolverError."""
        return self._solve(self.draw(seed, self.fine(n), values), n, steps)

    def solve(self, field: Tensor, steps: int = 1) -> Tensor:
        """The solution for a field [1, *grid], interpolated to the fine grid, float32. Raises ValueError, SolverError."""
        if len(set(field.shape[1:])) != 1:
            raise ValueError(
                f"the solver needs the same number of points on each axis, got {list(field.shape[1:])}"
            )
        n = field.shape[-1]
        return self._solve(self.refine(field.double(), self.fine(n)), n, steps)

    def _solve(self, field: Tensor, n: int, steps: int) -> Tensor:
        return self.coarsen(self.advance(field, steps), n).float()


def solver_for(pde: PDE) -> Solver:
    """The solver of the problem with the same equation, domain and parameters. Raises NoSolver."""
    for one in _SOLVERS:
        known = one.problem.pde
        if (known.equation, known.domain, known.parameters) == (
            pde.equation, pde.domain, pde.parameters,
        ):  # fmt: skip
            return one
    raise NoSolver(
        f"there is no solver for {pde.name!r} in the form {pde.equation!r} with its domain and parameters"
    )


def _reshaped(usual: Covariance, values: Values, laplacian: Tensor) -> tuple[Covariance, float]:
    """The covariance with other tau and alpha, and the factor that keeps its total variance."""
    other = replace(usual, tau=values["tau"], alpha=values["alpha"])
    if other == usual:
        return usual, 1.0
    return other, float(
        usual.sqrt_eigenvalues(laplacian).norm() / other.sqrt_eigenvalues(laplacian).norm()
    )


def _periodic_finer(field: Tensor, n: int) -> Tensor:
    """Trigonometric interpolation of [1, *grid] to n points on each axis; n is at least the present number."""
    for axis in range(1, field.ndim):
        points = field.shape[axis]
        if n == points:
            continue
        spectrum = torch.fft.rfft(field, dim=axis, norm="forward")
        if points % 2 == 0:  # the Nyquist mode is the sum of a pair
            spectrum.select(axis, points // 2).mul_(0.5)
        field = torch.fft.irfft(spectrum, n=n, dim=axis, norm="forward")
    return field


def _every(field: Tensor, n: int) -> Tensor:
    stride = field.shape[-1] // n
    return field[..., ::stride] if field.ndim == 2 else field[..., ::stride, ::stride]


def _draw_burgers(seed: int, n: int, values: Values) -> Tensor:
    usual = burgers.INITIAL_COVARIANCE
    waves = (2 * math.pi * torch.arange(1, usual.modes + 1, dtype=torch.float64)) ** 2
    covariance, factor = _reshaped(usual, values, waves)
    field = periodic_1d(covariance, [seed], seed=STREAM, n=n)
    return field * (factor * values["amplitude"])


def _advance_burgers(field: Tensor, _: int) -> Tensor:
    fastest = max(1.0, float(field.abs().max()) / _USUAL_VELOCITY)
    return burgers.solve(field, dt=_BURGERS_STEP / fastest)


def _draw_darcy(seed: int, n: int, values: Values) -> Tensor:
    covariance = replace(darcy.FIELD_COVARIANCE, tau=values["tau"], alpha=values["alpha"])
    field = neumann(covariance, [seed], dimensions=2, seed=STREAM, n=n)
    return torch.where(field >= 0, values["high"], values["low"]).double()


def _nearest_finer(a: Tensor, n: int) -> Tensor:
    """Nearest-neighbour interpolation, as the field jumps; midway, the mean, because one of both nodes would shift the field."""
    place = torch.arange(n, dtype=torch.float64) * (a.shape[-1] - 1) / (n - 1)
    below, above = torch.ceil(place - 0.5).long(), torch.floor(place + 0.5).long()
    for axis in (-2, -1):
        a = (a.index_select(axis, below) + a.index_select(axis, above)) / 2
    return a


def _draw_navier_stokes(seed: int, n: int, values: Values) -> Tensor:
    usual = navier_stokes.INITIAL_COVARIANCE
    k = torch.arange(-usual.modes, usual.modes + 1, dtype=torch.float64)
    covariance, factor = _reshaped(usual, values, 4 * math.pi**2 * (k[:, None] ** 2 + k**2))
    age = values["time"]
    # A flow of age > 0 is smooth, so _RESOLVED_POINTS suffice to compute it.
    points = min(_navier_stokes_fine(n), _RESOLVED_POINTS) if age else n
    field = navier_stokes.sample_inputs([seed], seed=STREAM, n=points, covariance=covariance)
    field = field * (factor * values["amplitude"])
    if age:
        field = _advance_navier_stokes(field, age)
    return _every(field, n) if n < points else _periodic_finer(field, n)


def _navier_stokes_fine(n: int) -> int:
    return n * math.ceil(_NAVIER_STOKES_POINTS / n)


def _advance_navier_stokes(field: Tensor, time: float) -> Tensor:
    strength = max(1.0, field.shape[-1] / _RESOLVED_POINTS) * max(
        1.0, float(field.abs().max()) / _USUAL_VORTICITY
    )
    # In float32, as the zoo's data: accurate to 1e-5 (navier_stokes.solve).
    (last,) = navier_stokes.solve(
        field.float(), times=[float(time)], dt=_TIME_STEP / strength
    ).unbind(1)
    return last.double()


def _draw_nagumo(seed: int, n: int, values: Values) -> Tensor:
    usual = nagumo.FIELD_COVARIANCE
    k = torch.arange(usual.modes, dtype=torch.float64) ** 2
    waves = math.pi**2 * (k[:, None, None] + k[:, None] + k)
    covariance, factor = _reshaped(usual, values, waves)
    field = torch.tanh(factor * neumann(covariance, [seed], dimensions=3, seed=STREAM, n=n))
    return values["rate"] * values["factor"] ** field


def _linear_finer(field: Tensor, n: int) -> Tensor:
    """Trilinear interpolation, which keeps a field within its values."""
    return F.interpolate(field[None], size=(n,) * 3, mode="trilinear", align_corners=True)[0]


def _advance_nagumo(field: Tensor, _: int) -> Tensor:
    fastest = max(1.0, float(field.max()) / _USUAL_RATE)
    # in float32, as the zoo's data
    return nagumo.extrapolated_times(field.float(), dt=_NAGUMO_STEP / fastest)


_SOLVERS = (
    Solver(
        BURGERS,
        fine=lambda n: n * math.ceil(_BURGERS_POINTS / n),
        draw=_draw_burgers,
        refine=_periodic_finer,
        coarsen=_every,
        advance=_advance_burgers,
    ),
    Solver(
        DARCY,
        fine=lambda n: (n - 1) * max(1, _DARCY_INTERVALS // (n - 1)) + 1,
        draw=_draw_darcy,
        refine=_nearest_finer,
        coarsen=darcy.subsample,
        advance=lambda field, _: darcy.solve(field),
    ),
    Solver(
        NAVIER_STOKES,
        fine=_navier_stokes_fine,
        draw=_draw_navier_stokes,
        refine=_periodic_finer,
        coarsen=_every,
        advance=_advance_navier_stokes,
    ),
    Solver(
        NAGUMO,
        fine=lambda n: (n - 1) * math.ceil(_NAGUMO_INTERVALS / (n - 1)) + 1,
        draw=_draw_nagumo,
        refine=_linear_finer,
        coarsen=nagumo.subsample,
        advance=_advance_nagumo,
    ),
)
