"""Moments of fields: the kernel on an emulated GPU and on a real one against float64."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
import torch

from tests.draws import generator
from tests.turbofno_ops.cuda_on_cpu import compile_kernels
from tests.turbofno_ops.on_gpu import needs_kernels
from turbofno_ops import PRECISIONS, _native
from turbofno_ops._cuda import CudaStages
from turbofno_ops._stages import Operands, Restore, Save

# of one channel, 4096 points are a piece
CASES = [(1, 1), (1, 200), (1, 3721), (1, 4097), (3, 200), (5, 9000), (12, 1000), (128, 300)]
# of the mean in standard deviations, and of the variance: roundings of a few values, not of a sum over the grid
MEAN, VARIANCE = 1e-7, 4e-7


def drawn_field(channels: int, points: int, first: float, batch: int = 3) -> np.ndarray:
    """[batch, channels, points] of mean 0 and deviation 1 but for the first value."""
    field = generator().standard_normal((batch, channels, points)).astype(np.float32)
    field[..., 0] = first
    return field


def check(means: np.ndarray, variances: np.ndarray, field: np.ndarray) -> None:
    exact = field.astype(float)
    spread = np.maximum(exact.std(-1), abs(exact.mean(-1)))
    assert (abs(means - exact.mean(-1)) <= MEAN * spread).all()
    np.testing.assert_allclose(variances, exact.var(-1), rtol=VARIANCE)


@pytest.fixture(scope="session")
def library() -> ctypes.CDLL:
    return compile_kernels("kernels/norms.cu")


@pytest.mark.parametrize("first", [0.0, -4.0])
@pytest.mark.parametrize(("channels", "points"), CASES)
def test_moments_by_the_kernel_s_source(
    library: ctypes.CDLL, channels: int, points: int, first: float
) -> None:
    field = drawn_field(channels, points, first)
    batch, pitch = len(field), -(-channels // 4) * 4
    given = np.full((batch, points, pitch), np.nan, np.float32)
    given[..., :channels] = np.moveaxis(field, 1, 2)
    moments = np.full((batch, channels, 2), np.nan, np.float32)
    structure = _native.Moments(
        batch=batch,
        outer=1,
        points=points,
        channels=channels,
        precision=PRECISIONS.index("fp32"),
        field=given.ctypes.data,
        moments=moments.ctypes.data,
    )
    workspace = np.empty(library.turbofno_moments_workspace_bytes(structure), np.uint8)
    structure.workspace = workspace.ctypes.data
    assert library.turbofno_field_moments(structure, None) == 0
    check(moments[..., 0], moments[..., 1], field)


@needs_kernels
@pytest.mark.parametrize("first", [0.0, -4.0])
@pytest.mark.parametrize(("channels", "points"), CASES)
def test_moments_on_a_gpu(channels: int, points: int, first: float) -> None:
    field = drawn_field(channels, points, first)
    stages = CudaStages((points,), (1,), device=torch.device("cuda"), precision="fp32")
    saved = stages.convert(torch.from_numpy(field).cuda())
    moments = stages.tile((Restore(), Save(moments=True)), Operands(saved=saved)).moments
    assert moments is not None
    means, variances = moments.cpu().numpy().transpose(2, 0, 1)
    check(means, variances, field)
