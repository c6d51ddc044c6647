"""Vorticity solver against Taylor-Green, its order in time, invariants, rejected arguments."""

import itertools
import math

import pytest
import torch
from torch import Tensor

from turbofno.models.zoo.pde import navier_stokes
from turbofno.models.zoo.pde.checks import SolverError


def no_forcing(n: int) -> Tensor:
    return torch.zeros(n, n, dtype=torch.float64)


def energy(w: Tensor) -> Tensor:
    """Mean kinetic energy |v|^2 / 2 of each vorticity field, by Parseval on the full spectrum."""
    n = w.shape[-1]
    k = torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    squared = 4 * math.pi**2 * (k[:, None] ** 2 + k**2)
    squared[0, 0] = math.inf
    return ((torch.fft.fft2(w) / n**2).abs() ** 2 / squared).sum(dim=(-2, -1)) / 2


def shear_layers(n: int) -> Tensor:
    """A smooth state whose advection term is not zero."""
    x = torch.arange(n, dtype=torch.float64) / n * 2 * math.pi
    y = x[:, None].T
    x = x[:, None]
    w = torch.sin(x) * torch.cos(2 * y) + torch.cos(3 * x + y) + 0.5 * torch.sin(y - x)
    return 4 * w[None]


def test_taylor_green_vortex_decays_analytically():
    n, nu, t = 32, 0.01, 1.5
    x = torch.arange(n, dtype=torch.float64) / n * 2 * math.pi
    w0 = 5 * torch.cos(x[:, None]) * torch.cos(x)[None]
    w = navier_stokes.solve(w0[None], times=[t], nu=nu, forcing=no_forcing(n), dt=0.05)
    expected = w0 * math.exp(-nu * 8 * math.pi**2 * t)
    torch.testing.assert_close(w[0, 0], expected, rtol=0, atol=1e-12)


def test_parallel_shear_flow_is_steady_without_viscosity():
    n = 64
    y = torch.arange(n, dtype=torch.float64) / n
    w0 = (-2 * math.pi * torch.cos(2 * math.pi * y) + torch.sin(6 * math.pi * y)).repeat(1, n, 1)
    w = navier_stokes.solve(w0, times=[0.5], nu=0.0, forcing=no_forcing(n), dt=0.01)
    torch.testing.assert_close(w[:, 0], w0, rtol=0, atol=1e-11)


def test_tendency_equals_advection_in_physical_space():
    """One tiny step against -v . grad w + nu Lap w + f evaluated by full complex transforms."""
    n, nu, dt = 48, 0.02, 1e-6
    w0 = shear_layers(n)
    k = 2 * math.pi * torch.fft.fftfreq(n, 1 / n, dtype=torch.float64)
    kx, ky = k[:, None], k[None]
    spectrum = torch.fft.fft2(w0[0])
    squared = kx**2 + ky**2
    stream = torch.where(squared > 0, spectrum / squared.clamp(min=1), 0)

    def back(s: Tensor) -> Tensor:
        return torch.fft.ifft2(s).real

    advection = back(1j * ky * stream) * back(1j * kx * spectrum)
    advection -= back(1j * kx * stream) * back(1j * ky * spectrum)
    f = navier_stokes.paper_forcing(n)
    expected = -advection - nu * back(squared * spectrum) + f
    w = navier_stokes.solve(w0, times=[dt], nu=nu, dt=dt)[0, 0]
    torch.testing.assert_close((w - w0[0]) / dt, expected, rtol=1e-4, atol=1e-3)


def test_is_fourth_order_in_time():
    w0 = shear_layers(32)
    runs = [
        navier_stokes.solve(w0, times=[0.8], nu=2e-3, dt=0.8 / steps) for steps in (8, 16, 32, 256)
    ]
    errors = [(run - runs[-1]).abs().max().item() for run in runs[:-1]]
    orders = [math.log2(a / b) for a, b in itertools.pairwise(errors)]
    assert all(3.6 < order < 4.6 for order in orders), (errors, orders)


def test_conserves_energy_and_enstrophy_without_viscosity():
    w0 = shear_layers(48)
    w = navier_stokes.solve(w0, times=[0.5], nu=0.0, forcing=no_forcing(48), dt=0.002)[:, 0]
    assert (w - w0).abs().max().item() > 1.0
    torch.testing.assert_close(energy(w), energy(w0), rtol=1e-8, atol=0)
    enstrophies = [field.square().mean() for field in (w, w0)]
    torch.testing.assert_close(*enstrophies, rtol=1e-8, atol=0)


def test_conserves_the_mean_vorticity():
    w0 = shear_layers(32) + 0.25
    w = navier_stokes.solve(w0, times=[0.5, 1.0], dt=0.02)
    torch.testing.assert_close(
        w.mean(dim=(-2, -1)), torch.full((1, 2), 0.25, dtype=torch.float64), rtol=0, atol=1e-13
    )


def test_forcing_alone_accelerates_a_fluid_at_rest():
    """The paper's forcing is one |k|^2 = 2 mode: w = f (1 - exp(-8 pi^2 nu t)) / (8 pi^2 nu)."""
    n, nu, t = 32, 0.01, 2.0
    f = navier_stokes.paper_forcing(n)
    rate = 8 * math.pi**2 * nu
    w = navier_stokes.solve(torch.zeros(1, n, n, dtype=torch.float64), times=[t], nu=nu, dt=0.01)
    torch.testing.assert_close(w[0, 0], f * (1 - math.exp(-rate * t)) / rate, rtol=0, atol=1e-8)


def test_grid_and_output_times_do_not_matter():
    coarse = navier_stokes.sample_inputs([2], seed=1, n=64)
    fine = navier_stokes.sample_inputs([2], seed=1, n=96)
    low = navier_stokes.solve(coarse, times=[1.0, 2.0], dt=0.02, output_n=32)
    high = navier_stokes.solve(fine, times=[2.0], dt=0.02, output_n=32)
    assert low.shape == (1, 2, 32, 32)
    torch.testing.assert_close(low[:, 1], high[:, 0], rtol=0, atol=1e-6)


def test_float32_follows_float64():
    w0 = navier_stokes.sample_inputs(range(2), seed=0, n=48)
    double = navier_stokes.solve(w0, times=[2.0], dt=0.05)
    single = navier_stokes.solve(w0.float(), times=[2.0], dt=0.05)
    assert single.dtype is torch.float32
    assert ((single.double() - double).norm() / double.norm()).item() < 3e-6


def test_initial_vorticity_has_the_stated_spread():
    for covariance, rms in (
        (navier_stokes.INITIAL_COVARIANCE, 0.26),
        (navier_stokes.PRINTED_COVARIANCE, 0.043),
    ):
        w0 = navier_stokes.sample_inputs(range(200), seed=0, n=32, covariance=covariance)
        assert w0.square().mean().sqrt().item() == pytest.approx(rms, rel=0.05)


def test_a_blow_up_raises():
    w0 = torch.cat([shear_layers(32), 1e4 * shear_layers(32)])
    with pytest.raises(SolverError, match=r"batch positions \[1\].*dt"):
        navier_stokes.solve(w0, times=[1.0], nu=1e-6, dt=0.05)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"w0": torch.zeros(32, 32)}, "shape"),
        ({"w0": torch.zeros(1, 32, 16)}, "shape"),
        ({"w0": torch.full((1, 32, 32), math.nan)}, "NaN"),
        ({"w0": torch.zeros(1, 32, 32, dtype=torch.complex64)}, "dtype"),
        ({"times": []}, "times are"),
        ({"times": [0.0, 1.0]}, "times are"),
        ({"times": [1.0, 1.0]}, "times are"),
        ({"times": [math.inf]}, "last time"),
        ({"nu": -1e-3}, "nu is"),
        ({"dt": 0.0}, "dt is"),
        ({"forcing": torch.zeros(16, 16)}, "forcing has shape"),
        ({"output_n": 20}, "output_n is 20"),
        ({"output_n": 0}, "output_n is 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        navier_stokes.solve(**{"w0": torch.zeros(1, 32, 32), "times": [1.0], **arguments})
