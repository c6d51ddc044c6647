"""Nagumo solver against a radial solver, a finite-difference solver and exact diffusion; orders and symmetries."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.ndimage import laplace
from torch import Tensor

from tests.thorough import tried
from turbofno.models.zoo.pde import nagumo
from turbofno.models.zoo.pde.checks import SolverError

RATE = 3.0
SMALL = 8.0


@pytest.fixture
def small_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """A block of 8 mm, whose fronts few nodes resolve: their decay length is 0.26 mm where k is RATE."""
    monkeypatch.setattr(nagumo, "SIDE", SMALL)


def reaction(u: np.ndarray, k: np.ndarray | float) -> np.ndarray:
    return k * u * (1 - u) * (u - nagumo.THRESHOLD)


def passing_times(t: np.ndarray, u: np.ndarray) -> np.ndarray:
    """Times [...] at which u [..., steps] passes 1/2."""
    after = np.argmax(u > 0.5, axis=-1)
    high = np.take_along_axis(u, after[..., None], -1)[..., 0]
    low = np.take_along_axis(u, after[..., None] - 1, -1)[..., 0]
    return t[after - 1] + (t[after] - t[after - 1]) * (0.5 - low) / (high - low)


def smooth_rates(n: int) -> Tensor:
    x = torch.linspace(0, math.pi, n, dtype=torch.float64)
    bump = torch.cos(x)[:, None, None] * torch.cos(2 * x)[:, None] + 0.5 * torch.cos(x)
    return RATE * 1.5 ** bump[None]


def relative(a: Tensor, b: Tensor) -> float:
    return ((a - b).norm() / b.norm()).item()


@pytest.mark.usefixtures("small_block")
def test_spherical_front_matches_a_radial_solver():
    """Until it meets a face, the front is a ball: u_t = D (u_rr + 2 u_r / r) + reaction, in finite volumes."""
    cells, radius = 600, 6.0
    faces = np.linspace(0, radius, cells + 1)
    r, h = (faces[1:] + faces[:-1]) / 2, radius / cells
    volumes = (faces[1:] ** 3 - faces[:-1] ** 3) / 3

    def change(_t: float, u: np.ndarray) -> np.ndarray:
        flux = np.zeros(cells + 1)
        flux[1:-1] = nagumo.DIFFUSIVITY * faces[1:-1] ** 2 * np.diff(u) / h
        return np.diff(flux) / volumes + reaction(u, RATE)

    width = math.sqrt(2 * nagumo.DIFFUSIVITY / nagumo.MEDIAN_RATE)
    start = 1 / (1 + np.exp((r - nagumo.STIMULUS_RADIUS) / width))
    t = np.linspace(0, 24, 961)
    radial = solve_ivp(change, (0, 24), start, "LSODA", t, rtol=1e-6, atol=1e-8, lband=1, uband=1)
    seen = (r > 2) & (r < 3.5)
    expected = np.trapezoid(1 - radial.y[seen], t, axis=-1)

    times = nagumo.extrapolated_times(torch.full((1, 49, 49, 49), RATE).double(), dt=0.4)
    z = np.linspace(0, SMALL, 49)
    inner = (z > 2.1) & (z < 3.4)
    expected = np.interp(z[inner], r[seen], expected)
    np.testing.assert_allclose(times[0, 24, 24].numpy()[inner], expected, rtol=2e-3)


@pytest.mark.usefixtures("small_block")
def test_varying_rates_match_finite_differences():
    """Seven-point differences and an adaptive Runge-Kutta method; the time at which u passes 1/2."""
    n = 33
    k = smooth_rates(n)
    h = SMALL / (n - 1)

    def change(_t: float, flat: np.ndarray) -> np.ndarray:
        u = flat.reshape(n, n, n)
        rate = nagumo.DIFFUSIVITY / h**2 * laplace(u, mode="mirror") + reaction(u, k[0].numpy())
        return rate.ravel()

    t = np.linspace(0, 45, 181)
    start = nagumo.stimulus(n).numpy().ravel()
    solved = solve_ivp(change, (0, 45), start, "RK23", t, rtol=1e-3, atol=1e-4)
    assert solved.y[:, -1].min() > 0.5
    passed = passing_times(t, solved.y).reshape(n, n, n)
    times = nagumo.activation_times(k, dt=0.2)[0].numpy()
    far = passed > 8
    assert far.mean() > 0.8
    np.testing.assert_allclose(times[far], passed[far], rtol=0.04)


@pytest.mark.usefixtures("small_block")
def test_diffusion_is_exact_and_keeps_the_total():
    n, time = 17, 3.0
    heat = nagumo.heat_matrix(n, time)
    x = torch.linspace(0, nagumo.SIDE, n, dtype=torch.float64)
    for waves in range(n):
        mode = torch.cos(math.pi * waves * x / nagumo.SIDE)
        decay = math.exp(-nagumo.DIFFUSIVITY * (math.pi * waves / nagumo.SIDE) ** 2 * time)
        torch.testing.assert_close(heat @ mode, decay * mode, rtol=0, atol=1e-12)
    weights = torch.ones(n, dtype=torch.float64)
    weights[[0, -1]] = 0.5
    torch.testing.assert_close(weights @ heat, weights, rtol=0, atol=1e-12)


@pytest.mark.usefixtures("small_block")
def test_is_second_order_in_time_and_better_when_extrapolated():
    k = smooth_rates(25)
    exact = nagumo.extrapolated_times(k, dt=0.05)
    plain = [relative(nagumo.activation_times(k, dt=dt), exact) for dt in (0.4, 0.2, 0.1)]
    extrapolated = [relative(nagumo.extrapolated_times(k, dt=dt), exact) for dt in (0.4, 0.2)]
    assert all(1.8 < math.log2(p / q) < 2.4 for p, q in itertools.pairwise(plain)), plain
    # extrapolation computes the finer of two neighbours in `plain` as well
    assert all(e < p / 20 for e, p in zip(extrapolated, plain[1:], strict=False)), extrapolated


@pytest.mark.usefixtures("small_block")
def test_converges_spectrally_with_the_grid():
    exact = nagumo.subsample(nagumo.activation_times(smooth_rates(51), dt=0.3), 11)
    errors = []
    for n in (21, 31, 41):
        times = nagumo.activation_times(smooth_rates(n), dt=0.3)
        errors.append(relative(nagumo.subsample(times, 11), exact))
    assert errors[1] < errors[0] / 8, errors
    assert errors[2] < errors[1] / 8, errors


def test_data_are_converged():
    """The zoo's data, on 61 nodes, against more: within 0.3 %."""
    coarse, fine = (
        nagumo.subsample(
            nagumo.activation_times(
                nagumo.sample_inputs([0], seed=2, n=n, dtype=torch.float32), dt=0.18
            ),
            13,
        )
        for n in (61, tried(73, 97))
    )
    assert relative(coarse, fine) < 3e-3


@pytest.mark.usefixtures("small_block")
def test_symmetries_take_solutions_to_solutions():
    k = smooth_rates(21)
    k[:, :, 3:9] *= 1.2
    times = nagumo.activation_times(k, dt=0.3)
    seen = set()
    for number in range(8):
        turned = nagumo.mirrored(k, number)
        seen.add(tuple(turned[0, 2, 5].tolist()))
        solved = nagumo.activation_times(turned.contiguous(), dt=0.3)
        torch.testing.assert_close(solved, nagumo.mirrored(times, number), rtol=0, atol=1e-9)
    assert len(seen) == 8


@pytest.mark.usefixtures("small_block")
def test_higher_rates_excite_earlier():
    k = smooth_rates(21)
    times = nagumo.activation_times(k, dt=0.3)
    earlier = nagumo.activation_times(1.2 * k, dt=0.3)
    away = times > 1
    assert bool((earlier[away] < times[away]).all())
    # far from the stimulus the front's speed is proportional to the square root of k
    ratio = times[0, :, :, -1] / earlier[0, :, :, -1]
    torch.testing.assert_close(ratio.mean().item(), math.sqrt(1.2), rtol=0.03, atol=0)


def test_rates_are_bounded_and_the_same_function_on_every_grid():
    fine = nagumo.sample_inputs(range(16), seed=0, n=61)
    assert 2.0 < fine.min().item() < 2.3
    assert 11.0 < fine.max().item() < 12.5
    assert 4.5 < fine.median().item() < 5.5
    for n in (21, 31):
        coarse = nagumo.sample_inputs(range(16), seed=0, n=n)
        torch.testing.assert_close(nagumo.subsample(fine, n), coarse, rtol=1e-12, atol=0)


@pytest.mark.usefixtures("small_block")
def test_a_batch_is_solved_as_each_of_its_samples():
    k = torch.cat([smooth_rates(21), 0.8 * smooth_rates(21)])
    together = nagumo.activation_times(k, dt=0.3)
    for sample in range(2):
        alone = nagumo.activation_times(k[sample : sample + 1], dt=0.3)
        # a sample that is excited early runs on until the last one is
        torch.testing.assert_close(together[sample : sample + 1], alone, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("small_block")
def test_float32_in_gives_float32_out():
    k = smooth_rates(21)
    times = nagumo.activation_times(k.float(), dt=0.3)
    assert times.dtype is torch.float32
    assert relative(times.double(), nagumo.activation_times(k, dt=0.3)) < 1e-5


def test_a_front_that_dies_out_raises():
    # the stimulus is smaller than the critical radius of so low a rate
    with pytest.raises(SolverError, match="did not excite every node"):
        nagumo.activation_times(torch.full((1, 21, 21, 21), 0.2), dt=5.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": torch.ones(9, 9, 9)}, "shape"),
        ({"k": torch.ones(1, 9, 9, 8)}, "shape"),
        ({"k": torch.ones(1, 2, 2, 2)}, "grid size"),
        ({"k": torch.zeros(1, 9, 9, 9)}, "k > 0"),
        ({"k": torch.full((1, 9, 9, 9), math.nan)}, "NaN"),
        ({"k": torch.ones(1, 9, 9, 9, dtype=torch.bfloat16)}, "dtype"),
        ({"dt": 0.0}, "dt"),
        ({"dt": 2.6}, "expected at most 2.5"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        nagumo.activation_times(**{"k": torch.ones(1, 9, 9, 9), "dt": 0.5, **arguments})


def test_subsample_rejects_a_grid_that_does_not_nest():
    with pytest.raises(ValueError, match="cannot take 25 of 61"):
        nagumo.subsample(torch.zeros(1, 61, 61, 61), 25)
