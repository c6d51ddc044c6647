"""Projected fluxes of div(a grad u) by the CUDA kernels (csrc/kernels/project_fluxes.cu)."""

from __future__ import annotations

import torch

from turbofno_ops._native import FLUX_MODES, Fluxes, launch


def project_fluxes(
    a: torch.Tensor, u: torch.Tensor, across: torch.Tensor, along: torch.Tensor
) -> torch.Tensor:
    """Return fluxes through the faces between neighbouring points, projected on functions of the last axis.

    A flux is (difference of u) (sum of a); u counts as 0 at the ends of both axes.

    Args:
        a: float32 [n, rows, points], at least one field, on a GPU that the kernels run on.
        u: As a.
        across: float32 [FLUX_MODES, points], contiguous: functions for fluxes from a row to the next, 0 at both ends.
        along: Of the same shape: functions for fluxes from a point to the next, 0 at the last.

    Returns:
        float32 [n, 2, rows, FLUX_MODES]: across, then along; 0 in the last row, and in the first and last.
    """
    a, u = (field if field[0].is_contiguous() else field.contiguous() for field in (a, u))
    n, rows, points = a.shape
    out = torch.empty(n, 2, rows, FLUX_MODES, device=a.device)
    structure = Fluxes(
        fields=n,
        a_pitch=a.stride(0),
        u_pitch=u.stride(0),
        rows=rows,
        points=points,
        a=a.data_ptr(),
        u=u.data_ptr(),
        across=across.data_ptr(),
        along=along.data_ptr(),
        out=out.data_ptr(),
    )
    with torch.cuda.device(a.device):
        launch("project_fluxes", structure)
    return out
