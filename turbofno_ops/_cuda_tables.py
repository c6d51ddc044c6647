"""The tables that the CUDA kernels read, made in float64 and kept while they are used."""

from __future__ import annotations

import torch

from turbofno_ops._gemm import _angles, _last_axis_analysis, _last_axis_synthesis, _tables


def row_analysis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Of rows of `points` to their first `modes` coefficients."""
    return _last_axis_analysis(points, modes, torch.float32, device)


def row_synthesis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Of `modes` coefficients to rows of `points`."""
    return _last_axis_synthesis(points, modes, torch.float32, device)


@_tables.cached
def _column_sums(size: int, count: int, device: torch.device, *, analysis: bool) -> torch.Tensor:
    """cos and sin of |k| = 0 .. half, interleaved: float32 [half + 1, size, 2], over size in an analysis."""
    with torch.inference_mode(False):
        at = _angles(count // 2 + 1, size)
        table = torch.stack([at.cos(), at.sin()], dim=-1)
        return (table / size if analysis else table).to(device, torch.float32)


def column_analysis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Of columns of `points` to `modes` coefficients in FFT order."""
    return _column_sums(points, modes, device, analysis=True)


def column_synthesis(points: int, modes: int, device: torch.device) -> torch.Tensor:
    """Of `modes` coefficients in FFT order to columns of `points`."""
    return _column_sums(points, modes, device, analysis=False)
