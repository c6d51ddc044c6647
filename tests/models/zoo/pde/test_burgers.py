"""Burgers solver against Cole-Hopf, its order in time, conservation, rejected arguments."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from turbofno.models.zoo.pde import burgers
from turbofno.models.zoo.pde.checks import SolverError


def cole_hopf(u0: Tensor, nu: float, t: float) -> Tensor:
    """u = -2 nu phi_x / phi, phi the solution of the heat equation; u0 must have zero mean."""
    n = u0.shape[-1]
    wave = 2j * math.pi * torch.fft.rfftfreq(n, 1 / n, dtype=torch.float64)
    spectrum = torch.fft.rfft(u0)
    integral = torch.zeros_like(spectrum)
    integral[..., 1:] = spectrum[..., 1:] / wave[1:]
    phi0 = torch.exp(-torch.fft.irfft(integral, n=n) / (2 * nu))
    phi = torch.fft.rfft(phi0) * torch.exp(nu * t * (wave**2).real)
    return -2 * nu * torch.fft.irfft(wave * phi, n=n) / torch.fft.irfft(phi, n=n)


def smooth_state(n: int) -> Tensor:
    x = torch.arange(n, dtype=torch.float64) / n
    return (torch.sin(2 * math.pi * x) + 0.5 * torch.cos(4 * math.pi * x))[None]


def relative_error(u: Tensor, reference: Tensor) -> float:
    return ((u - reference).norm(dim=-1) / reference.norm(dim=-1)).max().item()


def test_matches_cole_hopf_for_a_smooth_state():
    u0 = smooth_state(256)
    for nu, t in ((0.1, 1.0), (0.02, 0.5)):
        u = burgers.solve(u0, nu=nu, t=t, dt=1 / 1024)
        assert relative_error(u, cole_hopf(u0, nu, t)) < 1e-9


def test_matches_cole_hopf_for_random_states_at_the_defaults():
    u0 = burgers.sample_inputs(range(20), seed=0)
    assert relative_error(burgers.solve(u0), cole_hopf(u0, 0.1, 1.0)) < 1e-5


def test_is_fourth_order_in_time():
    u0 = smooth_state(64)
    exact = cole_hopf(u0, 0.05, 0.5)
    steps = (1 / 32, 1 / 64, 1 / 128)
    errors = [relative_error(burgers.solve(u0, nu=0.05, t=0.5, dt=dt), exact) for dt in steps]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(3.6 < order < 4.5 for order in orders), (errors, orders)


def test_conserves_the_mean_and_moves_with_it():
    u0 = smooth_state(128)
    shifted = burgers.solve(u0 + 1.0, nu=0.05, t=0.25, dt=1 / 1024)
    assert shifted.mean().item() == pytest.approx(1.0, abs=1e-13)
    # Galilean invariance: adding 1 to u0 carries the solution by t = 1/4 of the period.
    moved = torch.roll(burgers.solve(u0, nu=0.05, t=0.25, dt=1 / 1024), 32, dims=-1) + 1.0
    assert relative_error(shifted, moved) < 1e-8


def test_matches_the_alias_free_product_on_the_kept_modes():
    """One tiny step; u^2 / 2 evaluated on a grid too fine to alias, then cut to k < n / 3."""
    n, nu, dt, kept = 48, 0.01, 1e-7, 16
    noise = torch.randn(1, n, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    spectrum = torch.fft.rfft(noise)[:, :kept] / n
    start = torch.fft.irfft(spectrum, n=n) * n
    fine = torch.fft.irfft(spectrum, n=8 * n) * 8 * n
    wave = 2j * math.pi * torch.arange(kept, dtype=torch.float64)
    flux = torch.fft.rfft(fine.square() / 2)[:, :kept] / (8 * n)
    expected = nu * wave**2 * spectrum - wave * flux
    change = torch.fft.rfft(burgers.solve(start, nu=nu, t=dt, dt=dt) - start) / (n * dt)
    torch.testing.assert_close(change[:, :kept], expected, rtol=1e-3, atol=1e-3)
    assert change[:, kept:].abs().max().item() < 1e-6


def test_loses_energy():
    u0 = burgers.sample_inputs(range(8), seed=3, n=512)
    u = burgers.solve(u0)
    assert bool((u.square().mean(dim=1) < u0.square().mean(dim=1)).all())


def test_keeps_dtype_and_shape_and_agrees_across_grids():
    fine = burgers.solve(burgers.sample_inputs([1], seed=2, n=1024))
    coarse = burgers.solve(burgers.sample_inputs([1], seed=2, n=1024, dtype=torch.float32))
    assert coarse.dtype is torch.float32
    assert coarse.shape == (1, 1024)
    assert relative_error(coarse.double(), fine) < 1e-5
    other_grid = burgers.solve(burgers.sample_inputs([1], seed=2, n=2048))[:, ::2]
    assert relative_error(other_grid, fine) < 1e-6


def test_a_blow_up_raises_and_names_the_sample():
    u0 = torch.cat([0.01 * smooth_state(64), 1e6 * smooth_state(64)])
    with pytest.raises(SolverError, match=r"batch positions \[1\].*dt"):
        burgers.solve(u0, nu=1e-5, dt=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"u0": torch.zeros(64)}, "shape"),
        ({"u0": torch.zeros(0, 64)}, "no samples"),
        ({"u0": torch.zeros(1, 4)}, "grid size"),
        ({"u0": torch.zeros(1, 64, dtype=torch.int64)}, "dtype"),
        ({"u0": torch.full((1, 64), math.nan)}, "NaN"),
        ({"nu": 0.0}, "nu is"),
        ({"t": -1.0}, "t is"),
        ({"dt": math.inf}, "dt is"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        burgers.solve(**{"u0": torch.zeros(1, 64), **arguments})
