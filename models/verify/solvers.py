"""The solvers of the zoo's PDEs on coarse grids and with coarse steps, for the comparison at equal error.

Each solves on its own grid and interpolates the result to the surrogate's grid. Its input is the best that its grid
can represent: the same function without unresolved wavenumbers (periodic problems), or the same material sampled at
the nodes (Darcy, Nagumo).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from turbofno.models.core.resample import resample
from turbofno.models.verify.tasks import Task
from turbofno.models.zoo.pde import burgers, darcy, nagumo, navier_stokes
from turbofno_ops.fft import transforms_for


@dataclass(frozen=True, slots=True)
class CoarseSolver:
    """A family of faster, less accurate versions of a PDE's reference solver.

    `grids` and `efforts` go from coarse to fine; `knob` names the effort: steps per unit of time, or the residual at
    which an iteration ends. `begin(task, n)` returns inputs [samples, n, ...]; `solve(inputs, task, effort)` returns
    solutions [samples, steps, *grid of the task].
    """

    knob: str
    grids: tuple[int, ...]
    efforts: tuple[float, ...]
    begin: Callable[[Task, int], torch.Tensor]
    solve: Callable[[torch.Tensor, Task, float], torch.Tensor]
    reference: str


def band_limited(field: torch.Tensor, size: tuple[int, ...]) -> torch.Tensor:
    """Periodic resampling [batch, *grid] -> [batch, *size] with the wavenumbers of both grids, without Nyquist."""
    axes = tuple(range(1, field.ndim))
    transforms = transforms_for(field)
    spectrum = transforms.rfftn(field, dim=axes, norm="forward")
    bands = [(min(pair) - 1) // 2 for pair in zip(size, field.shape[1:], strict=True)]
    target = spectrum.new_zeros(len(field), *size[:-1], size[-1] // 2 + 1)
    last = slice(bands[-1] + 1)
    if len(size) == 1:
        target[:, last] = spectrum[:, last]
    else:
        rows = bands[0]
        for part in (slice(rows + 1), slice(-rows, None)):
            target[:, part, last] = spectrum[:, part, last]
    resampled: torch.Tensor = transforms.irfftn(target, s=size, dim=axes, norm="forward")
    return resampled


def _begin_burgers(task: Task, n: int) -> torch.Tensor:
    samples = range(len(task.inputs))
    field = burgers.sample_inputs(samples, seed=task.seed, device=task.inputs.device)
    return band_limited(field, (n,))


def _begin_navier_stokes(task: Task, n: int) -> torch.Tensor:
    return band_limited(task.inputs, (n, n))


def _solve_burgers(inputs: torch.Tensor, task: Task, steps: float) -> torch.Tensor:
    answer = burgers.solve(inputs, dt=1 / steps)
    return band_limited(answer, tuple(task.truth.shape[2:])).unsqueeze(1)


def _solve_navier_stokes(inputs: torch.Tensor, task: Task, steps: float) -> torch.Tensor:
    # the forcing is constant, so time can start at any state
    frames = navier_stokes.solve(inputs, times=task.times, dt=1 / steps)
    grid = tuple(task.truth.shape[2:])
    return band_limited(frames.flatten(0, 1), grid).unflatten(0, frames.shape[:2])


def _begin_darcy(task: Task, n: int) -> torch.Tensor:
    samples = range(len(task.inputs))
    return darcy.sample_inputs(samples, seed=task.seed, n=n, device=task.inputs.device)


def _solve_darcy(inputs: torch.Tensor, task: Task, residual: float) -> torch.Tensor:
    return resample(darcy.solve(inputs, rtol=residual).unsqueeze(1), task.truth.shape[2:])


def _begin_nagumo(task: Task, n: int) -> torch.Tensor:
    return task.problem.sample(
        range(len(task.inputs)), seed=task.seed, n=n, device=task.inputs.device
    )


def _solve_nagumo(inputs: torch.Tensor, task: Task, steps: float) -> torch.Tensor:
    times = nagumo.activation_times(inputs, dt=1 / steps).unsqueeze(1)
    size = list(task.truth.shape[2:])
    return F.interpolate(times, size=size, mode="trilinear", align_corners=True)


_STEPS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)

COARSE_SOLVERS = {
    "burgers": CoarseSolver(
        knob="steps",
        grids=(16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512),
        efforts=_STEPS,
        begin=_begin_burgers,
        solve=_solve_burgers,
        reference="pseudo-spectral, ETDRK4, 1024 points or more, 256 steps, float64",
    ),
    "darcy": CoarseSolver(
        knob="relative residual",
        grids=(15, 22, 29, 43, 61, 71, 85, 106, 128, 141, 176, 211, 281),
        efforts=(0.3, 0.1, 0.03, 0.01, 1e-3, 1e-4),
        begin=_begin_darcy,
        solve=_solve_darcy,
        reference="finite differences on 421 x 421 nodes, residual 1e-8, float64",
    ),
    "navier-stokes": CoarseSolver(
        knob="steps a unit of time",
        grids=(12, 16, 20, 24, 32, 40, 48, 64),
        efforts=_STEPS[:11],
        begin=_begin_navier_stokes,
        solve=_solve_navier_stokes,
        reference="pseudo-spectral, integrating-factor RK4, 64 x 64 points or more, 50 steps a unit "
        "of time, float32",
    ),
    "nagumo": CoarseSolver(
        knob="steps per ms",
        grids=(25, 31, 35, 37, 39, 41, 43, 45, 47, 49, 53, 57, 61),
        efforts=(5, 5.5, 6, 7, 8, 10, 12, 16),  # below 5 the reaction is unstable
        begin=_begin_nagumo,
        solve=_solve_nagumo,
        reference="spectral in cosines, Strang splitting, 61 nodes an axis or more, extrapolated from 5.6 and 11.1 steps "
        "per ms, float32",
    ),
}
