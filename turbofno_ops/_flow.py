"""Residuals of the vorticity equation by the CUDA kernels (csrc/kernels/vorticity_residual.cu)."""

from __future__ import annotations

import torch

from turbofno_ops._native import Flow, launch


def vorticity_residual(
    before: torch.Tensor,
    after: torch.Tensor,
    forcing: torch.Tensor,
    *,
    viscosity: float,
    time: float,
) -> torch.Tensor:
    """Return the residuals [n] of flows on the unit torus between two times, relative to the L2 norm of the later vorticity.

    Args:
        before: Fourier modes of the vorticity at time 0 up to FLOW_MODES on both axes, in the order of rfft2 with norm
            "forward": complex64 [n, 21, 11], contiguous, on a GPU that the kernels run on.
        after: The same at `time`.
        forcing: The modes [21, 11] of what forces the vorticity.
        viscosity: Kinematic, positive.
        time: Between the two.
    """
    out = torch.empty(len(before), device=before.device)
    structure = Flow(
        fields=len(before),
        viscosity=viscosity,
        time=time,
        before=before.data_ptr(),
        after=after.data_ptr(),
        forcing=forcing.data_ptr(),
        out=out.data_ptr(),
    )
    with torch.cuda.device(before.device):
        launch("vorticity_residual", structure)
    return out
