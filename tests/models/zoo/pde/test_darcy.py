"""Darcy solver against a manufactured solution and a direct sparse solve; bounds and symmetry."""

import itertools
import math

import numpy
import pytest
import scipy.sparse
import scipy.sparse.linalg
import torch
from torch import Tensor

from turbofno.models.zoo.pde import darcy
from turbofno.models.zoo.pde.checks import SolverError


def direct_solution(a: numpy.ndarray, f: float) -> numpy.ndarray:
    """Node by node assembly and a sparse LU solve, sharing no code with the solver under test."""
    n = a.shape[0]
    number = {(i, j): i * (n - 2) + j for i in range(n - 2) for j in range(n - 2)}
    matrix = scipy.sparse.lil_matrix((len(number), len(number)))
    for (i, j), row in number.items():
        for di, dj in ((1, 0), (-1, 0), (0, 1), (0, -1)):
            face = 0.5 * (a[i + 1, j + 1] + a[i + 1 + di, j + 1 + dj]) * (n - 1) ** 2
            matrix[row, row] += face
            if (i + di, j + dj) in number:
                matrix[row, number[i + di, j + dj]] -= face
    interior = scipy.sparse.linalg.spsolve(matrix.tocsc(), numpy.full(len(number), f))
    return numpy.pad(interior.reshape(n - 2, n - 2), 1)


def manufactured(n: int) -> tuple[Tensor, Tensor, Tensor]:
    """(a, f, u): u = sin(pi x) sin(2 pi y), a = 2 + sin(2 pi x) cos(pi y), f = -div(a grad u)."""
    x = torch.linspace(0, 1, n, dtype=torch.float64)[:, None]
    y = x.T
    pi = math.pi
    u = torch.sin(pi * x) * torch.sin(2 * pi * y)
    a = 2 + torch.sin(2 * pi * x) * torch.cos(pi * y)
    a_x = 2 * pi * torch.cos(2 * pi * x) * torch.cos(pi * y)
    a_y = -pi * torch.sin(2 * pi * x) * torch.sin(pi * y)
    u_x = pi * torch.cos(pi * x) * torch.sin(2 * pi * y)
    u_y = 2 * pi * torch.sin(pi * x) * torch.cos(2 * pi * y)
    return a[None], a * 5 * pi**2 * u - a_x * u_x - a_y * u_y, u


def test_is_second_order_on_a_manufactured_solution():
    errors = []
    for n in (17, 33, 65):
        a, f, exact = manufactured(n)
        errors.append((darcy.solve(a, f=f)[0] - exact).abs().max().item())
    orders = [math.log2(p / q) for p, q in itertools.pairwise(errors)]
    assert all(1.9 < order < 2.1 for order in orders), (errors, orders)


def test_matches_a_direct_solve_of_an_independent_matrix():
    a = darcy.sample_inputs([0, 1], seed=4, n=29)
    u = darcy.solve(a, f=2.0, rtol=1e-11)
    for sample in range(2):
        expected = direct_solution(a[sample].numpy(), 2.0)
        numpy.testing.assert_allclose(u[sample].numpy(), expected, rtol=0, atol=1e-10)


def test_residual_meets_its_tolerance():
    n = 85
    a = darcy.sample_inputs(range(3), seed=1, n=n)
    u = darcy.solve(a, rtol=1e-9)
    residual = darcy.apply_operator(a, u[:, 1:-1, 1:-1]) * (n - 1) ** 2 - 1.0
    assert (residual.flatten(1).norm(dim=1) / (n - 2)).max().item() < 1e-9


def test_constant_permeability_gives_the_poisson_series():
    u = darcy.solve(torch.full((1, 129, 129), 2.0, dtype=torch.float64))
    # -Lap v = 1 on the unit square: v(1/2, 1/2) = 0.0736713...; u = v / 2.
    assert u[0, 64, 64].item() == pytest.approx(0.0736713 / 2, rel=2e-4)


def test_solution_obeys_bounds_and_symmetries():
    a = darcy.sample_inputs(range(4), seed=2, n=43)
    u = darcy.solve(a, rtol=1e-11)
    assert bool((u[:, 1:-1, 1:-1] > 0).all())
    edges = (u[:, 0], u[:, -1], u[:, :, 0], u[:, :, -1])
    assert all(edge.abs().max().item() == 0.0 for edge in edges)
    torch.testing.assert_close(darcy.solve(a.mT, rtol=1e-11), u.mT, rtol=0, atol=1e-11)
    torch.testing.assert_close(darcy.solve(3 * a, rtol=1e-11), u / 3, rtol=0, atol=1e-11)
    # More conductive everywhere: less pressure on average than at a = 3, more than at a = 12.
    poisson = darcy.solve(torch.ones_like(a))
    means = u.mean(dim=(1, 2)) / poisson.mean(dim=(1, 2))
    assert bool(((means > 1 / 12) & (means < 1 / 3)).all())


def test_permeability_takes_both_values_and_matches_across_grids():
    fine = darcy.sample_inputs(range(6), seed=0, n=421)
    assert set(fine.unique().tolist()) == {3.0, 12.0}
    assert 0.3 < (fine == 12.0).double().mean().item() < 0.7
    for n in (85, 141):
        assert torch.equal(darcy.subsample(fine, n), darcy.sample_inputs(range(6), seed=0, n=n))


def test_float32_in_gives_float32_out_at_float64_accuracy():
    a = darcy.sample_inputs([5], seed=0, n=61)
    u = darcy.solve(a.float())
    assert u.dtype is torch.float32
    torch.testing.assert_close(u.double(), darcy.solve(a), rtol=1e-6, atol=1e-9)


def test_zero_source_gives_zero():
    assert darcy.solve(torch.ones(1, 9, 9), f=0.0).abs().max().item() == 0.0


def test_lack_of_convergence_raises():
    a = darcy.sample_inputs([0], seed=0, n=43)
    with pytest.raises(SolverError, match="max_iterations"):
        darcy.solve(a, max_iterations=3)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"a": torch.ones(9, 9)}, "shape"),
        ({"a": torch.ones(1, 9, 8)}, "shape"),
        ({"a": torch.ones(1, 2, 2)}, "grid size"),
        ({"a": torch.zeros(1, 9, 9)}, "a > 0"),
        ({"a": torch.full((1, 9, 9), math.inf)}, "infinity"),
        ({"a": torch.ones(1, 9, 9, dtype=torch.bfloat16)}, "dtype"),
        ({"f": torch.ones(9)}, "f has shape"),
        ({"f": math.nan}, "f holds NaN"),
        ({"rtol": 0.0}, "rtol"),
        ({"max_iterations": 0}, "max_iterations"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        darcy.solve(**{"a": torch.ones(1, 9, 9), **arguments})


def test_subsample_rejects_a_grid_that_does_not_nest():
    with pytest.raises(ValueError, match="cannot take 100 of 421"):
        darcy.subsample(torch.zeros(1, 421, 421), 100)
