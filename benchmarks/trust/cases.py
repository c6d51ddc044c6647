"""Inputs in and out of the zoo models' training distributions, with the solution of the declared PDE."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from turbofno.models.zoo.pde import burgers, darcy, nagumo, navier_stokes
from turbofno.models.zoo.pde.random_fields import (
    Covariance,
    neumann,
    periodic_1d,
    periodic_2d,
)
from turbofno.models.zoo.problems import HELD_OUT_SEED

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of input; `make(samples)` returns inputs and truths, float32 [samples, *grid] each."""

    name: str
    make: Callable[[range], Pair]
    in_distribution: bool = False


def noise_like(fields: Tensor, share: float) -> Tensor:
    """White noise whose deviation is `share` times that of each field."""
    generator = torch.Generator().manual_seed(HELD_OUT_SEED)
    noise = torch.randn(fields.shape, generator=generator, dtype=fields.dtype)
    axes = tuple(range(1, fields.ndim))
    return share * fields.std(axes, keepdim=True) * noise


def _same_size(
    covariance: Covariance, dimensions: int, *, tau: float | None = None, alpha: float | None = None
) -> Covariance:
    """The covariance with other parameters, scaled so that the fields' rms does not change."""
    other = replace(covariance, tau=tau or covariance.tau, alpha=alpha or covariance.alpha)
    factor = _rms(covariance, dimensions) / _rms(other, dimensions)
    return replace(other, sigma=other.sigma * factor)


def _rms(covariance: Covariance, dimensions: int) -> float:
    k = torch.arange(-covariance.modes, covariance.modes + 1, dtype=torch.float64)
    squared = k**2 if dimensions == 1 else k[:, None] ** 2 + k**2
    return covariance.sqrt_eigenvalues(4 * math.pi**2 * squared).square().sum().sqrt().item()


def _burgers(
    samples: range,
    *,
    covariance: Covariance = burgers.INITIAL_COVARIANCE,
    change: Callable[[Tensor], Tensor] = lambda u: u,
    n: int = 1024,
    nu: float = 0.1,
) -> Pair:
    fine = max(n, 1024)
    u0 = change(periodic_1d(covariance, samples, seed=HELD_OUT_SEED, n=fine))
    u = burgers.solve(u0, nu=nu, dt=1 / 1024)
    stride = fine // n
    return u0[:, ::stride].float(), u[:, ::stride].float()


_BURGERS_SIZE = partial(_same_size, burgers.INITIAL_COVARIANCE, 1)
BURGERS_CASES = (
    Case("in distribution", _burgers, in_distribution=True),
    Case("amplitude x 0.3", partial(_burgers, change=lambda u: 0.3 * u)),
    Case("amplitude x 2", partial(_burgers, change=lambda u: 2 * u)),
    Case("amplitude x 4", partial(_burgers, change=lambda u: 4 * u)),
    Case("amplitude x 8", partial(_burgers, change=lambda u: 8 * u)),
    Case("shorter waves (tau 20)", partial(_burgers, covariance=_BURGERS_SIZE(tau=20.0))),
    Case("rougher (alpha 1.2)", partial(_burgers, covariance=_BURGERS_SIZE(alpha=1.2))),
    Case("smoother (alpha 4)", partial(_burgers, covariance=_BURGERS_SIZE(alpha=4.0))),
    Case("mean + 0.2", partial(_burgers, change=lambda u: u + 0.2)),
    Case("mean + 1", partial(_burgers, change=lambda u: u + 1)),
    Case("noise 5 %", partial(_burgers, change=lambda u: u + noise_like(u, 0.05))),
    Case("noise 50 %", partial(_burgers, change=lambda u: u + noise_like(u, 0.5))),
    Case("square waves", partial(_burgers, change=lambda u: 0.6 * u.sign())),
    Case("grid 64", partial(_burgers, n=64)),
    Case("grid 4096", partial(_burgers, n=4096)),
    Case("solved with nu 0.05", partial(_burgers, nu=0.05)),
)

_NODES = 421


def _darcy(
    samples: range,
    *,
    tau: float = 3.0,
    high: float = 12.0,
    low: float = 3.0,
    change: Callable[[Tensor], Tensor] = lambda a: a,
    n: int = 85,
) -> Pair:
    covariance = replace(darcy.FIELD_COVARIANCE, tau=tau)
    field = neumann(covariance, samples, dimensions=2, seed=HELD_OUT_SEED, n=_NODES)
    a = change(torch.where(field >= 0, high, low).double())
    return _darcy_pair(a, n)


def _smooth_darcy(samples: range, *, n: int = 85) -> Pair:
    field = neumann(darcy.FIELD_COVARIANCE, samples, dimensions=2, seed=HELD_OUT_SEED, n=_NODES)
    field = field / field.std((1, 2), keepdim=True)
    return _darcy_pair(6 * (math.log(2) * field.clamp(-1, 1)).exp(), n)


def _noise_in_blocks(a: Tensor, share: float) -> Tensor:
    """a plus noise that is constant on the cells of the 85 x 85 grid, so that every grid samples the same field."""
    coarse = darcy.subsample(a, 85)
    noise = noise_like(coarse, share).repeat_interleave(5, 1).repeat_interleave(5, 2)
    return (a + noise[:, 2:-2, 2:-2]).clamp_min(0.5)


def _darcy_pair(a: Tensor, n: int) -> Pair:
    u = darcy.solve(a, rtol=1e-6, max_iterations=2000)
    return darcy.subsample(a, n).float(), darcy.subsample(u, n).float()


DARCY_CASES = (
    Case("in distribution", _darcy, in_distribution=True),
    Case("values 12 and 6", partial(_darcy, low=6.0)),
    Case("values 24 and 3", partial(_darcy, high=24.0)),
    Case("values 60 and 3", partial(_darcy, high=60.0)),
    Case("values 13 and 3.25", partial(_darcy, high=13.0, low=3.25)),
    Case("values 24 and 6", partial(_darcy, high=24.0, low=6.0)),
    Case("values swapped in size", partial(_darcy, high=3.0, low=12.0)),
    Case("shorter waves (tau 9)", partial(_darcy, tau=9.0)),
    Case("shorter waves (tau 20)", partial(_darcy, tau=20.0)),
    Case("smooth, 3 to 12", _smooth_darcy),
    Case("noise 10 %", partial(_darcy, change=partial(_noise_in_blocks, share=0.1))),
    Case("noise 40 %", partial(_darcy, change=partial(_noise_in_blocks, share=0.4))),
    Case("grid 43", partial(_darcy, n=43)),
    Case("grid 141", partial(_darcy, n=141)),
)


def _navier_stokes(
    samples: range,
    *,
    covariance: Covariance = navier_stokes.INITIAL_COVARIANCE,
    start: float = 10.0,
    start_nu: float = 1e-3,
    forced: bool = True,
    change: Callable[[Tensor], Tensor] = lambda w: w,
    n: int = 64,
    nu: float = 1e-3,
) -> Pair:
    """A flow with viscosity `start_nu` at time `start`, modified by `change`, and its state one time unit later."""
    fine = max(n, 64)
    w = periodic_2d(covariance, samples, seed=HELD_OUT_SEED, n=fine, dtype=torch.float32)
    if start:
        forcing = None if forced else torch.zeros(fine, fine)
        w = navier_stokes.solve(w, times=[start], nu=start_nu, forcing=forcing)[:, 0]
    w = change(w)
    after = navier_stokes.solve(w, times=[1.0], nu=nu, dt=5e-3)[:, 0]
    stride = fine // n
    return w[:, ::stride, ::stride], after[:, ::stride, ::stride]


def _mixed_ages(samples: range) -> Pair:
    """Flows at several times between 0 and 30, as in training."""
    parts = [
        _navier_stokes(samples[i :: len(_AGES)], start=age)
        for i, age in enumerate(_AGES)
        if samples[i :: len(_AGES)]
    ]
    return torch.cat([w for w, _ in parts]), torch.cat([w for _, w in parts])


_AGES = (0.0, 2.0, 5.0, 10.0, 20.0, 30.0)
_FLOW_SIZE = partial(_same_size, navier_stokes.INITIAL_COVARIANCE, 2)
NAVIER_STOKES_CASES = (
    Case("in distribution", _mixed_ages, in_distribution=True),
    Case("amplitude x 0.3", partial(_navier_stokes, change=lambda w: 0.3 * w)),
    Case("amplitude x 1.5", partial(_navier_stokes, change=lambda w: 1.5 * w)),
    Case("amplitude x 3", partial(_navier_stokes, change=lambda w: 3 * w)),
    Case(
        "shorter waves (tau 25), t = 0",
        partial(_navier_stokes, covariance=_FLOW_SIZE(tau=25.0), start=0.0),
    ),
    Case(
        "rougher (alpha 1.5), t = 0",
        partial(_navier_stokes, covariance=_FLOW_SIZE(alpha=1.5), start=0.0),
    ),
    Case("a flow of viscosity 1e-4", partial(_navier_stokes, start_nu=1e-4)),
    Case("a flow of viscosity 1e-2", partial(_navier_stokes, start_nu=1e-2)),
    Case("a flow without forcing", partial(_navier_stokes, forced=False)),
    Case("mirrored", partial(_navier_stokes, change=lambda w: -w.flip(1))),
    Case("shifted by half a period", partial(_navier_stokes, change=lambda w: w.roll(32, 1))),
    Case("mean + 0.3", partial(_navier_stokes, change=lambda w: w + 0.3)),
    Case("noise 3 %", partial(_navier_stokes, change=lambda w: w + noise_like(w, 0.03))),
    Case("noise 20 %", partial(_navier_stokes, change=lambda w: w + noise_like(w, 0.2))),
    Case("grid 32", partial(_navier_stokes, n=32)),
    Case("grid 128", partial(_navier_stokes, n=128)),
    Case("solved with nu 3e-3", partial(_navier_stokes, nu=3e-3)),
)

_BLOCK_NODES = 61


def _nagumo(
    samples: range,
    *,
    factor: float = nagumo.RATE_FACTOR,
    tau: float | None = None,
    alpha: float | None = None,
    change: Callable[[Tensor], Tensor] = lambda k: k,
    n: int = 21,
) -> Pair:
    usual = nagumo.FIELD_COVARIANCE
    covariance = replace(usual, tau=tau or usual.tau, alpha=alpha or usual.alpha)
    field = neumann(covariance, samples, dimensions=3, seed=HELD_OUT_SEED, n=_BLOCK_NODES)
    if covariance != usual:
        field = field / field.std((1, 2, 3), keepdim=True)
    k = change(nagumo.MEDIAN_RATE * factor ** torch.tanh(field)).float()
    times = nagumo.extrapolated_times(k, dt=2.2 / max(12.5, k.max().item()))
    return nagumo.subsample(k, n), nagumo.subsample(times, n)


def _two_halves(k: Tensor) -> Tensor:
    """The median rate times 2 where x is below 10 mm, divided by 2 beyond."""
    halves = torch.full_like(k, nagumo.MEDIAN_RATE / 2)
    halves[:, : k.shape[1] // 2] = 2 * nagumo.MEDIAN_RATE
    return halves


def _noise_of_nodes(k: Tensor, share: float) -> Tensor:
    """k plus noise that is linear between the nodes of the 21^3 grid."""
    noise = noise_like(nagumo.subsample(k, 21), share)
    size = k.shape[1:]
    finer = F.interpolate(noise[:, None], size=size, mode="trilinear", align_corners=True)[:, 0]
    return (k + finer).clamp_min(1.5)


NAGUMO_CASES = (
    Case("in distribution", _nagumo, in_distribution=True),
    Case("contrast 1.5", partial(_nagumo, factor=1.5)),
    Case("contrast 3", partial(_nagumo, factor=3.0)),
    Case("rates x 0.8", partial(_nagumo, change=lambda k: 0.8 * k)),
    Case("rates x 1.5", partial(_nagumo, change=lambda k: 1.5 * k)),
    Case("constant", partial(_nagumo, factor=1.0)),
    Case("two halves", partial(_nagumo, change=_two_halves)),
    Case("shorter waves (tau 25)", partial(_nagumo, tau=25.0)),
    Case("longer waves (tau 3)", partial(_nagumo, tau=3.0)),
    Case("rougher (alpha 1.5)", partial(_nagumo, alpha=1.5)),
    Case("noise 20 %", partial(_nagumo, change=partial(_noise_of_nodes, share=0.2))),
    Case("noise 60 %", partial(_nagumo, change=partial(_noise_of_nodes, share=0.6))),
    Case("grid 16", partial(_nagumo, n=16)),
    Case("grid 31", partial(_nagumo, n=31)),
)

CASES = {
    "burgers": BURGERS_CASES,
    "darcy": DARCY_CASES,
    "navier-stokes": NAVIER_STOKES_CASES,
    "nagumo": NAGUMO_CASES,
}
