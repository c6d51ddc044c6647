"""The residual of flows: the kernel on an emulated GPU and on a real one against torch.fft in float64."""

from __future__ import annotations

import ctypes

import pytest
import torch

from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno.models.trust.residuals import navier_stokes
from turbofno.models.zoo.pde.navier_stokes import paper_forcing
from turbofno_ops import _native
from turbofno_ops._flow import vorticity_residual
from turbofno_ops._native import FLOW_MODES

KEPT = (2 * FLOW_MODES + 1, FLOW_MODES + 1)
GRID = 32
TIMES = [(1e-3, 1.0), (1e-5, 0.5), (0.1, 2.0)]
BOUND = 2e-5


def low_modes(field: torch.Tensor) -> torch.Tensor:
    spectrum = torch.fft.rfft2(field, norm="forward")[..., : KEPT[1]]
    ends = spectrum[..., : KEPT[1], :], spectrum[..., -FLOW_MODES:, :]
    return torch.cat(ends, dim=-2).to(torch.complex64).contiguous()


def flows(n: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Two vorticities [n, 32, 32] of low modes, the later one near the earlier one."""
    first = torch.randn(n, GRID, GRID, dtype=torch.float64)
    return tuple(
        torch.fft.irfft2(smooth(torch.fft.rfft2(field)), s=(GRID, GRID))
        for field in (first, first + 0.1 * torch.randn_like(first))
    )


def smooth(spectrum: torch.Tensor) -> torch.Tensor:
    spectrum = spectrum.clone()
    spectrum[:, KEPT[1] : -FLOW_MODES] = 0
    spectrum[:, :, KEPT[1] :] = 0
    return spectrum


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/vorticity_residual.cu")


def emulated(
    library: ctypes.CDLL, w0: torch.Tensor, w1: torch.Tensor, viscosity: float, time: float
) -> torch.Tensor:
    arrays = [low_modes(w0), low_modes(w1), low_modes(paper_forcing(GRID)), torch.empty(len(w0))]
    addresses = [array.data_ptr() for array in arrays]
    structure = _native.Flow(len(w0), viscosity, time, *addresses)
    assert library.turbofno_vorticity_residual(structure, None) == 0
    return arrays[-1]


@pytest.mark.parametrize(("viscosity", "time"), TIMES)
def test_the_kernel_s_source(library: ctypes.CDLL, viscosity: float, time: float) -> None:
    w0, w1 = flows(3)
    expected = navier_stokes(w0, w1, nu=viscosity, time=time).float()
    found = emulated(library, w0, w1, viscosity, time)
    torch.testing.assert_close(found, expected, rtol=BOUND, atol=0)


def test_a_steady_flow_has_no_residual_but_rounding(library: ctypes.CDLL) -> None:
    """Viscosity balances the forcing, whose flow is parallel: no advection."""
    steady = paper_forcing(GRID)[None] / (0.05 * 8 * torch.pi**2)
    assert emulated(library, steady, steady, 0.05, 1.0).item() < 1e-5
    assert emulated(library, steady, 1.1 * steady, 0.05, 1.0).item() > 0.1


def test_nan_stays_in_its_field(library: ctypes.CDLL) -> None:
    w0, w1 = flows(3)
    expected = emulated(library, w0, w1, 1e-3, 1.0)
    w1[1, 3, 4] = torch.nan
    found = emulated(library, w0, w1, 1e-3, 1.0)
    assert found.isnan().tolist() == [False, True, False]
    assert torch.equal(found[[0, 2]], expected[[0, 2]])


@needs_kernels
@pytest.mark.parametrize(("viscosity", "time"), TIMES)
def test_on_a_gpu(viscosity: float, time: float) -> None:
    w0, w1 = flows(300)
    expected = navier_stokes(w0, w1, nu=viscosity, time=time).float()
    given = [low_modes(array).cuda() for array in (w0, w1, paper_forcing(GRID))]
    found = vorticity_residual(*given, viscosity=viscosity, time=time).cpu()
    torch.testing.assert_close(found, expected, rtol=BOUND, atol=0)
