"""Spectra of the CUDA kernels in memory: [batch, channels, *others, row] as they are, or with an even number of channels last.

They are tensors of the first shape either way. With the channels last, what the kernels read at once is whole lines of 128
bytes.
"""

from __future__ import annotations

import torch

from turbofno_ops._tile_program import readable


def empty(shape: tuple[int, ...], device: torch.device, *, channels_last: bool) -> torch.Tensor:
    """Return new spectra of this shape [batch, channels, *others, row]."""
    if not channels_last:
        return torch.empty(shape, dtype=torch.complex64, device=device)
    batch, channels, *others = shape
    array = torch.empty(batch, *others, channels, dtype=torch.complex64, device=device)
    return array.movedim(-1, 1)


def array_of(spectra: torch.Tensor, mixed: int = 0) -> tuple[torch.Tensor, bool]:
    """Return the array that spectra lie in, copied if kernels could not read it, and whether its channels are last.

    They are first if their number is odd, or that of the `mixed` ones that a product makes of them.
    """
    channels_last = spectra.shape[1] % 2 == mixed % 2 == 0 and not spectra.is_contiguous()
    return readable(spectra.movedim(1, -1) if channels_last else spectra), channels_last
