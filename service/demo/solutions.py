"""The zoo's samplers and solvers for one field at a time: any seed, any grid of the model, knobs to leave the training
distribution, and a solution as exact as the zoo's data.

Every solution is computed on a grid fine enough for the solver, and read off at the points asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from turbofno.models.core.config import PDE
from turbofno.models.zoo.pde import burgers, darcy, navier_stokes
from turbofno.models.zoo.pde.random_fields import Covariance, neumann_2d, periodic_1d
from turbofno.models.zoo.problems import BURGERS, DARCY, NAVIER_STOKES, Problem

STREAM = 3
"""Of the random numbers: not those of training and held-out data."""

Values = Mapping[str, float]

_BURGERS_POINTS = 1024
_DARCY_INTERVALS = 420
_NAVIER_STOKES_POINTS = 64
_RESOLVED_POINTS = 128
"""An axis of these resolves the flow from an initial state of the zoo to 1e-13."""
_USUAL_VORTICITY = 2.5
_TIME_STEP = 0.02


class NoReference(ValueError):
    """There is no sampler and solver for this PDE as it is stated."""


@dataclass(frozen=True, slots=True)
class Reference:
    """How inputs of one problem are drawn and solved; fields are float64 [1, *grid] with n points an axis."""

    problem: Problem
    fine: Callable[[int], int]
    """Points an axis of the grid that a field of n points is solved on."""
    draw: Callable[[int, int, Values], Tensor]
    """(sample, n, values of all knobs) -> the sample's function at n points an axis."""
    refine: Callable[[Tensor, int], Tensor]
    """A field on a grid with more points."""
    coarsen: Callable[[Tensor, int], Tensor]
    """The values at n points of a field on the fine grid."""
    advance: Callable[[Tensor, int], Tensor]
    """What the model should answer, or after so many of its steps."""

    def sample(self, index: int, n: int, values: Values) -> Tensor:
        """An input, float32 [1, *grid]."""
        return self.draw(index, n, values).float()

    def solve_sample(self, index: int, n: int, values: Values, steps: int = 1) -> Tensor:
        """The solution for that very function, float32 [1, *grid]. Raises SolverError."""
        return self._solve(self.draw(index, self.fine(n), values), n, steps)

    def solve(self, field: Tensor, steps: int = 1) -> Tensor:
        """The solution for values [1, *grid] at n points an axis, float32. Raises ValueError, SolverError."""
        if len(set(field.shape[1:])) != 1:
            raise ValueError(
                f"the solver needs as many points along one axis as along the other, got {list(field.shape[1:])}"
            )
        n = field.shape[-1]
        return self._solve(self.refine(field.double(), self.fine(n)), n, steps)

    def _solve(self, field: Tensor, n: int, steps: int) -> Tensor:
        return self.coarsen(self.advance(field, steps), n).float()


def reference_for(pde: PDE) -> Reference:
    """The reference of a problem that is stated just so. Raises NoReference."""
    for one in _REFERENCES:
        known = one.problem.pde
        if (known.equation, known.domain, known.parameters) == (
            pde.equation, pde.domain, pde.parameters,
        ):  # fmt: skip
            return one
    raise NoReference(f"there is no solver for {pde.name!r} in the form {pde.equation!r}")


def _reshaped(usual: Covariance, values: Values, laplacian: Tensor) -> tuple[Covariance, float]:
    """The covariance with other tau and alpha, and the factor that leaves its total variance as it was."""
    other = replace(usual, tau=values["tau"], alpha=values["alpha"])
    if other == usual:
        return usual, 1.0
    return other, float(
        usual.sqrt_eigenvalues(laplacian).norm() / other.sqrt_eigenvalues(laplacian).norm()
    )


def _periodic_finer(field: Tensor, n: int) -> Tensor:
    """Trigonometric interpolation of [1, *grid] to n points an axis, at least as many as there are."""
    for axis in range(1, field.ndim):
        points = field.shape[axis]
        if n == points:
            continue
        spectrum = torch.fft.rfft(field, dim=axis, norm="forward")
        if points % 2 == 0:  # the highest wave stands for a pair
            spectrum.select(axis, points // 2).mul_(0.5)
        field = torch.fft.irfft(spectrum, n=n, dim=axis, norm="forward")
    return field


def _every(field: Tensor, n: int) -> Tensor:
    stride = field.shape[-1] // n
    return field[..., ::stride] if field.ndim == 2 else field[..., ::stride, ::stride]


def _draw_burgers(index: int, n: int, values: Values) -> Tensor:
    usual = burgers.INITIAL_COVARIANCE
    waves = (2 * math.pi * torch.arange(1, usual.modes + 1, dtype=torch.float64)) ** 2
    covariance, factor = _reshaped(usual, values, waves)
    field = periodic_1d(covariance, [index], seed=STREAM, n=n)
    return field * (factor * values["amplitude"])


def _draw_darcy(index: int, n: int, values: Values) -> Tensor:
    covariance = replace(darcy.FIELD_COVARIANCE, tau=values["tau"], alpha=values["alpha"])
    field = neumann_2d(covariance, [index], seed=STREAM, n=n)
    return torch.where(field >= 0, values["high"], values["low"]).double()


def _nearest_finer(a: Tensor, n: int) -> Tensor:
    """Each new node has the value of the nearest old one: of two values nothing between them is made."""
    old = a.shape[-1] - 1
    nearest = torch.floor(torch.arange(n) * old / (n - 1) + 0.5).long()
    return a[..., nearest, :][..., nearest]


def _draw_navier_stokes(index: int, n: int, values: Values) -> Tensor:
    usual = navier_stokes.INITIAL_COVARIANCE
    k = torch.arange(-usual.modes, usual.modes + 1, dtype=torch.float64)
    covariance, factor = _reshaped(usual, values, 4 * math.pi**2 * (k[:, None] ** 2 + k**2))
    age = values["time"]
    # An old flow is smooth: what a grid that resolves it carries is all there is.
    points = min(_navier_stokes_fine(n), _RESOLVED_POINTS) if age else n
    field = navier_stokes.sample_inputs([index], seed=STREAM, n=points, covariance=covariance)
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
    # In float32 the zoo's data was made too: within 1e-5 (navier_stokes.solve).
    (last,) = navier_stokes.solve(
        field.float(), times=[float(time)], dt=_TIME_STEP / strength
    ).unbind(1)
    return last.double()


_REFERENCES = (
    Reference(
        BURGERS,
        fine=lambda n: n * math.ceil(_BURGERS_POINTS / n),
        draw=_draw_burgers,
        refine=_periodic_finer,
        coarsen=_every,
        advance=lambda field, _: burgers.solve(field),
    ),
    Reference(
        DARCY,
        fine=lambda n: (n - 1) * max(1, _DARCY_INTERVALS // (n - 1)) + 1,
        draw=_draw_darcy,
        refine=_nearest_finer,
        coarsen=darcy.subsample,
        advance=lambda field, _: darcy.solve(field),
    ),
    Reference(
        NAVIER_STOKES,
        fine=_navier_stokes_fine,
        draw=_draw_navier_stokes,
        refine=_periodic_finer,
        coarsen=_every,
        advance=_advance_navier_stokes,
    ),
)
