"""Energies by octave: the kernel on an emulated GPU and on a real one against sums over wavenumbers in float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.trust.features import _place_octaves
from turbofno_ops import _native
from turbofno_ops._octaves import octave_energies

GRIDS = [(1,), (2,), (9,), (64,), (1000,), (2, 3), (16, 16), (61, 85), (128, 5), (4, 600), (5, 6, 7), (33, 2, 18)]  # fmt: skip
BOUND = 2e-6


def wavenumbers(grid: tuple[int, ...]) -> np.ndarray:
    """The largest |k_i| of each coefficient of rfftn."""
    axes = [np.abs(np.fft.fftfreq(n, 1 / n)) for n in grid[:-1]] + [np.arange(grid[-1] // 2 + 1.0)]
    return np.max(np.meshgrid(*axes, indexing="ij"), axis=0)


def drawn_spectra(fields: int, grid: tuple[int, ...]) -> np.ndarray:
    draw = generator().standard_normal((2, fields, *grid[:-1], grid[-1] // 2 + 1))
    return (draw[0] + 1j * draw[1]).astype(np.complex64)


def energies(spectra: np.ndarray, grid: tuple[int, ...], factor: float) -> np.ndarray:
    """[fields, 1 + octaves]"""
    k = wavenumbers(grid)
    twice = np.full(grid[-1] // 2 + 1, 2.0)
    twice[0] = 1.0
    if grid[-1] % 2 == 0:
        twice[-1] = 1.0
    squares = np.abs(factor * spectra.astype(complex)) ** 2 * twice
    bands = [k >= 1, *((k >= 2**o) & (k < 2 ** (o + 1)) for o in range(octaves_of(grid)))]
    return np.stack([squares[:, band].sum(1) for band in bands], axis=1)


def octaves_of(grid: tuple[int, ...]) -> int:
    return (max(grid) // 2).bit_length()


def place_octaves(grid: tuple[int, ...]) -> np.ndarray:
    return _place_octaves(grid[:-1], torch.device("cpu")).numpy()


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/octave_energies.cu")


def emulated(
    library: ctypes.CDLL, spectra: np.ndarray, grid: tuple[int, ...], parts: int, factor: float
) -> np.ndarray:
    places, octaves = place_octaves(grid), octaves_of(grid)
    out = np.full((len(spectra), parts, 1 + octaves), np.nan, np.float32)
    structure = _native.Octaves(
        fields=len(spectra),
        places=len(places),
        kept=spectra.shape[-1],
        points=grid[-1],
        octaves=octaves,
        parts=parts,
        scale=factor,
        spectrum=spectra.ctypes.data,
        place_octaves=places.ctypes.data,
        out=out.ctypes.data,
    )
    assert library.turbofno_octave_energies(structure, None) == 0
    return out.sum(1)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("grid", GRIDS)
def test_the_kernel_s_source(library: ctypes.CDLL, grid: tuple[int, ...], parts: int) -> None:
    spectra, factor = drawn_spectra(2, grid), 0.37
    found = emulated(library, spectra, grid, parts, factor)
    np.testing.assert_allclose(found, energies(spectra, grid, factor), rtol=BOUND)


def test_nan_stays_in_its_field_and_octave(library: ctypes.CDLL) -> None:
    grid = (16, 16)
    spectra = drawn_spectra(3, grid)
    spectra[1, 5, 2] = np.nan  # of the octave [4, 8)
    found = emulated(library, spectra, grid, 2, 1.0)
    assert np.argwhere(np.isnan(found)).tolist() == [[1, 0], [1, 3]]


@needs_kernels
@pytest.mark.parametrize("fields", [1, 300])
@pytest.mark.parametrize("grid", [*GRIDS, (421, 421), (16384,)])
def test_on_a_gpu(grid: tuple[int, ...], fields: int) -> None:
    fields = min(fields, 2**22 // int(np.prod(grid)) + 1)
    spectra, factor = drawn_spectra(fields, grid), 1 / float(np.prod(grid))
    found = octave_energies(
        torch.from_numpy(spectra).cuda(),
        torch.from_numpy(place_octaves(grid)).cuda(),
        points=grid[-1],
        octaves=octaves_of(grid),
        factor=factor,
    )
    expected = energies(spectra, grid, factor)
    np.testing.assert_allclose(found.cpu().numpy(), expected, rtol=BOUND)
