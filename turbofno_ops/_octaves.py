"""Energies of fields by octave of wavenumber, by the CUDA kernels (csrc/kernels/octave_energies.cu)."""

from __future__ import annotations

import torch

from turbofno_ops._native import Octaves, launch
from turbofno_ops._support import device_limits

_LEAST_PLACES = 32
"""Of a block: fewer take less time than its sums."""


def octave_energies(
    coefficients: torch.Tensor,
    place_octaves: torch.Tensor,
    *,
    points: int,
    octaves: int,
    factor: float,
) -> torch.Tensor:
    """Return the energies of real fields, of all coefficients but the mean and of each octave of the largest |k_i|.

    Args:
        coefficients: What rfftn gives, complex64 [..., *places, points // 2 + 1], of at least one field, on a GPU that
            the kernels run on. Those whose conjugates rfftn omits count twice.
        place_octaves: Octave of the largest |k_i| on all axes but the last, -1 where all are 0: int32 [places], flattened.
        points: Of the last axis.
        octaves: Number of octaves [2^o, 2^(o + 1)); no coefficient is beyond the last.
        factor: Of the coefficients; 1 / (points of the grid) makes the energies mean squares.

    Returns:
        float32 [fields, 1 + octaves].
    """
    coefficients = coefficients.contiguous()
    places, kept = len(place_octaves), coefficients.shape[-1]
    fields = coefficients.numel() // (places * kept)
    # as many blocks as multiprocessors at least; with more parts, summing them takes longer
    wanted = 2 * device_limits(coefficients.device).multiprocessors // fields
    parts = max(1, min(places // _LEAST_PLACES, wanted))
    out = torch.empty(fields, parts, 1 + octaves, device=coefficients.device)
    structure = Octaves(
        fields=fields,
        places=places,
        kept=kept,
        points=points,
        octaves=octaves,
        parts=parts,
        scale=factor,
        spectrum=coefficients.data_ptr(),
        place_octaves=place_octaves.data_ptr(),
        out=out.data_ptr(),
    )
    with torch.cuda.device(coefficients.device):
        launch("octave_energies", structure)
    return out[:, 0] if parts == 1 else out.sum(1)
