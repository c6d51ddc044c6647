"""Reference backend: truncated transforms by torch.fft, in float32 or float64, on any device.

Float32 on a GPU takes `turbofno_ops.fft`, which computes the kept modes only.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from turbofno_ops import _torch_fft, fft
from turbofno_ops._modes import frequencies


def _rows(modes: Sequence[int], size: Sequence[int], device: torch.device) -> list[torch.Tensor]:
    """Return the indices of the kept frequencies in an FFT of `size`, for each axis but the last."""
    return [
        torch.tensor(frequencies(count, both_signs=True), device=device) % n
        for count, n in zip(modes[:-1], size[:-1], strict=True)
    ]


def _corner(rows: list[torch.Tensor], columns: int) -> tuple[torch.Tensor | slice, ...]:
    """Return the index of the kept modes in a half spectrum [.., *size[:-1], size[-1]//2 + 1]."""
    grids = torch.meshgrid(*rows, indexing="ij") if rows else ()
    return (slice(None), slice(None), *grids, slice(columns))


def analyze(x: torch.Tensor, modes: Sequence[int]) -> torch.Tensor:
    """Return the Fourier coefficients of the kept modes: real [batch, channels, *size] -> complex [*modes, batch, channels].

    Scaled by 1 / prod(size), so that coefficients do not depend on the grid.
    """
    size = x.shape[2:]
    axes = tuple(range(2, x.ndim))
    if fft.is_preferred(x, in_graph=True):
        return fft.rfftn(x, dim=axes, norm="forward", modes=modes).permute(*axes, 0, 1)
    half = _torch_fft.rfftn(x, dim=axes, norm="forward")
    kept = half[_corner(_rows(modes, size, x.device), modes[-1])]
    return kept.permute(*axes, 0, 1)


def synthesize(
    z: torch.Tensor, size: Sequence[int], *, onto: torch.Tensor | None = None
) -> torch.Tensor:
    """Return the real field on `size` points, as irfftn defines it.

    Complex [*modes, batch, channels] -> real [batch, channels, *size]. The field is added in place to `onto`, a
    tensor of that shape, if given. The imaginary part of the DC and Nyquist columns after the transform of the
    other axes is ignored, as irfftn does on a CPU. It is removed explicitly, because cuFFT does not ignore it at many
    powers of two.
    """
    n_dim = len(size)
    modes = z.shape[:n_dim]
    *others, last = size
    spectrum = z.permute(n_dim, n_dim + 1, *range(n_dim))
    if fft.is_preferred(z, in_graph=True):
        axes = tuple(range(2, 2 + n_dim))
        # the field has the spectrum's order of memory
        kept = spectrum.contiguous()
        field = fft.irfftn(kept, s=size, dim=axes, norm="forward", modes=modes)
        return field if onto is None else onto.add_(field)
    half = z.new_zeros(*spectrum.shape[:2], *others, last // 2 + 1)
    half[_corner(_rows(modes, size, z.device), modes[-1])] = spectrum
    if others:
        half = _torch_fft.ifftn(half, dim=tuple(range(2, 1 + n_dim)), norm="forward")
    own_mirror = [0, last // 2] if last % 2 == 0 else [0]
    half[..., own_mirror] = half[..., own_mirror].real.to(half.dtype)
    field = _torch_fft.irfft(half, n=last, dim=-1, norm="forward")
    return field if onto is None else onto.add_(field)
