"""Interpolation to another grid, against Fourier series and piecewise linear functions in float64."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import signal
from scipy.interpolate import RegularGridInterpolator

from tests.draws import generator
from turbofno.models.core.regrid import Boundary, Fields, at_points, band_limited

GRIDS = [((9,), (16,)), ((16,), (9,)), ((12,), (7,)), ((8,), (32,)), ((32,), (8,)), ((7,), (7,))]
GRIDS += [((9, 14), (20, 11)), ((16, 8), (7, 8)), ((5, 6, 7), (8, 9, 4)), ((1, 6), (4, 1))]  # type: ignore[list-item]


def drawn(*shape: int) -> Fields:
    return generator().normal(size=shape).astype(np.float32)


def series(values: np.ndarray, points: int) -> np.ndarray:
    """The trigonometric polynomial through `values` at j / points, on the first axis, term by term."""
    n = len(values)
    at, where = np.arange(n) / n, np.arange(points) / points
    result = np.zeros((points, *values.shape[1:]))
    for k in range(-(n // 2), n // 2 + 1):
        weight = 0.5 if 2 * abs(k) == n else 1.0
        coefficient = np.tensordot(np.exp(-2j * np.pi * k * at), values, 1) / n
        result += weight * np.multiply.outer(np.exp(2j * np.pi * k * where), coefficient).real
    return result


def on_every_axis(fields: Fields, size: tuple[int, ...], one) -> np.ndarray:  # type: ignore[no-untyped-def]
    values = fields.astype(np.float64)
    for axis, points in enumerate(size, start=2):
        values = np.moveaxis(one(np.moveaxis(values, axis, 0), points), 0, axis)
    return values


@pytest.mark.parametrize(("grid", "size"), GRIDS)
def test_at_points_evaluates_the_fourier_series(
    grid: tuple[int, ...], size: tuple[int, ...]
) -> None:
    fields = drawn(2, 3, *grid)
    expected = on_every_axis(fields, size, series)
    np.testing.assert_allclose(at_points(fields, size, "periodic"), expected, atol=3e-6)


@pytest.mark.parametrize(("grid", "size"), GRIDS)
def test_band_limited_on_a_periodic_domain_agrees_with_scipy(
    grid: tuple[int, ...], size: tuple[int, ...]
) -> None:
    fields = drawn(2, 3, *grid)
    expected = on_every_axis(fields, size, lambda v, points: signal.resample(v, points))
    np.testing.assert_allclose(band_limited(fields, size, "periodic"), expected, atol=3e-6)


def test_band_limited_drops_frequencies_that_would_alias() -> None:
    x = np.arange(64) / 64
    low, high = np.cos(2 * np.pi * 3 * x), np.cos(2 * np.pi * 19 * x)
    fields = (low + high)[None, None].astype(np.float32)
    coarse = low[None, None, ::4]
    np.testing.assert_allclose(band_limited(fields, (16,), "periodic"), coarse, atol=1e-6)
    np.testing.assert_array_equal(at_points(fields, (16,), "periodic"), fields[..., ::4])


@pytest.mark.parametrize("bring", [at_points, band_limited])
@pytest.mark.parametrize(
    ("grid", "size"),
    [((9,), (16,)), ((16,), (9,)), ((9, 14), (20, 11)), ((5, 6, 7), (8, 3, 13)), ((11,), (21,))],
)
def test_between_nodes_agrees_with_scipy(bring, grid, size) -> None:  # type: ignore[no-untyped-def]
    fields = drawn(2, 3, *grid)
    axes = [np.linspace(0, 1, n) for n in grid]
    points = np.stack(np.meshgrid(*(np.linspace(0, 1, n) for n in size), indexing="ij"), -1)
    # linspace may exceed 1 by rounding
    points = points.clip(0, 1)
    answer = bring(fields, size, "nodes")
    assert answer.dtype == np.float32
    for result, field in zip(answer.reshape(-1, *size), fields.reshape(-1, *grid), strict=True):
        expected = RegularGridInterpolator(axes, field.astype(np.float64))(points)
        np.testing.assert_allclose(result, expected, atol=1e-6)


def test_between_nodes_shared_nodes_are_exact_and_no_value_overshoots() -> None:
    fields = generator().choice([3.0, 12.0], size=(4, 1, 43, 43)).astype(np.float32)
    fine = at_points(fields, (421, 421), "nodes")
    np.testing.assert_array_equal(fine[..., ::10, ::10], fields)
    assert fine.min() == 3.0
    assert fine.max() == 12.0
    np.testing.assert_array_equal(at_points(fine, (43, 43), "nodes"), fields)


def test_a_round_trip_through_a_finer_periodic_grid_is_the_identity() -> None:
    fields = drawn(2, 1, 15, 15)
    fine = band_limited(fields, (32, 27), "periodic")
    np.testing.assert_allclose(at_points(fine, (15, 15), "periodic"), fields, atol=1e-6)


@pytest.mark.parametrize("boundary", ["periodic", "nodes"])
def test_the_same_grid_returns_the_input_and_zero_fields_are_allowed(boundary: Boundary) -> None:
    fields = drawn(2, 1, 6, 5)
    assert at_points(fields, (6, 5), boundary) is fields
    assert band_limited(fields[:0], (8, 9), boundary).shape == (0, 1, 8, 9)


@pytest.mark.parametrize("boundary", ["periodic", "nodes"])
def test_the_largest_finite_values_do_not_overflow(boundary: Boundary) -> None:
    fields = np.full((1, 1, 10, 10), np.finfo(np.float32).max / 2, np.float32)
    assert np.isfinite(at_points(fields, (17, 31), boundary)).all()
