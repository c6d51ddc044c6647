"""Residuals of solutions are small; residuals of wrong outputs are close to their relative error."""

from __future__ import annotations

import itertools

import pytest
import torch

from turbofno.models.trust import residuals
from turbofno.models.trust.features import spectrum_of
from turbofno.models.zoo.pde import burgers, darcy, navier_stokes
from turbofno.models.zoo.problems import DARCY
from turbofno.models.zoo.train import relative_l2
from turbofno_ops import fft

SEED = int(torch.randint(4000, ()))


def smooth_error(u: torch.Tensor, share: float) -> torch.Tensor:
    """A long wave with `share` of u's norm, zero at both ends of every axis."""
    x = torch.linspace(0, torch.pi, u.shape[-1], dtype=u.dtype)
    wave = (2 * x).sin() if u.ndim == 2 else torch.outer((2 * x).sin(), x.sin())
    size = u.flatten(1).norm(dim=1).view(-1, *[1] * (u.ndim - 1))
    return share * size * wave / wave.norm()


@pytest.mark.parametrize("n", [255, 1000])
@pytest.mark.parametrize("mean", [0.0, -0.6])
def test_burgers(n: int, mean: float) -> None:
    fine = burgers.sample_inputs(range(3), seed=SEED, n=4 * n) + mean
    u0, u = fine[:, ::4], burgers.solve(fine, nu=0.2, t=0.25)[:, ::4]
    right = residuals.burgers(u0, u, nu=0.2, time=0.25)
    assert right.max() < 5e-3, (right, SEED)
    wrong = residuals.burgers(u0.float(), (u + smooth_error(u, 0.1)).float(), nu=0.2, time=0.25)
    torch.testing.assert_close(wrong, torch.full((3,), 0.1), rtol=0.05, atol=5e-3)
    other_pde = residuals.burgers(u0, u, nu=0.1, time=0.25)
    truth = burgers.solve(fine, nu=0.1, t=0.25)[:, ::4]
    expected = (u - truth).norm(dim=1) / truth.norm(dim=1)
    torch.testing.assert_close(other_pde, expected, rtol=0.05, atol=5e-3)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e6], ids=["nan", "inf", "large"])
def test_the_burgers_residual_of_a_field_is_its_own(bad: float) -> None:
    """A field of the same batch that is not finite, or so large that its phi is all but 0, changes nothing."""
    u0, u = torch.randn(2, 5, 64)
    u0[1], u[3, 7] = bad * torch.sin(torch.linspace(0, 2 * torch.pi, 64)), bad
    for dtype in (torch.float32, torch.float64):
        args = [u0.to(dtype), u.to(dtype)]
        found = residuals.burgers(*args, nu=0.01, time=0.5)
        assert found.dtype == dtype
        for i in (0, 2, 4):
            expected = residuals.burgers(*(one[i : i + 1] for one in args), nu=0.01, time=0.5)
            torch.testing.assert_close(found[i : i + 1], expected, rtol=1e-5, atol=0)


def test_the_burgers_residual_of_a_large_field() -> None:
    """Whose waves have decayed: its exponent is above that of the largest number in float64."""
    waves = 1e4 * torch.sin(2 * torch.pi * torch.arange(64) / 64)
    u0, means = 2 + waves.expand(2, 64), torch.tensor([[2.0], [2.2]]).expand(2, 64)
    found = residuals.burgers(u0, means, nu=0.2, time=5.0)
    torch.testing.assert_close(found, torch.tensor([0.0, 0.1]), rtol=1e-3, atol=1e-4)


def test_the_burgers_residual_at_low_viscosity() -> None:
    """In float32 it would be 5e-5."""
    fine = burgers.sample_inputs(range(3), seed=3, n=1024)
    u0, u = fine[:, ::2], burgers.solve(fine, nu=0.005, t=1.0)[:, ::2]
    assert residuals.burgers(u0, u, nu=0.005, time=1.0).max() < 1e-6


def test_the_burgers_residual_is_unknown_where_phi_is_lost_in_rounding() -> None:
    wave = torch.sin(2 * torch.pi * torch.arange(256) / 256)
    u = torch.stack([0.1 * wave, wave])
    low = residuals.burgers(u, u, nu=0.002, time=0.1)
    assert low.isnan().tolist() == [False, True]


def test_darcy_on_the_solvers_own_grid() -> None:
    a = darcy.sample_inputs(range(3), seed=SEED, n=61)
    u = darcy.solve(a, f=2.0)
    assert residuals.darcy(a, u, source=2.0).max() < 1e-6, SEED
    wrong = residuals.darcy(a.float(), (u + smooth_error(u, 0.1)).float(), source=2.0)
    assert wrong.min() > 0.05, (wrong, SEED)
    assert wrong.max() < 0.2, (wrong, SEED)


def test_darcy_on_rectangles() -> None:
    size = (23, 14)
    a = 3 + 9 * torch.rand(size, dtype=torch.float64)
    u = torch.zeros(size, dtype=torch.float64)
    u[1:-1, 1:-1] = torch.linalg.solve(
        five_point(a), torch.full((21 * 12,), 2.0, dtype=torch.float64)
    ).view(21, 12)
    assert residuals.darcy(a[None], u[None], source=2.0).item() < 1e-12
    for share in (0.1, 0.3):
        x, y = (torch.linspace(0, torch.pi, n, dtype=torch.float64) for n in size)
        error = torch.outer(x.sin(), (2 * y).sin())
        wrong = u + share * u.norm() / error.norm() * error
        found = residuals.darcy(a[None].float(), wrong[None].float(), source=2.0).item()
        assert 0.5 * share < found < 2 * share


def five_point(a: torch.Tensor) -> torch.Tensor:
    """Matrix of -div(a grad u) at the inner nodes of the unit square, whose edges are nodes; u is 0 there."""
    nodes = list(itertools.product(range(1, a.shape[0] - 1), range(1, a.shape[1] - 1)))
    matrix = torch.zeros(len(nodes), len(nodes), dtype=torch.float64)
    for row, (i, j) in enumerate(nodes):
        for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            step = 1 / (a.shape[0 if di else 1] - 1)
            flux = (a[i, j] + a[i + di, j + dj]) / 2 / step**2
            matrix[row, row] += flux
            if (i + di, j + dj) in nodes:
                matrix[row, nodes.index((i + di, j + dj))] -= flux
    return matrix


def test_darcy_residual_of_a_solution_from_a_finer_grid_is_below_three_per_cent() -> None:
    fine = DARCY.simulate(range(2), seed=SEED, n=421)
    for frames in (fine[..., ::5, ::5], fine[..., ::3, ::5]):
        a, u = frames.unbind(1)
        assert residuals.darcy(a, u, source=1.0).max() < 0.03, SEED
        assert residuals.darcy(a, 0.8 * u, source=1.0).min() > 0.1, SEED


@pytest.mark.parametrize("n", [32, 64])
def test_navier_stokes(n: int) -> None:
    w = navier_stokes.sample_inputs(range(3), seed=SEED, n=64)
    frames = navier_stokes.solve(w, times=[6.0, 7.0])[..., :: 64 // n, :: 64 // n]
    before, after = frames.unbind(1)
    right = residuals.navier_stokes(before, after, nu=1e-3, time=1.0)
    assert right.max() < (0.03 if n == 32 else 2e-3), SEED
    if n == 64:
        error = 0.1 * after.flip(1)
        share = relative_l2(after + error, after)
        wrong = residuals.navier_stokes(
            before.float(), (after + error).float(), nu=1e-3, time=1.0
        ).double()
        assert (wrong / share).min() > 0.7, SEED
        assert (wrong / share).max() < 1.4, SEED
        unchanged = residuals.navier_stokes(before, before, nu=1e-3, time=1.0)
        assert (unchanged / relative_l2(before, after)).min() > 0.7, SEED


def test_the_navier_stokes_residual_is_the_same_on_rectangular_grids() -> None:
    w = navier_stokes.sample_inputs(range(2), seed=SEED, n=64)
    before, wrong = w, 1.1 * w
    square = residuals.navier_stokes(before, wrong, nu=1e-3, time=1.0)
    halved = residuals.navier_stokes(before[:, ::2], wrong[:, ::2], nu=1e-3, time=1.0)
    torch.testing.assert_close(halved, square, rtol=0.1, atol=0)


def test_a_known_spectrum_of_the_inputs_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fft, "is_preferred", lambda *_, **__: True)
    u0, u = torch.randn(2, 5, 64, dtype=torch.float64)
    w0, w1 = torch.randn(2, 5, 30, 24, dtype=torch.float64)
    for residual, first, last in (
        (residuals.burgers, u0, u),
        (residuals.navier_stokes, w0, w1),
    ):
        known = spectrum_of(first[:, None])
        expected = residual(first, last, nu=0.05, time=1.0)
        found = residual(first, last, nu=0.05, time=1.0, spectrum=known)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
