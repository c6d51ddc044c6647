"""Projected fluxes: the kernel on an emulated GPU and on a real one against sums in float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.trust import residuals
from turbofno_ops import _native
from turbofno_ops._fluxes import project_fluxes
from turbofno_ops._native import FLUX_MODES

GRIDS = [(3, 3), (4, 3), (3, 40), (9, 33), (16, 64), (31, 70)]
BOUND = 1e-5
"""Relative to the largest value: a sum of as many products as points."""


def drawn(n: int, rows: int, points: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Fields a and u, and functions as their callers give them: across is 0 at the ends, along at the last point."""
    rng = generator()
    a, u = rng.standard_normal((2, n, rows, points)).astype(np.float32)
    across, along = rng.standard_normal((2, FLUX_MODES, points)).astype(np.float32)
    across[:, [0, -1]] = along[:, -1] = 0
    return a, u, across, along


def expected(a: np.ndarray, u: np.ndarray, across: np.ndarray, along: np.ndarray) -> np.ndarray:
    a, u = a.astype(float), u.astype(float)
    u[:, [0, -1]] = u[:, :, [0, -1]] = 0
    out = np.zeros((len(a), 2, a.shape[1], FLUX_MODES))
    down = (u[:, 1:] - u[:, :-1]) * (a[:, 1:] + a[:, :-1])
    right = (u[:, 1:-1, 1:] - u[:, 1:-1, :-1]) * (a[:, 1:-1, 1:] + a[:, 1:-1, :-1])
    out[:, 0, :-1] = down @ across.T
    out[:, 1, 1:-1] = right @ along[:, :-1].T
    return out


def compare(found: np.ndarray, wanted: np.ndarray) -> None:
    np.testing.assert_allclose(found, wanted, rtol=0, atol=BOUND * np.abs(wanted).max())


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/project_fluxes.cu")


def emulated(
    library: ctypes.CDLL, a: np.ndarray, u: np.ndarray, across: np.ndarray, along: np.ndarray
) -> np.ndarray:
    n, rows, points = a.shape
    out = np.full((n, 2, rows, FLUX_MODES), np.nan, np.float32)
    pitch = rows * points
    structure = _native.Fluxes(n, pitch, pitch, rows, points)
    for name, array in zip(
        ("a", "u", "across", "along", "out"), (a, u, across, along, out), strict=True
    ):
        setattr(structure, name, array.ctypes.data)
    assert library.turbofno_project_fluxes(structure, None) == 0
    return out


@pytest.mark.parametrize("grid", GRIDS)
def test_the_kernel_s_source(library: ctypes.CDLL, grid: tuple[int, int]) -> None:
    given = drawn(3, *grid)
    compare(emulated(library, *given), expected(*given))


def test_values_that_no_flux_has_do_not_matter(library: ctypes.CDLL) -> None:
    """Of u those at the ends, of a those in the corners; another field's NaN neither."""
    a, u, across, along = drawn(3, 9, 40)
    wanted = expected(a, u, across, along)
    u[:, [0, -1]] = u[:, :, [0, -1]] = np.nan
    a[:, [[0], [-1]], [0, -1]] = np.nan
    a[1] = np.nan
    found = emulated(library, a, u, across, along)
    compare(found[[0, 2]], wanted[[0, 2]])
    assert np.isnan(found[1, 0, :-1]).all()
    assert np.isnan(found[1, 1, 1:-1]).all()


@pytest.mark.parametrize("grid", [(43, 43), (10, 30), (3, 5)])
def test_the_residual_of_darcy_flow(library: ctypes.CDLL, grid: tuple[int, int]) -> None:
    a, u, *_ = drawn(2, *grid)
    on_x, across, along = residuals._projections(*grid, torch.device("cpu"))
    x, y, *_ = residuals._darcy_tables(grid[0] - 2, grid[1] - 2, torch.float32, on_x.device)
    flux_x = residuals._fluxes(
        torch.from_numpy(a[:, :, 1:-1]), torch.from_numpy(u[:, :, 1:-1]), dim=1
    )
    flux_y = residuals._fluxes(torch.from_numpy(a[:, 1:-1]), torch.from_numpy(u[:, 1:-1]), dim=2)
    wanted = x.fluxes.mT @ (flux_x @ y.sines) + x.sines.mT @ (flux_y @ y.fluxes)
    rows = torch.from_numpy(emulated(library, a, u, across.numpy(), along.numpy())).flatten(1, 2)
    found = (on_x.mT @ rows)[..., : y.sines.shape[1]]
    compare(found.numpy(), wanted.numpy())


@needs_kernels
@pytest.mark.parametrize("grid", [*GRIDS, (85, 85), (421, 421), (5, 2000)])
def test_on_a_gpu(grid: tuple[int, int]) -> None:
    a, u, across, along = drawn(5, *grid)
    on_gpu = [torch.from_numpy(array).cuda() for array in (a, u, across, along)]
    wanted = expected(a, u, across, along)
    # every second field, and rows that are not contiguous
    for given in (torch.stack([on_gpu[0]] * 2, dim=1)[:, 0], on_gpu[0].mT.contiguous().mT):
        compare(project_fluxes(given, *on_gpu[1:]).cpu().numpy(), wanted)
